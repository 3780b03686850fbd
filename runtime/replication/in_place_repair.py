"""Writes bad copies again to the bookies that the metadata names. The metadata does not change.

The plan comes from a verification. ``in_place_plan`` has the rules, ``in_place_ledger`` the repair of one ledger.
Source: replication section 5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from runtime.client.ports import ClientPorts
from runtime.errors import LedgerNotFoundError
from runtime.metadata.pipeline import each_of
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.replication.byte_window import ByteWindow, for_each_bounded
from runtime.replication.check_scope import CheckScope
from runtime.replication.checker import LedgerChecker
from runtime.replication.config import ReplicationConfig
from runtime.replication.copies import BATCH_ENTRIES, CopyReader
from runtime.replication.copy_rate import CopyRate
from runtime.replication.fragments import EntryRange, joined
from runtime.replication.in_place_ledger import InPlaceTools, LedgerInPlaceRepair
from runtime.replication.in_place_plan import (
    InPlacePlan,
    InPlaceReport,
    LedgerInPlace,
    LedgerRewritten,
    LeftCopies,
    LeftReason,
    plan_in_place,
)
from runtime.replication.live_bookies import LiveBookies
from runtime.replication.metadata_outage import MetadataOutage, OutageWait
from runtime.replication.recovery_run import RecoveryProgress


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
                    ledgers.append(plan_in_place(check, stored.value, stored.version, registrations.writable))
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
        ports, config = tools.ports, tools.config
        live_bookies = LiveBookies(ports.registrations, ports.clock, config.registration_wait_s)
        window = ByteWindow(config.bytes_in_flight_max, max(1, config.entries_in_flight_max // BATCH_ENTRIES))
        self._tools = InPlaceTools(
            ports=ports,
            locks=tools.locks,
            config=config,
            rate=tools.rate,
            window=window,
            copies=CopyReader(ports.bookies, ports.clock, window, config, live_bookies.is_live),
            live_bookies=live_bookies,
            outage=OutageWait(
                ports.registrations.snapshot, ports.clock, config.metadata_outage_max_s, self._note_outage
            ),
            unusable={},
            on_written=self._count,
        )
        self._plan = plan
        self._on_outage = tools.on_outage
        self._on_progress = on_progress
        self._results: list[LedgerRewritten] = []
        self._current: dict[int, None] = {}
        self._copies_written = 0
        self._bytes_written = 0

    async def run(self) -> tuple[LedgerRewritten, ...]:
        """Repair all ledgers."""
        await self._tools.outage.outlast(self._tools.live_bookies.refresh)
        await for_each_bounded(self._ledgers(), self._repair_one, self._tools.config.ledgers_in_parallel)
        return tuple(sorted(self._results, key=lambda result: result.ledger_id))

    async def _ledgers(self) -> AsyncIterator[LedgerInPlace]:
        for ledger in self._plan.to_write:
            yield ledger

    async def _repair_one(self, planned: LedgerInPlace) -> None:
        self._current[planned.ledger_id] = None
        try:
            repair = LedgerInPlaceRepair(self._tools, planned)
            self._results.append(await self._tools.outage.outlast(repair.run))
        finally:
            del self._current[planned.ledger_id]
        self._report()

    def _note_outage(self, outage: MetadataOutage) -> None:
        self._tools.live_bookies.note_outage(is_over=outage.is_over)
        self._tools.copies.note_outage()
        self._tools.unusable.clear()
        self._on_outage(outage)

    def _count(self, copies: int, size_bytes: int) -> None:
        """Copies were written and read back."""
        self._copies_written += copies
        self._bytes_written += size_bytes
        self._report()

    def _report(self) -> None:
        self._on_progress(
            RecoveryProgress(
                ledgers_done=len(self._results),
                ledgers_total=len(self._plan.to_write),
                ledgers_failed=sum(bool(result.left) for result in self._results),
                entries_copied=self._copies_written,
                entries_planned=self._plan.copies,
                bytes_copied=self._bytes_written,
                bytes_planned=self._plan.bytes_estimate,
                current_ledgers=tuple(self._current),
            )
        )
