"""Writes bad copies again to the bookies that the metadata names, or moves their stripes where that is not safe.

The plan comes from a verification. ``in_place_plan`` has the rules, ``in_place_ledger`` the repair of one ledger.
Source: replication section 5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from runtime.client.ports import ClientPorts
from runtime.errors import LedgerNotFoundError
from runtime.metadata.outage import MetadataOutage, OutageWait
from runtime.metadata.pipeline import each_of
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.replication.config import ReplicationConfig
from runtime.replication.copy.rate import CopyRate
from runtime.replication.copy.tasks import for_each_bounded
from runtime.replication.judge.bad_copies import (
    InPlacePlan,
    InPlaceReport,
    LedgerInPlace,
    LedgerRewritten,
    LeftCopies,
    LeftReason,
    bad_records_on,
    plan_in_place,
)
from runtime.replication.judge.check_scope import CheckScope
from runtime.replication.judge.fragments import EntryRange, joined
from runtime.replication.judge.targets import PlacementForecast
from runtime.replication.policy import CopyPace, Policy
from runtime.replication.run.engine import Engine
from runtime.replication.run.in_place_ledger import LedgerInPlaceRepair, in_place_tools
from runtime.replication.run.ledgers import RecoveryProgress
from runtime.replication.survey.checker import LedgerChecker


@dataclasses.dataclass(frozen=True)
class InPlaceRepair:
    """Verifies ledgers, and repairs what it found. ``rate`` limits the bytes that are read and written."""

    ports: ClientPorts
    locks: ReplicationLocks
    config: ReplicationConfig
    rate: CopyRate
    on_outage: Callable[[MetadataOutage], None]

    @functools.cached_property
    def outage(self) -> OutageWait:
        """Waits for the metadata store while ledgers are verified. Callers that build on this class may use it too."""
        probe, wait_max_s = self.ports.registrations.snapshot, self.config.metadata_outage_max_s
        return OutageWait(probe, self.ports.clock, wait_max_s, self.on_outage)

    async def plan(
        self,
        ledger_ids: Sequence[int],
        ranges: Mapping[int, Sequence[EntryRange]],
        on_progress: Callable[[int, int], None],
    ) -> InPlacePlan:
        """Verify these ledgers, or only ``ranges`` of those that have some; MetadataOutageError.

        ``on_progress`` gets the ledgers done and the bytes read.
        """
        ledgers: list[LedgerInPlace] = []
        deleted: list[int] = []
        bytes_read = 0
        registrations = await self.outage.outlast(self.ports.registrations.snapshot)
        checker = LedgerChecker(self.ports, registrations.live, self.config, self.rate)
        survey = await self.outage.outlast(lambda: self.ports.placement.survey(registrations.writable))
        forecast = PlacementForecast(survey, (), self.ports.clock.random)

        async def plan_one(ledger_id: int) -> None:
            nonlocal bytes_read
            scope = CheckScope(has_open_end=False)
            if ledger_id in ranges:
                scope = CheckScope(joined(ranges[ledger_id]), has_open_end=False)
            check = await self.outage.outlast(lambda: checker.check(ledger_id, scope))
            bytes_read += check.bytes_read
            try:
                if check.is_deleted:
                    deleted.append(ledger_id)
                elif check.problem is not None:
                    left = LeftCopies(ledger_id, LeftReason.METADATA_UNREADABLE, detail=check.problem)
                    ledgers.append(LedgerInPlace(ledger_id=ledger_id, left=(left,)))
                else:
                    stored = await self.outage.outlast(lambda: self.ports.ledgers.read(ledger_id))
                    bkctl = await self.outage.outlast(
                        lambda: self.ports.registrations.running_bkctl(bad_records_on(check))
                    )
                    writable = registrations.writable
                    ledgers.append(plan_in_place(check, stored.value, stored.version, writable, bkctl, forecast.of))
            except LedgerNotFoundError:
                deleted.append(ledger_id)
            on_progress(len(ledgers) + len(deleted), bytes_read)

        await for_each_bounded(each_of(ledger_ids), plan_one, self.config.ledgers_in_parallel)
        return InPlacePlan(tuple(sorted(ledgers, key=lambda ledger: ledger.ledger_id)), tuple(sorted(deleted)))

    async def run(self, plan: InPlacePlan, on_progress: Callable[[RecoveryProgress], None]) -> InPlaceReport:
        """Carry out a plan. Waits during an outage of the metadata store; MetadataOutageError if it is too long."""
        started_ns = self.ports.clock.monotonic_ns()
        results = await _InPlaceRun(self, plan, on_progress).run()
        return InPlaceReport(plan, results, (self.ports.clock.monotonic_ns() - started_ns) / 1e9)


class _InPlaceRun:
    """State of one run."""

    def __init__(
        self, tools: InPlaceRepair, plan: InPlacePlan, on_progress: Callable[[RecoveryProgress], None]
    ) -> None:
        pace = CopyPace(bytes_per_s=tools.rate.bytes_per_second)
        policy = Policy(config=tools.config, pace=pace)
        self._engine = Engine(tools.ports, tools.ports.registrations, tools.locks, policy, on_outage=self._note_outage)
        self._tools = in_place_tools(tools.ports, self._engine, tools.locks, tools.config, self._count)
        self._plan = plan
        self._on_outage = tools.on_outage
        self._on_progress = on_progress
        self._results: list[LedgerRewritten] = []
        self._current: dict[int, None] = {}
        self._copies_done = 0
        self._bytes_written = 0

    async def run(self) -> tuple[LedgerRewritten, ...]:
        """Repair all ledgers."""
        await self._tools.outage.outlast(self._tools.live_bookies.refresh)
        await for_each_bounded(self._ledgers(), self._repair_one, self._tools.config.ledgers_in_parallel)
        return tuple(sorted(self._results, key=lambda result: result.ledger_id))

    async def _ledgers(self) -> AsyncIterator[LedgerInPlace]:
        for ledger in self._plan.to_repair:
            yield ledger

    async def _repair_one(self, planned: LedgerInPlace) -> None:
        self._current[planned.ledger_id] = None
        try:
            repair = LedgerInPlaceRepair(self._tools, planned)
            result = await self._tools.outage.outlast(repair.run)
            self._results.append(result)
            self._copies_done += result.copies_moved
        finally:
            del self._current[planned.ledger_id]
        self._report()

    def _note_outage(self, outage: MetadataOutage) -> None:
        self._tools.unusable.clear()
        self._on_outage(outage)

    def _count(self, copies: int, size_bytes: int) -> None:
        """Copies were written and read back."""
        self._copies_done += copies
        self._bytes_written += size_bytes
        self._report()

    def _report(self) -> None:
        self._on_progress(
            RecoveryProgress(
                ledgers_done=len(self._results),
                ledgers_total=len(self._plan.to_repair),
                ledgers_failed=sum(bool(result.left) for result in self._results),
                entries_copied=self._copies_done,
                entries_planned=self._plan.copies,
                bytes_copied=self._bytes_written + self._engine.bytes_copied,
                bytes_planned=self._plan.bytes_estimate,
                current_ledgers=tuple(self._current),
            )
        )
