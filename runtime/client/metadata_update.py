"""Retries a change of a shared record by compare-and-set. Source: protocol section 4.1.

The loop works for any versioned record; its main user is ledger metadata. It never merges values. Each attempt starts
from the newest version seen and decides again whether and how to change it, so concurrent changes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from bkctl.runtime.errors import BadVersionError, ConflictError, MetadataUnavailableError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.store import NodeWrite, Versioned
from bkctl.runtime.ports import Clock

T = TypeVar("T")

BACK_OFF_FIRST_S = 0.005
BACK_OFF_MAX_S = 0.5


class SharedRecord(Protocol[T]):
    """One record of the metadata store."""

    @property
    def name(self) -> str:
        """What an error message calls it."""

    async def read(self) -> Versioned[T]:
        """The stored value."""

    async def write(self, value: T, expected_version: int) -> Versioned[T]:
        """Replace the value; BadVersionError if it is not at ``expected_version``."""


class LedgerRecord:
    """The metadata of one ledger as a ``SharedRecord``."""

    def __init__(
        self,
        ledgers: LedgerStore,
        ledger_id: int,
        others_for: Callable[[LedgerMetadata], Sequence[NodeWrite]] = lambda _: (),
    ) -> None:
        """``others_for``: what is checked or written in the transaction that writes a value."""
        self._ledgers = ledgers
        self._ledger_id = ledger_id
        self._others_for = others_for

    @property
    def name(self) -> str:
        """What an error message calls it."""
        return f"metadata of ledger {self._ledger_id}"

    async def read(self) -> Versioned[LedgerMetadata]:
        """Stored metadata; LedgerNotFoundError."""
        return await self._ledgers.read(self._ledger_id)

    async def write(self, value: LedgerMetadata, expected_version: int) -> Versioned[LedgerMetadata]:
        """Replace the metadata; BadVersionError, LedgerNotFoundError, the errors of a check with its path."""
        return await self._ledgers.write(self._ledger_id, value, expected_version, *self._others_for(value))


class LocalCopy(Generic[T]):
    """The newest version of a record that this process has seen. Several update loops may share one copy."""

    def __init__(self, current: Versioned[T]) -> None:
        self.current = current

    @property
    def value(self) -> T:
        """The newest value seen."""
        return self.current.value

    def install(self, candidate: Versioned[T]) -> bool:
        """Store ``candidate`` if it is strictly newer, so that a stale read never replaces a newer version."""
        if candidate.version <= self.current.version:
            return False
        self.current = candidate
        return True


async def update_record(
    record: SharedRecord[T],
    copy: LocalCopy[T],
    *,
    is_needed: Callable[[T], bool],
    transform: Callable[[T], T],
    clock: Clock,
    attempts_max: int,
) -> T:
    """Write ``transform`` of the newest value until a write succeeds or ``is_needed`` is False; returns that value.

    There is no suspension point between ``is_needed``, ``transform`` and the start of the write, so the state that they
    use is still current when the write is sent. Their exceptions end the loop. If the answer to a write is lost, the
    value is read again; if the lost write succeeded, ``is_needed`` is then False.

    Raises ConflictError after ``attempts_max`` lost races, and the errors of ``record``.
    """
    for attempt in range(attempts_max):
        local = copy.current
        if not is_needed(local.value):
            return local.value
        try:
            written = await record.write(transform(local.value), local.version)
        except (BadVersionError, MetadataUnavailableError):
            if attempt > 0:
                # A single conflict is normal; more in a row mean heavy contention, or stale reads from the store.
                await clock.sleep(back_off_s(attempt, BACK_OFF_FIRST_S, BACK_OFF_MAX_S, clock))
            copy.install(await record.read())
        else:
            copy.install(written)
            if copy.current is written:
                return written.value
            # Another loop on this copy wrote a newer version: check whether it still contains the change.
    raise ConflictError(f"{record.name}: changed by other processes {attempts_max} times in a row; nothing was written")


def back_off_s(failures: int, first_s: float, max_s: float, clock: Clock) -> float:
    """Seconds to wait after some failures: exponential, with jitter."""
    return min(max_s, first_s * 2.0**failures) * (0.5 + clock.random.random() / 2)
