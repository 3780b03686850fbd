"""Why a running bookie ends: the cause is reported, whatever else fails at its end."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.admin.tcp_ports import ADMIN_LANE
from bkctl.runtime.bookie.boot.process import real_ports, running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.boot.stages import Stages
from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.bookie.serving.reads import LISTS_LANE, READS_LANE, URGENT_READS_LANE
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import BookieFailedError
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.admin.asking import local_asker
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.serving.test_durability import JOURNAL_FAILED_EXIT_CODE, add_until, strace
from tests.runtime.bookie.test_measures import bookie


def block_removal(directory: Path) -> None:
    """The files of the admin sockets cannot be removed, as on a disk that has become read-only."""
    sockets = list(directory.rglob("*.sock"))
    assert sockets
    for path in sockets:
        path.unlink()
        path.mkdir()


class FailingLane(LaneWorkers):
    """Once armed, no job of one lane succeeds."""

    def __init__(self, lane: str, error: BaseException) -> None:
        super().__init__()
        self._failing = lane
        self._error = error
        self.is_armed = False

    def run(self, lane: str, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Awaitable[Any]:
        if self.is_armed and lane == self._failing:
            raise self._error
        return super().run(lane, function, *arguments, **keywords)


@pytest.mark.strace
@pytest.mark.cluster
async def test_a_bookie_on_a_disk_that_has_become_read_only_names_the_journal(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    bookie = BookieUnderTest(tmp_path, metadata_uri, store)
    failing_syncs = strace(tmp_path / "strace.log", "-e", "inject=fdatasync:error=EROFS:when=12+")
    async with bookie.running(failing_syncs) as (process, peer):
        block_removal(tmp_path)
        await add_until(peer, 0, 300, in_flight=5)
        assert await asyncio.to_thread(process.wait, 60) == JOURNAL_FAILED_EXIT_CODE
    last_line = bookie.said().strip().splitlines()[-1]
    assert ".txn" in last_line
    assert os.strerror(errno.EROFS) in last_line


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(MemoryError(), "out of memory"), (RuntimeError("can't start new thread"), "can't start new thread: raise")],
)
@pytest.mark.parametrize("is_stop_failing", [False, True])
async def test_a_bookie_that_gets_no_memory_or_thread_has_failed(
    bookie_config: BookieConfig, error: Exception, sentence: str, is_stop_failing: bool
) -> None:
    workers = FailingLane(CHECKPOINT_LANE, error)

    async def run() -> None:
        async with running_bookie(bookie_config, dataclasses.replace(real_ports(), workers=workers)) as server:
            if is_stop_failing:
                for each in bookie_config.storage.ledger_directories:
                    block_removal(Path(each))
            workers.is_armed = True
            assert server.view.path is not None
            server.view.path.checkpoints.request()
            await server.serve_until(asyncio.Event())

    with pytest.raises(BookieFailedError, match=sentence):
        await run()


class ExhaustedLane(LaneWorkers):
    """Once armed, the jobs of one lane get no memory, or the lane gets no thread."""

    def __init__(self, lane: str, error: Exception) -> None:
        super().__init__()
        self._exhausted = lane
        self._error = error
        self.is_armed = False

    def run(self, lane: str, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Awaitable[Any]:
        if self.is_armed and lane == self._exhausted:
            return super().run(lane, self._fail)
        return super().run(lane, function, *arguments, **keywords)

    def _fail(self) -> None:
        raise self._error


async def read(peer: Peer, _: BookieServer) -> None:
    await peer.read(1, 0)


async def fence(peer: Peer, _: BookieServer) -> None:
    await peer.read(1, -1, fence_with=KEY)


async def list_entries(peer: Peer, _: BookieServer) -> None:
    await peer.list_entries(1)


async def scrape(_: Peer, server: BookieServer) -> None:
    async with local_asker(server.view.config) as admin:
        await admin.get("/api/v1/bookie/list_disk_file")


async def collect(_: Peer, server: BookieServer) -> None:
    assert server.view.collector is not None
    server.view.collector.request()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
@pytest.mark.parametrize(
    ("lane", "use"),
    [
        (READS_LANE, read),
        (URGENT_READS_LANE, fence),
        (LISTS_LANE, list_entries),
        (ADMIN_LANE, scrape),
        (COMPACTION_LANE, collect),
    ],
)
async def test_a_lane_without_memory_ends_the_bookie(
    bookie_config: BookieConfig,
    error: Exception,
    lane: str,
    use: Callable[[Peer, BookieServer], Awaitable[None]],
) -> None:
    workers = ExhaustedLane(lane, error)
    stopping = asyncio.Event()

    async def run() -> None:
        async with bookie(bookie_config, dataclasses.replace(real_ports(), workers=workers)) as (server, peer):
            assert await peer.add(1, 0) is Status.OK
            assert server.view.path is not None
            await server.view.path.checkpoints.flushed()
            workers.is_armed = True
            using = asyncio.ensure_future(use(peer, server))
            try:
                await asyncio.wait_for(server.serve_until(stopping), 60)
            finally:
                workers.is_armed = False
                using.cancel()
                await asyncio.wait([using])

    with pytest.raises(BookieFailedError):
        await run()


async def test_a_bookie_without_memory_ends_with_one_sentence(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    """The limit is below what it has already, so it comes at any place."""
    under_test = BookieUnderTest(tmp_path, metadata_uri, store)
    async with under_test.running() as (process, peer):
        await add_until(peer, 0, 20, in_flight=5)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (1024 * 1024, resource.RLIM_INFINITY))
        adding = [asyncio.ensure_future(peer.add(2, each, bytes(1_000_000))) for each in range(50)]
        assert await asyncio.to_thread(process.wait, 60) == JOURNAL_FAILED_EXIT_CODE
        await asyncio.gather(*adding)
    said = under_test.said()
    last_line = said.strip().splitlines()[-1]
    assert "out of memory" in last_line or "can't start new thread" in last_line, "a thread needs memory for its stack"
    assert "Traceback" not in said


async def test_a_failure_to_undo_a_stage_never_replaces_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        """Nothing."""

    async def undo(_: None) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), "/data/LOCK")

    async def stages() -> Stages:
        begun = Stages(lambda _: None, lambda *_: None, LoopClock())
        await begun.run("lock", work(), undo)
        return begun

    await (await stages()).undo(BookieFailedError("the journal failed"))
    assert "the stop after an error failed too: /data/LOCK: Read-only file system" in caplog.text
    with pytest.raises(PermissionError):
        await (await stages()).undo()
