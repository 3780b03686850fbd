"""``ledger verify`` in virtual time: ranges, samples and the limit for bytes per second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bkctl.commands.check_progress import CheckProgress
from bkctl.commands.progress import Silence
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.ledger.write_set import is_in_write_set
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.limits import CopyRate, SharedPacer
from bkctl.runtime.replication.judge.check_scope import CheckScope, Sample
from bkctl.runtime.replication.judge.copies import CheckTotals, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.survey.checker import LedgerChecker
from tests.runtime.client.fakes import payload
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import RepairCluster, simulate

BOOKIES = ["b1", "b2", "b3"]


async def checker(cluster: RepairCluster, bytes_per_second: int | None = None) -> LedgerChecker:
    live = (await cluster.ports.registrations.snapshot()).live
    pacer = SharedPacer(cluster.clock, CopyRate(cluster.clock, bytes_per_second))
    return LedgerChecker(cluster.ports, live, ReplicationConfig(), pacer)


def test_only_the_entries_in_the_scope_are_read_and_both_numbers_are_counted() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES, 40: BOOKIES}, 2, 2, last_entry_id=99, length=1000))
        del cluster.copies["b1"][ledger_id][41]
        checks = await checker(cluster)

        part = await checks.check(ledger_id, CheckScope((EntryRange(39, 41),)))
        assert (part.entries, part.entries_total, part.copies_expected, part.copies_missing) == (3, 100, 6, 1)
        assert sorted(cluster.asked("b1") + cluster.asked("b2") + cluster.asked("b3")) == [39, 39, 40, 40, 41, 41]

        part = await checks.check(ledger_id, CheckScope((EntryRange(0, 40),)))
        assert (part.entries, part.is_clean) == (41, True)

        cluster.requests.clear()
        scope = CheckScope(sample=Sample(0.05, 1))
        totals = await checks.check_all(each_of([ledger_id]), lambda *_: None, scope)
        assert (5 <= totals.entries <= 17, totals.entries_total) == (True, 100)
        for bookie_id in BOOKIES:
            stored = [each for each in range(100) if is_in_write_set(each, BOOKIES.index(bookie_id), 3, 2)]
            of_segments = [[each for each in stored if each < 40], [each for each in stored if each >= 40]]
            ends = {each for part in of_segments for each in (part[0], part[-1])}
            assert ends <= set(cluster.asked(bookie_id))

    simulate(scenario)


def test_the_open_segment_can_be_left_out() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES, 5: BOOKIES}, 2, 2, state=LedgerState.OPEN)
        ledger_id = await cluster.store(metadata, entries=3)
        check = await (await checker(cluster)).check(ledger_id, CheckScope(has_open_end=False))
        assert (check.entries, check.last_entry_id, check.is_clean) == (5, 4, True)
        assert not any(request.kind == "read_lac" for request in cluster.requests)

    simulate(scenario)


def test_an_answer_that_is_not_a_clear_no_is_never_a_missing_copy() -> None:
    """Limbo, overload and silence prove nothing (bk#1197)."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=0, length=10))
        for status, state in (
            (Status.UNKNOWN_LEDGER_STATE, CopyState.FAILED),
            (Status.IO_ERROR, CopyState.FAILED),
            (Status.TOO_MANY_REQUESTS, CopyState.UNREACHABLE),
            (Status.TIMEOUT, CopyState.UNREACHABLE),
        ):
            cluster.rules.clear()
            cluster.refuse("read", "b2", status)
            check = await (await checker(cluster)).check(ledger_id)
            assert [(defect.bookie_id, defect.state) for defect in check.defects] == [("b2", state)]
            assert check.copies_missing == 0

    simulate(scenario)


def test_the_bytes_read_per_second_are_limited_over_all_ledgers() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=99, length=10)) for _ in range(20)]
        began_ns = cluster.clock.monotonic_ns()
        totals = await (await checker(cluster, 20_000)).check_all(each_of(ids), lambda *_: None)
        seconds = (cluster.clock.monotonic_ns() - began_ns) / 1e9
        assert totals.copies_good == 6000
        assert totals.bytes_read / seconds == pytest.approx(20_000, rel=0.1)

    simulate(scenario)


def test_the_time_left_is_that_of_the_bytes_and_not_of_the_ledgers() -> None:
    """Many small ledgers and a large one, which is met last: its bytes are known from the start."""
    entries, small, rate = 2000, 50, 10_000

    class Estimates(Silence):
        is_shown = True

        def __init__(self, now_s: Callable[[], float]) -> None:
            self._now_s = now_s
            self.seen: list[tuple[float, float]] = []

        def update(self, *_: Any, left_s: float | None = None, **__: Any) -> None:
            if left_s is not None:
                self.seen.append((self._now_s(), left_s))

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for last_entry_id in [1] * small + [entries - 1]:
            length = (last_entry_id + 1) * len(payload(0))
            await cluster.store(ledger({0: BOOKIES}, 2, 2, last_entry_id=last_entry_id, length=length))
        checks = await checker(cluster, rate)
        drawn = Estimates(lambda: cluster.clock.monotonic_ns() / 1e9)
        view = CheckProgress(drawn, cluster.ports, checks, rate)
        await view.measure(cluster.ports.ledgers, (), CheckScope())

        def take(_: LedgerCheck, totals: CheckTotals) -> None:
            view.totals = totals

        drawing = asyncio.create_task(view.draw())
        await checks.check_all(cluster.ports.ledgers.list_ids(), take)
        drawing.cancel()
        ended_s = cluster.clock.monotonic_ns() / 1e9
        assert view.ledgers == view.totals.ledgers == small + 1
        early = [(left_s, ended_s - now_s) for now_s, left_s in drawn.seen if now_s < ended_s / 2]
        assert len(early) >= 10, drawn.seen
        for shown_s, real_s in early:
            assert real_s / 2 <= shown_s <= 2.5 * real_s, "the metadata promises larger entries than these tiny ones"

    simulate(scenario)
