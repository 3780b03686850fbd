"""The stages of a boot: their order, and that a boot that fails or is cancelled anywhere undoes those before."""

from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.boot.stages import Stages
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.errors import StorageError
from tests.crash.model_disk import Mode
from tests.sim.loop import run_simulated
from tests.sim.whole_bookie import CONFIG, WholeBookie

BOOT = [
    "bind the port",
    "measure",
    "watch the certificate",
    "watch for troubles",
    "open the admin port",
    "connect to the metadata store",
    "check the cookies",
    "lock the directories",
    "check the cookies again",
    "write VERSION files",
    "open the admin socket",
    "open the storage",
    "replay the journals",
    "check the disks",
    "note lost entries",
    "journals and checkpoints",
    "write DIRTY marks",
    "serve requests",
    "register",
    "follow the mode",
    "publish troubles",
    "watch the disks",
    "collect garbage",
    "repair lost entries",
    "accept jobs",
]
STOP = [
    "accept jobs",
    "repair lost entries",
    "collect garbage",
    "watch the disks",
    "publish troubles",
    "follow the mode",
    "register",
    "serve requests",
    "journals and checkpoints",
    "open the storage",
    "open the admin socket",
    "lock the directories",
    "connect to the metadata store",
    "open the admin port",
    "watch for troubles",
    "watch the certificate",
    "measure",
    "bind the port",
]


def require_nothing_left(whole_bookie: WholeBookie) -> None:
    assert not whole_bookie.disk.locked
    assert not whole_bookie.network.ports
    assert not any(node.owner for node in whole_bookie.zookeeper.nodes.values()), "it is registered"


def test_the_stop_undoes_the_boot_backwards(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        whole_bookie = WholeBookie(Mode.ORDERED)
        await whole_bookie.format_cluster()
        await whole_bookie.stop(await whole_bookie.boot())
        require_nothing_left(whole_bookie)

    caplog.set_level("DEBUG", "bkctl.runtime.bookie.boot.stages")
    run_simulated(run())
    lines = [record.getMessage() for record in caplog.records if record.name == "bkctl.runtime.bookie.boot.stages"]
    assert lines == [f"boot: {name}" for name in BOOT] + [f"stop: undo {name}" for name in STOP]


def test_a_boot_that_the_disk_fails_leaves_nothing() -> None:
    """At every change of the disk that a first boot makes."""

    async def run() -> None:
        change_number = failures_count = 0
        is_booted = False
        while not is_booted:
            whole_bookie = WholeBookie(Mode.ORDERED)
            await whole_bookie.format_cluster()
            whole_bookie.disk.fails_at = change_number
            try:
                bookie = await whole_bookie.boot()
                is_booted = whole_bookie.disk.fails_at is not None  # no change had this number
                whole_bookie.disk.fails_at = None
            except (OSError, StorageError):
                failures_count += 1
                await whole_bookie.workers.close()
                require_nothing_left(whole_bookie)
                bookie = await whole_bookie.boot()
            await whole_bookie.stop(bookie)
            require_nothing_left(whole_bookie)
            change_number += 1
        assert failures_count > 50

    run_simulated(run())


def test_a_boot_that_is_cancelled_leaves_nothing() -> None:
    """At moments all over its time."""

    async def run() -> None:
        steps_count = 0
        is_booted = False
        while not is_booted:
            whole_bookie = WholeBookie(Mode.ORDERED)
            await whole_bookie.format_cluster()
            server = BookieServer(CONFIG, whole_bookie.ports())
            booting = asyncio.ensure_future(server.__aenter__())
            await whole_bookie.clock.sleep(steps_count * 0.000_5)
            is_booted = booting.done()
            booting.cancel()
            await asyncio.wait([booting])
            if is_booted:
                await whole_bookie.stop(server)
            else:
                await whole_bookie.workers.close()
            require_nothing_left(whole_bookie)
            steps_count += 1

    run_simulated(run())


async def test_an_undo_that_fails_does_not_keep_the_others() -> None:
    undone: list[str] = []

    async def stage(name: str) -> str:
        return name

    async def undo(name: str) -> None:
        undone.append(name)
        if name == "second":
            raise OSError("no disk")

    stages = Stages(lambda _: None, lambda *_: None, LoopClock())
    for name in ("first", "second", "third"):
        assert await stages.run(name, stage(name), undo) == name
    with pytest.raises(OSError, match="no disk"):
        await stages.undo()
    assert undone == ["third", "second", "first"]
    await stages.undo()
    assert len(undone) == 3
