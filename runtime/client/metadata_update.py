"""Compare-and-set on a shared record until it holds, or is no longer needed. Source: protocol section 4.1.

The loop is generic: ledger metadata is its main user, any record with versions can be. It never merges structures. Each
round decides again, from the newest version seen, whether the change is still needed and what it is; what somebody else
changed meanwhile is kept, because the transformation starts from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from runtime.errors import BadVersionError, ConflictError, MetadataUnavailableError
from runtime.ledger.metadata import LedgerMetadata
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.metadata.store import Versioned
from runtime.ports import Clock

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
        """Replace it; BadVersionError when it is not at ``expected_version``."""


class LedgerRecord:
    """The metadata of one ledger as a ``SharedRecord``."""

    def __init__(self, ledgers: LedgerStore, ledger_id: int) -> None:
        self._ledgers = ledgers
        self._ledger_id = ledger_id

    @property
    def name(self) -> str:
        """What an error message calls it."""
        return f"metadata of ledger {self._ledger_id}"

    async def read(self) -> Versioned[LedgerMetadata]:
        """Stored metadata; LedgerNotFoundError."""
        return await self._ledgers.read(self._ledger_id)

    async def write(self, value: LedgerMetadata, expected_version: int) -> Versioned[LedgerMetadata]:
        """Replace the metadata; BadVersionError, LedgerNotFoundError."""
        return await self._ledgers.write(self._ledger_id, value, expected_version)


class LocalCopy(Generic[T]):
    """The newest version of a record that this process has seen. Several update loops may run over one copy."""

    def __init__(self, current: Versioned[T]) -> None:
        self.current = current

    @property
    def value(self) -> T:
        """The newest value seen."""
        return self.current.value

    def install(self, candidate: Versioned[T]) -> bool:
        """Take ``candidate`` if it is strictly newer; a lagging read never takes the copy back in time."""
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
    """Write ``transform`` of the newest value until the write holds or ``is_needed`` says no; return that value.

    ``is_needed`` and ``transform`` run without a suspension point before the write starts, so what they read from
    their handle is still true when the write is sent. What they raise ends the loop. A write whose answer was lost is
    decided by reading back: at a changed version the predicate is asked again, and it says no if the change was ours.

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
                # The first conflict is the ordinary one; more in a row mean a crowd, or a store read that lags behind.
                await clock.sleep(back_off_s(attempt, BACK_OFF_FIRST_S, BACK_OFF_MAX_S, clock))
            copy.install(await record.read())
        else:
            copy.install(written)
            if copy.current is written:
                return written.value
            # Another loop over this copy went past us: is the change still in what it wrote?
    raise ConflictError(f"{record.name}: changed by other processes {attempts_max} times in a row; nothing was written")


def back_off_s(failures: int, first_s: float, max_s: float, clock: Clock) -> float:
    """Seconds to wait after some failures: growing, and never the same for two callers."""
    return min(max_s, first_s * 2.0**failures) * (0.5 + clock.random.random() / 2)
