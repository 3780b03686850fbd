"""Copying away all that failed bookies hold: plan over all ledgers, then ledger by ledger, then a report.

Source: replication sections 6 and 15.1. Unlike Java's `recover` it takes the replication lock of every ledger, bounds
what is in flight, verifies copies before the metadata names them, and goes on behind ledgers that cannot be repaired.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence

import msgspec

from runtime.client.ports import ClientPorts
from runtime.errors import BookieError, BookieNotFoundError, RefusedError
from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set
from runtime.metadata.cookies import CookieStore
from runtime.metadata.registration import RegistrationClient
from runtime.metadata.replication_lock import ReplicationLocks
from runtime.metadata.store import Versioned
from runtime.replication.byte_window import ByteWindow
from runtime.replication.config import ReplicationConfig
from runtime.replication.copies import CopyReader
from runtime.replication.fragments import Fragment, fragments_naming, stripe_count
from runtime.replication.ledger_repair import (
    FailureReason,
    LedgerFailure,
    LedgerRepair,
    LedgerRepaired,
    RepairTools,
)
from runtime.replication.live_bookies import LiveBookies, TargetChooser
from runtime.replication.parallel import for_each_bounded
from runtime.replication.replicator import Replicator, SourceDefect

PROGRESS_INTERVAL_NS = 100_000_000
MEBIBYTE = 1024 * 1024


class FragmentPlan(msgspec.Struct, frozen=True):
    """One segment that names a failed bookie.

    ``entries`` to copy and their range are None in an open segment: its end is known when it is closed.
    ``surviving_copies``: live members left for the worst entry to copy; 0 means that entries may be lost.
    """

    first_entry_id: int
    last_entry_id: int | None
    ensemble: tuple[str, ...]
    failed_bookies: tuple[str, ...]
    entries: int | None
    surviving_copies: int


class LedgerPlan(msgspec.Struct, frozen=True):
    """One ledger that names a failed bookie. ``needs_fencing``: it will be fenced and closed first."""

    ledger_id: int
    ledger_state: str
    needs_fencing: bool
    fragments: tuple[FragmentPlan, ...]

    @property
    def surviving_copies(self) -> int:
        """Of the worst fragment."""
        return min(fragment.surviving_copies for fragment in self.fragments)


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery would do. Making it writes nothing anywhere.

    ``ledgers`` are in the order of work: fewest surviving copies first, then the newest. ``unreadable`` have metadata
    that nobody can read: they may name the bookies, and stay as they are. ``targets``: writable bookies to copy to.
    """

    bookie_ids: tuple[str, ...]
    ledgers_scanned: int
    ledgers: tuple[LedgerPlan, ...]
    unreadable: tuple[LedgerFailure, ...]
    targets: tuple[str, ...]

    @property
    def fragments(self) -> int:
        """Segments to rewrite."""
        return sum(len(ledger.fragments) for ledger in self.ledgers)

    @property
    def entries(self) -> int:
        """Copies to make, as far as known: open segments are not counted."""
        return sum(fragment.entries or 0 for ledger in self.ledgers for fragment in ledger.fragments)


class RecoveryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a running recovery."""

    ledgers_done: int
    ledgers_total: int
    ledgers_failed: int
    entries_copied: int
    entries_planned: int
    bytes_copied: int
    current_ledgers: tuple[int, ...]
    """Ledgers under way, oldest first: the first one is what holds the run up."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery did. ``failures``: every ledger that still needs the failed bookies, with range and reason."""

    bookie_ids: tuple[str, ...]
    ledgers: int
    """Ledgers of the plan that were looked at again."""
    ledgers_repaired: int
    """Ledgers of which at least one segment was rewritten, or which were closed."""
    ledgers_closed: int
    """Open ledgers that were fenced and closed."""
    fragments: int
    entries: int
    bytes_copied: int
    seconds: float
    failures: tuple[LedgerFailure, ...]
    defects: tuple[SourceDefect, ...]
    """Bad copies found on surviving bookies. They were not used, and are still there: run a verification."""

    @property
    def mebibytes_per_second(self) -> float:
        """Verified bytes copied over the time of the whole run."""
        return self.bytes_copied / MEBIBYTE / self.seconds if self.seconds > 0 else 0.0

    @property
    def failures_by_reason(self) -> dict[str, tuple[int, ...]]:
        """Reason to ascending ledger ids, each id once."""
        grouped: dict[str, set[int]] = {}
        for failure in self.failures:
            grouped.setdefault(failure.reason.value, set()).add(failure.ledger_id)
        return {reason: tuple(sorted(ledger_ids)) for reason, ledger_ids in sorted(grouped.items())}

    @property
    def is_complete(self) -> bool:
        """Nothing that was planned is left."""
        return not self.failures


class BookieRecovery:
    """Plans and runs recoveries of failed bookies."""

    def __init__(
        self,
        ports: ClientPorts,
        registration: RegistrationClient,
        cookies: CookieStore,
        locks: ReplicationLocks,
        config: ReplicationConfig,
    ) -> None:
        self._ports = ports
        self._registration = registration
        self._cookies = cookies
        self._locks = locks
        self._config = config

    async def require_down(self, bookie_ids: Collection[str], on_wait: Callable[[str], None] | None = None) -> None:
        """Return when none of the bookies is registered; RefusedError if one serves, or stays registered.

        The session of a killed bookie outlives it for some seconds: a registered bookie that gives no answer is waited
        for, up to ``registration_wait_s``; ``on_wait`` is told its id once. One that answers is refused at once.
        """
        deadline_ns = self._ports.clock.monotonic_ns() + int(self._config.registration_wait_s * 1e9)
        told: set[str] = set()
        while True:
            registrations = await self._registration.snapshot()
            registered = sorted(set(bookie_ids).intersection([*registrations.writable, *registrations.read_only]))
            if not registered:
                return
            for bookie_id in registered:
                if await self._answers(bookie_id):
                    raise RefusedError(f"bookie {bookie_id} is up and serving; stop it first")
                if on_wait is not None and bookie_id not in told:
                    told.add(bookie_id)
                    on_wait(bookie_id)
            if self._ports.clock.monotonic_ns() >= deadline_ns:
                waited = f"after {self._config.registration_wait_s:g} s"
                raise RefusedError(f"bookie {registered[0]} does not answer but is still registered {waited}")
            await self._ports.clock.sleep(0.5)

    async def _answers(self, bookie_id: str) -> bool:
        try:
            await self._ports.bookies.info(bookie_id)
        except BookieError:
            return False
        return True

    async def plan(self, bookie_ids: Collection[str], ledger_ids: Collection[int] | None = None) -> RecoveryPlan:
        """``scan``, and BookieNotFoundError for a bookie without cookie and registration that no ledger names.

        Such an id is most likely misspelt.
        """
        plan = await self.scan(bookie_ids, ledger_ids)
        named = {bookie for ledger in plan.ledgers for fragment in ledger.fragments for bookie in fragment.ensemble}
        await self._require_known(frozenset(bookie_ids) - named)
        return plan

    async def scan(self, bookie_ids: Collection[str], ledger_ids: Collection[int] | None = None) -> RecoveryPlan:
        """Find all ledgers that name any of the bookies, by one pass over the metadata of all ledgers.

        ``ledger_ids`` limits the plan to some of them.
        """
        failed = frozenset(bookie_ids)
        plans: list[LedgerPlan] = []
        unreadable: list[LedgerFailure] = []
        registrations = await self._registration.snapshot()
        live = frozenset([*registrations.writable, *registrations.read_only]) - failed
        scanned = 0
        async for ledger_id, found in self._ports.ledgers.read_all(window=self._config.metadata_reads_in_flight_max):
            scanned += 1
            if ledger_ids is not None and ledger_id not in ledger_ids:
                continue
            if not isinstance(found, Versioned):
                unreadable.append(LedgerFailure(ledger_id, FailureReason.METADATA_UNREADABLE, (), str(found)))
                continue
            if not failed.isdisjoint(found.value.bookies()):
                plans.append(plan_ledger(ledger_id, found.value, failed, live))
        return RecoveryPlan(
            bookie_ids=tuple(sorted(failed)),
            ledgers_scanned=scanned,
            ledgers=tuple(sorted(plans, key=lambda plan: (plan.surviving_copies, -plan.ledger_id))),
            unreadable=tuple(sorted(unreadable, key=lambda failure: failure.ledger_id)),
            targets=tuple(sorted(set(registrations.writable) - failed)),
        )

    async def _require_known(self, bookie_ids: Collection[str]) -> None:
        for bookie_id in sorted(bookie_ids):
            registrations = await self._registration.snapshot()
            if bookie_id in {*registrations.writable, *registrations.read_only}:
                continue
            if await self._cookies.find(bookie_id) is None:
                raise BookieNotFoundError(f"bookie {bookie_id} is unknown: no cookie, and no ledger names it")

    async def run(
        self, plan: RecoveryPlan, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> RecoveryReport:
        """Carry out a plan; every ledger is looked at afresh. Safe to interrupt and to run again.

        ``on_progress`` is called at most ten times a second, and once at the end. The bookies must be down: call
        ``require_down`` first. Raises MetadataUnavailableError when the metadata store goes away.
        """
        return await _RecoveryRun(self._ports, self._registration, self._locks, self._config, plan, on_progress).run()


class _RecoveryRun:
    """The state of carrying out one plan."""

    def __init__(
        self,
        ports: ClientPorts,
        registration: RegistrationClient,
        locks: ReplicationLocks,
        config: ReplicationConfig,
        plan: RecoveryPlan,
        on_progress: Callable[[RecoveryProgress], None] | None,
    ) -> None:
        self._ports = ports
        self._config = config
        self._plan = plan
        self._failed = frozenset(plan.bookie_ids)
        self._on_progress = on_progress
        self._progress_at_ns = 0
        self._live_bookies = LiveBookies(registration, ports.clock)
        window = ByteWindow(config.bytes_in_flight_max, config.entries_in_flight_max)
        copies = CopyReader(ports.bookies, ports.clock, window, config, self._live_bookies.is_live)
        self._repair = LedgerRepair(
            RepairTools(
                ports=ports,
                locks=locks,
                replicator=Replicator(ports, copies, window, config, self._count_copied),
                live_bookies=self._live_bookies,
                targets=TargetChooser(self._live_bookies, ports.suspects, ports.clock),
                config=config,
            )
        )
        self._results: list[LedgerRepaired] = []
        self._ledgers_failed = 0
        self._entries_planned = plan.entries
        self._current: dict[int, None] = {}
        self._entries_copied = 0
        self._bytes_copied = 0

    async def run(self) -> RecoveryReport:
        started_ns = self._ports.clock.monotonic_ns()
        for bookie_id in self._failed:
            self._ports.suspects.add(bookie_id)  # so that closing a ledger does not choose them again
        await self._live_bookies.refresh()
        await for_each_bounded(self._ledger_ids(), self._repair_one, self._config.ledgers_in_parallel)
        self._report_progress(is_last=True)
        seconds = (self._ports.clock.monotonic_ns() - started_ns) / 1e9
        return recovery_report(self._plan, self._results, seconds)

    async def _ledger_ids(self) -> AsyncIterator[int]:
        for ledger in self._plan.ledgers:
            yield ledger.ledger_id

    async def _repair_one(self, ledger_id: int) -> None:
        self._current[ledger_id] = None
        try:
            result = await self._repair.repair(ledger_id, self._failed)
            self._results.append(result)
            self._ledgers_failed += bool(result.failures)
        finally:
            del self._current[ledger_id]
        self._report_progress()

    def _count_copied(self, entries: int, bytes_copied: int) -> None:
        self._entries_copied += entries
        self._bytes_copied += bytes_copied
        self._report_progress()

    def _report_progress(self, *, is_last: bool = False) -> None:
        if self._on_progress is None:
            return
        now_ns = self._ports.clock.monotonic_ns()
        if not is_last and now_ns - self._progress_at_ns < PROGRESS_INTERVAL_NS:
            return
        self._progress_at_ns = now_ns
        self._on_progress(
            RecoveryProgress(
                ledgers_done=len(self._results),
                ledgers_total=len(self._plan.ledgers),
                ledgers_failed=self._ledgers_failed,
                entries_copied=self._entries_copied,
                entries_planned=self._entries_planned,
                bytes_copied=self._bytes_copied,
                current_ledgers=tuple(self._current),
            )
        )


def plan_ledger(ledger_id: int, metadata: LedgerMetadata, failed: frozenset[str], live: frozenset[str]) -> LedgerPlan:
    """What has to be done to one ledger that names ``failed`` bookies; ``live`` are the registered others. Pure."""
    fragments = fragments_naming(metadata, failed)
    return LedgerPlan(
        ledger_id=ledger_id,
        ledger_state=metadata.state.name.lower(),
        needs_fencing=any(fragment.is_open for fragment in fragments),
        fragments=tuple(_plan_fragment(metadata, fragment, failed, live) for fragment in fragments),
    )


def _plan_fragment(
    metadata: LedgerMetadata, fragment: Fragment, failed: frozenset[str], live: frozenset[str]
) -> FragmentPlan:
    sizes = (metadata.ensemble_size, metadata.write_quorum_size)
    return FragmentPlan(
        first_entry_id=fragment.entries.first_entry_id,
        last_entry_id=None if fragment.is_open else fragment.entries.last_entry_id,
        ensemble=fragment.ensemble,
        failed_bookies=tuple(sorted(failed.intersection(fragment.ensemble))),
        entries=None
        if fragment.is_open
        else sum(stripe_count(fragment.entries, index, *sizes) for index in fragment.bookie_indexes),
        surviving_copies=_surviving_copies(metadata, fragment, live),
    )


def _surviving_copies(metadata: LedgerMetadata, fragment: Fragment, live: frozenset[str]) -> int:
    """Live copies of the worst entry that has one at an index at issue; Qw when there is no such entry."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    used = size if fragment.is_open else min(size, fragment.entries.count)
    first = fragment.entries.first_entry_id
    counts = [
        len({fragment.ensemble[index] for index in indexes} & live)
        for indexes in (write_set(entry_id, size, quorum) for entry_id in range(first, first + used))
        if not set(indexes).isdisjoint(fragment.bookie_indexes)
    ]
    return min(counts, default=quorum)


def recovery_report(plan: RecoveryPlan, results: Sequence[LedgerRepaired], seconds: float) -> RecoveryReport:
    """Sum up the results of a run. Pure."""
    failures = [*plan.unreadable, *(failure for result in results for failure in result.failures)]
    return RecoveryReport(
        bookie_ids=plan.bookie_ids,
        ledgers=len(results),
        ledgers_repaired=sum(result.fragments > 0 or result.was_closed for result in results),
        ledgers_closed=sum(result.was_closed for result in results),
        fragments=sum(result.fragments for result in results),
        entries=sum(result.entries for result in results),
        bytes_copied=sum(result.bytes_copied for result in results),
        seconds=seconds,
        failures=tuple(sorted(failures, key=lambda failure: failure.ledger_id)),
        defects=tuple(
            sorted(
                (defect for result in results for defect in result.defects),
                key=lambda defect: (defect.ledger_id, defect.bookie_id),
            )
        ),
    )
