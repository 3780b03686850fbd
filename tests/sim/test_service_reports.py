"""What a whole bookie reports to systemd, in virtual time: health, mode, and the order of the messages."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import pytest

from runtime.bookie.boot.server import BookieServer
from runtime.bookie.boot.service_reports import ServiceReports
from storage.errors import JournalFullError
from storage.operator_mode import OperatorMode
from tests.crash.model_disk import Mode
from tests.sim.loop import run_simulated
from tests.sim.machine import CONFIG, Machine
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

    def __init__(self, machine: Machine, manager: RecordingManager) -> None:
        self.machine = machine
        self.manager = manager
        self.stop = asyncio.Event()
        self.workers = HoldingWorkers()

    async def run(self, work: Callable[[BookieServer], Awaitable[None]]) -> None:
        await self.machine.format_cluster()
        zookeeper = self.machine.zookeeper
        self.manager.is_registered = lambda: any(node.owner for node in zookeeper.nodes.values())
        server = BookieServer(CONFIG, dataclasses.replace(self.machine.ports(), workers=self.workers))
        reports = ServiceReports(server.view, self.manager, self.stop)
        async with reports.running():
            async with server:
                reports.report()
                await work(server)
                self.stop.set()
            await self.workers.close()


def simulate(manager: RecordingManager, work: Callable[[SupervisedBookie, BookieServer], Awaitable[None]]) -> None:
    async def run() -> None:
        bookie = SupervisedBookie(Machine(Mode.ORDERED), manager)
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
        machine = Machine(Mode.ORDERED)
        server = BookieServer(CONFIG, machine.ports())
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
