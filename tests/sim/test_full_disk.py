"""When a bookie whose disk was full is writable again, in virtual time."""

from __future__ import annotations

import asyncio

import msgspec

from bkctl.runtime.bookie.disks.modes import ReadOnlyReason
from tests.crash.model_disk import Mode
from tests.sim.loop import run_simulated
from tests.sim.whole_bookie import CONFIG, WholeBookie

CHECK_INTERVAL_S = 2.0


def test_a_checkpoint_is_tried_again_as_often_as_the_disks_are_checked() -> None:
    async def run() -> None:
        whole_bookie = WholeBookie(Mode.ORDERED)
        await whole_bookie.format_cluster()
        disks = msgspec.structs.replace(CONFIG.disks, check_interval_s=CHECK_INTERVAL_S)
        bookie = await whole_bookie.boot(msgspec.structs.replace(CONFIG, disks=disks, flush_interval_s=3600.0))
        room_bytes, whole_bookie.disk.usable_bytes = whole_bookie.disk.usable_bytes, 0
        assert bookie.view.path is not None
        bookie.view.path.checkpoints.request()
        await asyncio.sleep(CHECK_INTERVAL_S + 0.1)
        assert set(bookie.view.modes.reasons) == {ReadOnlyReason.DISK_FULL, ReadOnlyReason.NO_ROOM}
        whole_bookie.disk.usable_bytes = room_bytes
        await asyncio.sleep(CHECK_INTERVAL_S + 0.1)
        assert not bookie.view.modes.reasons
        await whole_bookie.stop(bookie)

    run_simulated(run())
