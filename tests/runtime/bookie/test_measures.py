"""Every measure of a real bookie changes when what it measures happens."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator

import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.metrics.windows import measures_of
from bkctl.runtime.bookie.ports import BookiePorts
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import FORCE_LEDGER, VERSION_THREE, WRITE_LAC, Request
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.status import Status
from bkctl.storage.journal.measures import JournalMeasures
from bkctl.storage.measures import Outcomes
from tests.crash.model_disk import Mode
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.net.test_listener import peer_of
from tests.sim.loop import run_simulated
from tests.sim.whole_bookie import WholeBookie
from tests.storage.engines import explicit_lac

TESTED_ELSEWHERE = {
    "JournalMeasures.groups_by_size_count",  # in test_group_commit: they need other settings
    "JournalMeasures.groups_by_wait_count",
    "MetadataMeasures.transactions",  # in the tests of the ZooKeeper adapter: the bookie does none here
}


@contextlib.asynccontextmanager
async def bookie(config: BookieConfig, ports: BookiePorts | None = None) -> AsyncIterator[tuple[BookieServer, Peer]]:
    async with running_bookie(config, ports) as server:

        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", server.port

        pool = BookiePool(resolve, ClientConfig(), LoopClock())
        try:
            yield server, Peer(pool, server.bookie_id)
        finally:
            await pool.close()


def unchanged(server: BookieServer) -> Iterator[str]:
    """Measures that are still 0."""
    for measures in measures_of(server.view):
        for name, value in vars(measures).items():
            is_unused = isinstance(value, Outcomes) and value.succeeded.count + value.failed.count == 0
            if is_unused or value == 0:
                yield f"{type(measures).__name__}.{name}"


async def write_lac_and_force(port: int, ledger_id: int) -> None:
    """Requests that no client of bkctl sends."""
    lac, force = Request(), Request()
    lac.header.version = force.header.version = VERSION_THREE
    lac.header.operation, force.header.operation = WRITE_LAC, FORCE_LEDGER
    lac.header.txnId, force.header.txnId = 1, 2
    lac.writeLacRequest.ledgerId, lac.writeLacRequest.lac = ledger_id, 3
    lac.writeLacRequest.masterKey, lac.writeLacRequest.body = KEY, explicit_lac(ledger_id, 3)
    force.forceLedgerRequest.ledgerId = ledger_id
    async with peer_of(port) as peer:
        for request in (lac, force):
            peer.send(encode_frame(request.SerializeToString()))
            assert (await peer.answer()).status is Status.OK


async def test_each_measure_changes_under_load(bookie_config: BookieConfig) -> None:
    async with bookie(bookie_config) as (server, peer):
        assert server.view.path is not None
        assert server.view.collector is not None
        for entry_id in range(20):
            assert await peer.add(7, entry_id) is Status.OK
        await peer.add(7, 20, recovery=True)
        await peer.read(7, 3)
        await peer.read_lac(7)
        await peer.poll(7, 1000, 0.01)
        assert server.view.path.handles.polls.measures in list(measures_of(server.view)), "else no window of it ends"
        await peer.read_many(7, [3, 4])
        await peer.list_entries(7)
        await peer.free_bytes()
        await write_lac_and_force(server.port, 7)
        for fenced_id in (7, 9):  # the second one is created by its fence
            with contextlib.suppress(NoSuchEntryError):
                await peer.read(fenced_id, -1, fence_with=KEY)
        await server.view.path.checkpoints.flushed()
        payload = bytes(8000)  # more than the write cache holds
        statuses = await asyncio.gather(*(peer.add(8, n, peer.body(8, n, payload)) for n in range(200)))
        assert set(statuses) == {Status.OK}
        await server.view.path.checkpoints.flushed()
        for entry_id in (0, 1):  # on disk alone after a second checkpoint; the second one is read ahead
            assert await peer.read(7, entry_id) == peer.body(7, entry_id)
        await server.view.collector.force()
        assert set(unchanged(server)) == TESTED_ELSEWHERE


async def test_adds_and_reads_are_counted_with_their_bytes(bookie_config: BookieConfig) -> None:
    async with bookie(bookie_config) as (server, peer):
        assert server.view.listener is not None
        requests = server.view.listener.measures
        await asyncio.gather(*(peer.add(7, entry_id) for entry_id in range(100)))
        await asyncio.gather(*(peer.add(8, entry_id, peer.body(8, entry_id, b"x" * entry_id)) for entry_id in range(9)))
        size_bytes = len(peer.body(7, 0))
        assert requests.adds.succeeded.count == requests.added_bytes.succeeded.count == 109
        small_bytes = sum(len(peer.body(8, entry_id, b"x" * entry_id)) for entry_id in range(9))
        assert requests.added_bytes.succeeded.total == 100 * size_bytes + small_bytes
        assert requests.adds.succeeded.total > 0
        await peer.read(7, 3)
        assert requests.read_bytes.succeeded.total == size_bytes
        assert (requests.reads.succeeded.count, requests.begun_reads.succeeded.count) == (1, 1)


async def test_failures_are_counted_by_operation_and_status(bookie_config: BookieConfig) -> None:
    async with bookie(bookie_config) as (server, peer):
        assert server.view.listener is not None
        requests = server.view.listener.measures
        await peer.add(7, 0)
        assert await peer.add(7, 1, key=b"other") is Status.UNAUTHORIZED
        with pytest.raises(NoSuchEntryError):
            await peer.read(7, 1)
        with pytest.raises(NoSuchLedgerError):
            await peer.read(8, 0)
        assert dict(requests.failures) == {
            ("ADD_ENTRY", Status.UNAUTHORIZED): 1,
            ("READ_ENTRY", Status.NO_SUCH_ENTRY): 1,
            ("READ_ENTRY", Status.NO_SUCH_LEDGER): 1,
        }
        assert (requests.adds.succeeded.count, requests.adds.failed.count) == (1, 1)
        assert requests.reads.failed.count == 2


def test_windows_end_once_a_minute() -> None:
    def medians(server: BookieServer) -> list[float]:
        timings = [measures.syncs.succeeded for measures in journals(server)]
        return [timing.quantiles()[0] for timing in (*timings, server.view.loop_delay.succeeded)]

    def journals(server: BookieServer) -> list[JournalMeasures]:
        return [measures for measures in measures_of(server.view) if isinstance(measures, JournalMeasures)]

    async def run() -> None:
        whole_bookie = WholeBookie(Mode.ORDERED)
        await whole_bookie.format_cluster()
        server = await whole_bookie.boot()
        for journal in journals(server):
            journal.syncs.succeeded.add(7)
        assert all(map(math.isnan, medians(server)))
        await whole_bookie.clock.sleep(61)
        assert medians(server)[0] == 7.0
        assert not math.isnan(medians(server)[-1])
        await whole_bookie.clock.sleep(61)
        assert math.isnan(medians(server)[0])
        await whole_bookie.stop(server)

    run_simulated(run())
