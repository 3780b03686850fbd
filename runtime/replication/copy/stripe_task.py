"""What a stripe copy is asked for, what it returns, and what all stripe copies of a run share, such as the writer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Set

import msgspec

from bkctl.runtime.client.bookie_software import BookieSoftware
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.limits import SharedPacer, Windows
from bkctl.runtime.replication.copy.reader import OVERLOAD, REQUEST_COST_BYTES, CopyReader, pause_s
from bkctl.runtime.replication.judge.fragments import EntryRange, Fragment, first_stored, last_stored, stripe_count
from bkctl.runtime.replication.judge.ledger_result import LedgerFailure, SourceDefect

TIMEOUTS_MAX = 1
"""Timeouts allowed per batch of adds: the bookie may be overloaded without reporting it."""
BATCHES_IN_FLIGHT = 8
"""Batches of one stripe that are read, written or verified at the same time."""


class EntryWriter:
    """Writes for all ledgers of a run, within the window of each bookie."""

    def __init__(self, ports: ClientPorts, windows: Windows, config: ReplicationConfig) -> None:
        self._bookies = ports.bookies
        self._clock = ports.clock
        self._windows = windows
        self._config = config

    async def add(
        self,
        bookie_id: str,
        credentials: LedgerCredentials,
        adds: Sequence[tuple[int, bytes]],
        before_add: Callable[[], None] = lambda: None,
        *,
        is_patient: bool = False,
    ) -> dict[int, Status]:
        """Send recovery adds, which fenced ledgers accept, and again those that an overloaded bookie did not store.

        Returns the status of each entry that was not stored. ``before_add`` is called before each request, and may
        raise. ``is_patient``: for a bookie that is hard to replace, which is asked again after any silence too.
        """
        window = self._windows.of(bookie_id)
        failures: dict[int, Status] = {}
        attempt = timeouts = 0
        while True:
            attempt += 1
            size_bytes = sum(len(body) for _, body in adds) + len(adds) * REQUEST_COST_BYTES
            async with window.lease(size_bytes) as lease:
                before_add()
                statuses = await self._bookies.add_many(
                    bookie_id, credentials.ledger_id, credentials.master_key, adds, is_recovery_add=True
                )
                failed = set(statuses) - {Status.OK}
                lease.note_outcome(is_overloaded=not failed.isdisjoint(OVERLOAD))
            if not failed:
                return failures
            timeouts += Status.TIMEOUT in failed
            again: Set[Status] = OVERLOAD if is_patient else {Status.TOO_MANY_REQUESTS}
            if timeouts <= TIMEOUTS_MAX:
                again |= {Status.TIMEOUT}
            if attempt >= self._config.attempts_max:
                again = frozenset()
            rows = list(zip(adds, statuses, strict=True))
            failures |= {add[0]: status for add, status in rows if status in failed and status not in again}
            adds = [add for add, status in rows if status in again]
            if not adds:
                return failures
            await self._clock.sleep(pause_s(attempt, self._config, self._clock))


def worst_of(failures: Mapping[int, Status]) -> Status:
    """The status that says most about a bookie."""
    return max(set(failures.values()) - {Status.TOO_MANY_REQUESTS}, default=Status.TOO_MANY_REQUESTS)


class StripeTask(msgspec.Struct, frozen=True):
    """Copy the entries of ``fragment`` that are striped to ``index`` to ``target``; never ask the ``unreachable``.

    ``copied_until``: the target has the entries up to this one already, from an earlier run. They are verified again,
    and copied only if that fails.

    ``bad``: ``target`` is the present member at ``index``, and only these entries, of which it had bad copies, are
    written to it again. ``unreachable`` and ``copied_until`` do not count then.

    ``outside``: live bookies that are not in the ensemble. They are asked only for entries that no member can give.
    ``lost``: entries that no bookie had when the ledger was closed (``lost_entries``), and those of them that may still
    be on none: ``accepted`` (``accepted_entries``).
    """

    credentials: LedgerCredentials
    metadata: LedgerMetadata
    fragment: Fragment
    index: int
    target: str
    unreachable: frozenset[str]
    copied_until: int = -1
    bad: tuple[EntryRange, ...] = ()
    outside: tuple[str, ...] = ()
    lost: tuple[EntryRange, ...] = ()
    accepted: tuple[EntryRange, ...] = ()

    @property
    def entries(self) -> int:
        """Number of entries in the stripe."""
        return stripe_count(self.fragment.entries, self.index, *self.metadata.sizes)

    @property
    def first_entry_id(self) -> int:
        """First entry of the stripe, or -1."""
        return first_stored(self.fragment.entries, self.index, *self.metadata.sizes)

    @property
    def last_entry_id(self) -> int:
        """Last entry of the stripe, or -1."""
        return last_stored(self.fragment.entries, self.index, *self.metadata.sizes)


class StripeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one stripe. All entries are on the target, and verified as the config says, if and
    only if ``is_complete``.

    ``target_failure``: why the target cannot be used; try another. ``lost``: entries for which all sources answered and
    none has a good copy. ``unreadable``: entries without a good copy for which a source failed or did not answer. If a
    source does not answer, the copy is abandoned, and the last range extends to the end of the segment. ``reason``:
    the first of these entries, and the answers for it. ``is_refused``: because the target, or each source that did not
    answer, does not accept this client.

    ``present``: those of ``StripeTask.lost`` that the target has now.

    With ``StripeTask.bad``, ``entries`` and ``bytes_copied`` are copies that were written and are good now. ``left``:
    copies that stay bad, by reason. ``must_move``: entries with a bad record that must not be written over, as the
    target does not run bkctl (H18); ``must_move_count`` also counts those that are too many to list.
    """

    entries: int = 0
    bytes_copied: int = 0
    target_failure: str | None = None
    lost: tuple[EntryRange, ...] = ()
    unreadable: tuple[EntryRange, ...] = ()
    reason: str = ""
    is_refused: bool = False
    defects: tuple[SourceDefect, ...] = ()
    present: tuple[EntryRange, ...] = ()
    left: tuple[LedgerFailure, ...] = ()
    must_move: tuple[EntryRange, ...] = ()
    must_move_count: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the metadata may reference the target now."""
        return not (self.target_failure or self.lost or self.unreadable or self.left or self.must_move)


@dataclasses.dataclass(frozen=True)
class CopyTools:
    """What the copies of all ledgers of a run share."""

    ports: ClientPorts
    copies: CopyReader
    config: ReplicationConfig
    pacer: SharedPacer
    on_copied: Callable[[int, int], None] = lambda _entries, _bytes: None
    """Called with entries and bytes when a target acknowledges them."""
    on_verified: Callable[[StripeTask, int], None] = lambda _task, _entry_id: None
    """Called when all entries of the stripe up to this one are on the target and verified."""

    @functools.cached_property
    def software(self) -> BookieSoftware:
        """Which bookies run bkctl."""
        return BookieSoftware(self.ports.registrations, self.ports.clock)

    @functools.cached_property
    def writer(self) -> EntryWriter:
        """Writes to the targets."""
        return EntryWriter(self.ports, self.copies.windows, self.config)
