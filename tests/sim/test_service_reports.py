"""What a whole bookie reports to systemd, in virtual time: health, mode, and the order of the messages."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import pytest

from bkctl.runtime.bookie.admin.mode_routes import mode_answer
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.boot.service_reports import ServiceReports
from bkctl.runtime.bookie.boot.trouble_watch import HANG_S, LaneWatch
from bkctl.runtime.bookie.metrics.catalogue import bookie_metrics
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.bookie.troubles import Trouble
from bkctl.storage.errors import JournalFullError
from bkctl.storage.operator_mode import OperatorMode
from tests.crash.model_disk import Mode
from tests.runtime.bookie.metrics.test_exposition import samples_of
from tests.sim.loop import run_simulated
from tests.sim.whole_bookie import CONFIG, WholeBookie
from tests.sim.workers import LoopWorkers

P = ParamSpec("P")
T = TypeVar("T")

WATCHDOG_S = 20.0


class RecordingManager:
    """A service manager that keeps every message, with the virtual time of its arrival."""

    is_present = True

    def __init__(self, watchdog_s: float | None = WATCHDOG_S) -> None:
        self.watchdog_s = watchdog_s
        self.messages: list[tuple[float, dict[str, str | int]]] = []
        self.is_registered: Callable[[], bool] = bool
        self.was_registered: list[bool] = []
        """At each READY."""

    def notify(self, **fields: str | int) -> None:
        self.messages.append((asyncio.get_running_loop().time(), fields))
        if "READY" in fields:
            self.was_registered.append(self.is_registered())

    def times(self, field: str) -> list[float]:
        return [time for time, fields in self.messages if field in fields]

    @property
    def statuses(self) -> list[str | int]:
        return [fields["STATUS"] for _, fields in self.messages if "STATUS" in fields]


class HoldingWorkers(LoopWorkers):
    """Lanes of which one can be held, like a thread whose sync hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.held_lane = ""
        self._held: list[Callable[[], None]] = []

    def run(self, lane: str, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        if lane != self.held_lane:
            return super().run(lane, function, *arguments, **keywords)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._held.append(lambda: done.set_result(function(*arguments, **keywords)))
        return done

    def release(self) -> None:
        self.held_lane = ""
        for run in self._held:
            run()


class SupervisedBookie:
    """A bookie in memory that reports to ``manager``."""

    def __init__(self, whole_bookie: WholeBookie, manager: RecordingManager) -> None:
        self.whole_bookie = whole_bookie
        self.manager = manager
        self.stop = asyncio.Event()
        self.workers = HoldingWorkers()

    async def run(self, work: Callable[[BookieServer], Awaitable[None]]) -> None:
        await self.whole_bookie.format_cluster()
        zookeeper = self.whole_bookie.zookeeper
        self.manager.is_registered = lambda: any(node.owner for node in zookeeper.nodes.values())
        server = BookieServer(CONFIG, dataclasses.replace(self.whole_bookie.ports(), workers=self.workers))
        reports = ServiceReports(server.view, self.manager, self.stop)
        async with reports.running():
            async with server:
                reports.report()
                await work(server)
                self.stop.set()
            await self.workers.close()


def simulate(manager: RecordingManager, work: Callable[[SupervisedBookie, BookieServer], Awaitable[None]]) -> None:
    async def run() -> None:
        bookie = SupervisedBookie(WholeBookie(Mode.ORDERED), manager)
        await bookie.run(lambda server: work(bookie, server))

    run_simulated(run())


def test_ready_once_then_heartbeats_then_stopping() -> None:
    manager = RecordingManager()

    async def work(_: SupervisedBookie, server: BookieServer) -> None:
        assert len(manager.times("READY")) == 1
        await asyncio.sleep(10 * WATCHDOG_S)

    simulate(manager, work)
    assert len(manager.times("READY")) == len(manager.times("STOPPING")) == 1
    assert manager.was_registered == [True]
    beats = [*manager.times("READY"), *manager.times("WATCHDOG"), *manager.times("STOPPING")]
    assert beats == sorted(beats)
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) <= WATCHDOG_S / 2
    assert str(manager.statuses[0]).startswith("starting: ")
    assert manager.statuses[-2:] == ["writable", "stopping"]


def test_no_heartbeat_while_a_journal_hangs(caplog: pytest.LogCaptureFixture) -> None:
    manager = RecordingManager()

    async def work(bookie: SupervisedBookie, server: BookieServer) -> None:
        await asyncio.sleep(WATCHDOG_S)
        bookie.workers.held_lane = "journal-0"
        held_at = asyncio.get_running_loop().time()
        await asyncio.sleep(5 * WATCHDOG_S)
        assert max(manager.times("WATCHDOG")) <= held_at + WATCHDOG_S / 4, "the probe before may still have answered"
        bookie.workers.release()
        await asyncio.sleep(WATCHDOG_S)
        assert max(manager.times("WATCHDOG")) > held_at + 5 * WATCHDOG_S

    simulate(manager, work)
    assert manager.statuses[-4:] == ["writable", "writable; a write or sync of a journal hangs", "writable", "stopping"]
    said = [record.getMessage() for record in caplog.records if record.name.endswith("service_reports")]
    assert said == [
        "a write or sync of a journal hangs: no message to systemd's watchdog until it returns",
        "the journals respond again",
    ]


def test_a_journal_without_room_is_no_reason_for_a_restart() -> None:
    manager = RecordingManager()

    async def work(_: SupervisedBookie, server: BookieServer) -> None:
        server.view.modes.note_journal(0, JournalFullError("no space left"))
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(3 * WATCHDOG_S)
        assert max(manager.times("WATCHDOG")) > now + 2 * WATCHDOG_S
        assert manager.statuses[-1] == "read-only (no space for a journal)"

    simulate(manager, work)


def test_the_reason_of_an_operator_is_on_the_same_line() -> None:
    manager = RecordingManager()

    async def work(_: SupervisedBookie, server: BookieServer) -> None:
        order = OperatorMode(is_read_only=True, since_ms=1, written_ms=1, reason="new\ndisk")
        server.view.modes.follow_order(order)
        await asyncio.sleep(WATCHDOG_S)
        assert manager.statuses[-1] == "read-only (set by an operator: new disk)"

    simulate(manager, work)


def test_without_a_watchdog_the_mode_is_reported() -> None:
    manager = RecordingManager(None)

    async def work(_: SupervisedBookie, server: BookieServer) -> None:
        server.view.modes.note_journal(0, JournalFullError("no space left"))
        await asyncio.sleep(10)

    simulate(manager, work)
    assert manager.statuses[-2:] == ["read-only (no space for a journal)", "stopping"]
    assert manager.times("WATCHDOG") == []


def test_a_start_is_extended_only_while_it_proceeds() -> None:
    """Each stage and each batch of the replay counts as progress; a replay that stands still gets no more time."""
    manager = RecordingManager()

    async def run() -> None:
        whole_bookie = WholeBookie(Mode.ORDERED)
        server = BookieServer(CONFIG, whole_bookie.ports())
        async with ServiceReports(server.view, manager, asyncio.Event()).running():
            server.view.stage = "replay the journals"
            for _ in range(3):
                await asyncio.sleep(60)
                server.view.replay_step_count += 1
            await asyncio.sleep(600)
        assert len(manager.times("EXTEND_TIMEOUT_USEC")) == 4
        assert max(manager.times("EXTEND_TIMEOUT_USEC")) < 200
        assert manager.statuses == ["starting: replay the journals"]

    run_simulated(run())


CHECKPOINT_HANGS = "a ledger disk hangs: no progress in checkpoint"
NO_ZOOKEEPER = "no connection to ZooKeeper, so clients may not find this bookie"


def said_by(module: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith(module)]


def test_a_checkpoint_that_hangs_is_shown_and_logged_but_no_reason_for_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = RecordingManager()

    async def work(bookie: SupervisedBookie, server: BookieServer) -> None:
        bookie.workers.held_lane = CHECKPOINT_LANE
        await asyncio.sleep(HANG_S - 2)
        assert (server.view.troubles, manager.statuses[-1]) == ({}, "writable")
        await asyncio.sleep(100)
        assert manager.statuses[-1] == f"writable; {CHECKPOINT_HANGS}"
        trouble = server.view.troubles[Trouble.LEDGER_DISK]
        assert server.view.ports.clock.now_ms() - trouble.since_ms == pytest.approx(128_000, abs=2000)
        samples = samples_of(bookie_metrics(server.view).text())
        found = {each.value: samples["bkctl_trouble_seconds", frozenset({("trouble", each.value)})] for each in Trouble}
        others = dict.fromkeys(("zookeeper", "journal_disk", "registration", "restore"), 0)
        assert found == others | {"ledger_disk": pytest.approx(128, abs=2)}
        assert max(manager.times("WATCHDOG")) > asyncio.get_running_loop().time() - WATCHDOG_S / 2
        bookie.workers.release()
        await asyncio.sleep(3)
        assert (server.view.troubles, manager.statuses[-1]) == ({}, "writable")

    simulate(manager, work)
    said = said_by("trouble_watch", caplog)
    assert [line.partition(" (for ")[0] for line in said[:-1]] == [CHECKPOINT_HANGS] * 2
    assert said[-1].startswith("over after ")


def test_a_long_job_that_goes_on_does_not_hang() -> None:
    async def run() -> None:
        workers, steps, loop = HoldingWorkers(), itertools.count(), asyncio.get_running_loop()
        moving = LaneWatch(workers, CHECKPOINT_LANE, lambda: next(steps))
        still = LaneWatch(workers, CHECKPOINT_LANE, lambda: 0)

        def look() -> tuple[float, float]:
            now_ns = int(loop.time() * 1e9)
            return moving.stalled_since_ns(now_ns) / 1e9, still.stalled_since_ns(now_ns) / 1e9

        workers.held_lane = CHECKPOINT_LANE
        seen = []
        for _ in range(4):
            seen.append(look())
            await asyncio.sleep(10)
        assert seen == [(0, 0), (10, 0), (20, 0), (30, 0)]
        workers.release()
        await asyncio.sleep(10)
        assert look() == (50, 50)

    run_simulated(run())


def test_a_lost_connection_to_zookeeper_is_shown_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    manager = RecordingManager()

    async def work(bookie: SupervisedBookie, server: BookieServer) -> None:
        await asyncio.sleep(5)
        assert mode_answer(server.view).registered is True
        bookie.whole_bookie.link.cut()
        await asyncio.sleep(2.1)
        assert manager.statuses[-1] == f"writable; {NO_ZOOKEEPER}"
        assert mode_answer(server.view).registered is False
        assert [each.text for each in server.view.troubles.values()] == [NO_ZOOKEEPER]
        await asyncio.sleep(100)
        bookie.whole_bookie.link.restore()
        await asyncio.sleep(60)
        assert (server.view.troubles, manager.statuses[-1]) == ({}, "writable")
        assert mode_answer(server.view).registered is True

    simulate(manager, work)
    said = said_by("trouble_watch", caplog)
    assert [line.partition(" (for ")[0] for line in said[:-1]] == [NO_ZOOKEEPER] * 2
    assert said[-1].startswith("over after ")


def test_a_stop_that_waits_says_for_what(caplog: pytest.LogCaptureFixture) -> None:
    manager = RecordingManager()

    async def work(bookie: SupervisedBookie, _: BookieServer) -> None:
        bookie.workers.held_lane = CHECKPOINT_LANE
        asyncio.get_running_loop().call_later(45, bookie.workers.release)

    simulate(manager, work)
    waiting = "waiting for the end of: collect garbage"
    shown = ["stopping", f"stopping; {waiting}", f"stopping; {waiting}; {CHECKPOINT_HANGS}"]
    assert manager.statuses[-len(shown) :] == shown
    said = said_by("boot.server", caplog)
    beginnings = [f"the stop has been waiting for {seconds} s for the end of: collect" for seconds in (10, 20, 30, 40)]
    assert [line[: len(beginnings[0])] for line in said if "waiting" in line] == beginnings
    assert [line for line in said if line.endswith(f"({CHECKPOINT_HANGS})")] == said[-1:]
