"""Moves all ledgers away from bookies that leave, while they serve or after they died. Source: replication 15.2.

Copies are made while a live bookie still serves, so redundancy never drops. Open ledgers wait for their writers, which
move off a read-only bookie with their next add, unless the operator agreed to close them. If all the bookies are dead,
ledgers whose writers do not move on are closed, as in any recovery. Every pass checks that the live bookies are still
read-only. The end is a scan of all ledgers that finds no reference.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import ConflictError, LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.ledger.pulsar_owner import topic_of_broker
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.metadata.store import Node
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.close.given_up_record import GivenUpRecord
from bkctl.runtime.replication.config import OpenLedgers
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.plan.recovery_plan import RecoveryPlan
from bkctl.runtime.replication.plan.store import RecoveryJob
from bkctl.runtime.replication.run.ledgers import RecoveryProgress, most_common_reason
from bkctl.runtime.replication.run.recovery import BookieRecovery, RecoveryReport
from bkctl.runtime.replication.turn.bookies import LiveBookies

POLL_S = 0.5
PASSES_MAX = 3
"""Maximum passes that find new work: a ledger created during the first one may reference a bookie too."""
OPEN_POLL_S = 2.0


class LeavingBookies(msgspec.Struct, frozen=True):
    """Registrations of bookies that leave, at one moment. A bookie that changes its mode counts as writable."""

    writable: tuple[str, ...]
    read_only: tuple[str, ...]
    down: tuple[str, ...]

    @property
    def serving(self) -> tuple[str, ...]:
        """Those that are registered."""
        return tuple(sorted(self.writable + self.read_only))

    @property
    def not_writable(self) -> tuple[str, ...]:
        """Those that accept no writes."""
        return self.read_only + self.down


class ModeWatch:
    """Watches the registrations of bookies that leave."""

    def __init__(
        self, registration: RegistrationClient, clock: Clock, outage: OutageWait, return_wait_s: float = 0.0
    ) -> None:
        """``return_wait_s``: see ``LiveBookies``."""
        self._live_bookies = LiveBookies(registration, clock, return_wait_s)
        self._clock = clock
        self._outage = outage

    async def read(self, bookie_ids: Collection[str]) -> LeavingBookies:
        """How the bookies are registered now."""
        found = await self._outage.outlast(partial(self._live_bookies.refresh, 0))
        writable = frozenset(bookie_ids).intersection(found.writable)
        read_only = frozenset(bookie_ids).intersection(found.read_only) - writable
        down = frozenset(bookie_ids) - writable - read_only
        return LeavingBookies(tuple(sorted(writable)), tuple(sorted(read_only)), tuple(sorted(down)))

    async def wait_until_none(
        self,
        state: Callable[[LeavingBookies], Sequence[str]],
        bookie_ids: Collection[str],
        wait_s: float,
        on_wait: Callable[[Sequence[str]], None] = lambda _: None,
        on_left: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> Sequence[str]:
        """Wait until none of the bookies is in this state; those that still are when the time is over.

        ``on_wait`` is called once with those that are in it at first, if any; ``on_left`` whenever they have changed.
        """
        deadline_ns = self._clock.monotonic_ns() + int(wait_s * 1e9)
        shown: Sequence[str] = ()
        while (left := state(await self.read(bookie_ids))) and self._clock.monotonic_ns() < deadline_ns:
            if not shown:
                on_wait(left)
            if left != shown:
                on_left(left)
                shown = left
            await self._clock.sleep(POLL_S)
        return left


class OpenLedger(msgspec.Struct, frozen=True):
    """A ledger whose open last segment references a leaving bookie. ``created_ms`` None: unknown.

    ``topic``: the Pulsar topic whose broker closes the ledger when the topic is unloaded; None if there is none.
    """

    ledger_id: int
    owner: str | None
    created_ms: int | None
    topic: str | None = None


class DrainResult(msgspec.Struct, frozen=True):
    """What was done. ``last_scan``: all ledgers that still reference the bookies; ``open_ledgers``: the open ones."""

    recoveries: tuple[RecoveryReport, ...]
    last_scan: RecoveryPlan
    open_ledgers: tuple[OpenLedger, ...] = ()


class DrainHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Calls during a drain or a decommission, and its job. ``before_scan``: before each scan that may be the last one.

    ``job``: see ``RecoveryJob``. ``clear_marks``: once no ledger references the bookies. ``keep_cookie``: with each
    cookie, before it is deleted; if it raises RefusedError, the cookie stays. ``losses``: where accepted losses are
    noted, once they are proven.
    """

    on_progress: Callable[[RecoveryProgress], None] | None = None
    on_open: Callable[[Sequence[OpenLedger]], None] = lambda _: None
    before_scan: Callable[[], Awaitable[None]] | None = None
    job: RecoveryJob | None = None
    clear_marks: Callable[[], Awaitable[None]] | None = None
    keep_cookie: Callable[[str, Node], None] = lambda *_: None
    losses: Callable[[], GivenUpRecord] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drain:
    """Drains the bookies of one plan."""

    recovery: BookieRecovery
    watch: ModeWatch
    ports: ClientPorts
    hooks: DrainHooks
    live: frozenset[str]
    """Bookies that serve; the others are down and never asked."""
    accepted: frozenset[int]
    """Ledgers to leave alone, because their loss was accepted."""

    async def run(self, plan: RecoveryPlan, wait_s: float) -> DrainResult:
        """Carry out a plan, and scan until nothing is left or nothing more can be done.

        ``wait_s``: how long to wait for the writers of open ledgers. ConflictError when a live bookie is writable
        again. RefusedError while Pulsar migrates its metadata. Waits during an outage; MetadataOutageError.
        """
        ids = plan.bookie_ids
        recoveries: list[RecoveryReport] = []
        still_open: tuple[OpenLedger, ...] = ()
        scanned = plan if plan.ledgers else await self.scan(ids)
        for _ in range(PASSES_MAX):
            todo = scanned.without(self.accepted)
            if not todo.ledgers:
                break
            report = await self._run(todo)
            recoveries.append(report)
            is_complete = _is_complete_but_for_open(report)
            if _open_ids(report) and self.recovery.policy.open_ledgers is OpenLedgers.WAIT:
                later, is_moved, still_open = await self._wait_for_writers(todo, report, wait_s)
                recoveries += later
                is_complete = is_complete and is_moved and not still_open
            elif _open_ids(report):
                still_open, is_complete = await self.open_ledgers(_open_ids(report), ids), False
            scanned = await self.scan(ids)
            if not is_complete:
                break
        return DrainResult(tuple(recoveries), scanned, still_open)

    async def scan(self, bookie_ids: Collection[str]) -> RecoveryPlan:
        """Find current references to the bookies, with ``before_scan`` repeated after each outage."""

        async def scan() -> RecoveryPlan:
            if self.hooks.before_scan is not None:
                await self.hooks.before_scan()
            found = await self.recovery.scan(bookie_ids, await self._unreachable(bookie_ids))
            return msgspec.structs.replace(found, is_drain=bool(self.live))

        return await self.recovery.outage.outlast(scan)

    async def open_ledgers(self, ledger_ids: Collection[int], bookie_ids: Collection[str]) -> tuple[OpenLedger, ...]:
        """Those of the ledgers whose open last segment still references one of the bookies."""
        found = []
        for ledger_id in ledger_ids:
            try:
                stored = await self.recovery.outage.outlast(partial(self.ports.ledgers.read, ledger_id))
            except (LedgerNotFoundError, MetadataFormatError):
                continue
            metadata = stored.value
            if metadata.state is LedgerState.OPEN and not set(bookie_ids).isdisjoint(metadata.last_segment.ensemble):
                labels = dict(metadata.custom_metadata)
                created_ms = metadata.created_ms(stored.ctime_ms)
                found.append(OpenLedger(ledger_id, owner_of(labels), created_ms, topic_of_broker(labels)))
        return tuple(found)

    async def _run(self, todo: RecoveryPlan) -> RecoveryReport:
        """One pass; a bookie that died meanwhile is no longer asked."""
        todo = msgspec.structs.replace(todo, unreachable=await self._unreachable(todo.bookie_ids))
        return await self.recovery.run(todo, self.hooks.on_progress, job=self.hooks.job)

    async def _wait_for_writers(
        self, todo: RecoveryPlan, first: RecoveryReport, wait_s: float
    ) -> tuple[list[RecoveryReport], bool, tuple[OpenLedger, ...]]:
        """Move each ledger when its writer has left the bookies, until all have, or the time is over.

        ``first``: the report of the pass that left the open ledgers. Returns the later reports, whether all moves
        succeeded, and the ledgers that are still open.
        """
        clock, hooks = self.ports.clock, self.hooks
        deadline_ns = clock.monotonic_ns() + int(wait_s * 1e9)
        reports: list[RecoveryReport] = []
        is_moved = True
        waiting = tuple(_open_ids(first))
        while True:
            still_open = await self.open_ledgers(waiting, todo.bookie_ids)
            open_ids = {each.ledger_id for each in still_open}
            ready = set(waiting) - open_ids
            if ready:
                others = {ledger.ledger_id for ledger in todo.ledgers} - ready
                some = msgspec.structs.replace(todo.without(others), unreadable=())
                report = await self._run(some)
                reports.append(report)
                is_moved = is_moved and _is_complete_but_for_open(report)
                waiting = tuple(sorted({*open_ids, *_open_ids(report)}))
                continue
            if not waiting or clock.monotonic_ns() >= deadline_ns:
                return reports, is_moved, still_open
            hooks.on_open(still_open)
            if hooks.on_progress is not None:
                left_s = (deadline_ns - clock.monotonic_ns()) / 1e9
                hooks.on_progress(_while_waiting(todo, [first, *reports], len(still_open), left_s))
            await self._unreachable(todo.bookie_ids)
            await clock.sleep(OPEN_POLL_S)

    async def _unreachable(self, bookie_ids: Collection[str]) -> tuple[str, ...]:
        """The bookies that are down; ConflictError if one that serves accepts writes, RefusedError in a migration."""
        await self.recovery.outage.outlast(self.ports.ledgers.migration.require_none)
        found = await self.watch.read(self.live)
        if found.writable:
            raise ConflictError(
                f"bookie {found.writable[0]} is writable again, so new ledgers may be on it: make it read-only "
                f"(bkctl bookie set-mode read-only {found.writable[0]}) and run the command again"
            )
        return tuple(sorted(frozenset(bookie_ids) - self.live | set(found.down)))


def _open_ids(report: RecoveryReport) -> list[int]:
    return sorted({failure.ledger_id for failure in report.failures if failure.reason is FailureReason.OPEN})


def _while_waiting(
    todo: RecoveryPlan, reports: Sequence[RecoveryReport], open_ledgers: int, left_s: float
) -> RecoveryProgress:
    """The progress of a pass that only waits for the writers of open ledgers."""
    failures = (failure for report in reports for failure in report.failures)
    failed = {each.ledger_id: each.reason for each in failures if each.reason is not FailureReason.OPEN}
    return RecoveryProgress(
        ledgers_done=todo.totals.ledgers - open_ledgers,
        ledgers_total=todo.totals.ledgers,
        ledgers_failed=len(failed),
        why_failed=most_common_reason(Counter(failed.values())),
        entries_copied=sum(report.entries for report in reports),
        bytes_copied=sum(report.bytes_copied for report in reports),
        bytes_planned=todo.totals.bytes_to_copy,
        waiting_for_writers=open_ledgers,
        writers_wait_s=left_s,
    )


def _is_complete_but_for_open(report: RecoveryReport) -> bool:
    return all(failure.reason is FailureReason.OPEN for failure in report.failures)
