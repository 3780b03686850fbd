"""A fence outlives the copy that the collector drops: real bookie processes, killed, and one with a new index."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import LedgerFencedError, NoSuchLedgerError
from bkctl.runtime.ledger.metadata import Segment
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from bkctl.storage.filenames import COLLECTED, LEDGERS_DATABASE, LOCATIONS_DATABASE, seal_file_name
from tests.processes import run_bkctl
from tests.runtime.bookie.bookie_process import BookieUnderTest, RunningBookie
from tests.runtime.bookie.conftest import Peer
from tests.until import until

pytestmark = pytest.mark.cluster

BOOKIES = ("first", "second", "third")
ELSEWHERE = ("new-0:3181", "new-1:3181", "new-2:3181")
SETTINGS = (
    "flushInterval=100",
    "gcWaitTime=200",
    "gcOverreplicatedLedgerWaitTime=100",
    "minorCompactionInterval=0",
    "majorCompactionInterval=0",
    "zkTimeout=6000",
)
PASSWORD = b"secret"


class Trio:
    """Three bookie processes, each of which can be killed and started again."""

    def __init__(self, directory: Path, metadata_uri: str, store: ZooKeeperStore) -> None:
        self._directory = directory
        self._stacks: dict[str, contextlib.AsyncExitStack] = {}
        self._processes: dict[str, RunningBookie] = {}
        self.peers: dict[str, Peer] = {}
        self._bookies: dict[str, BookieUnderTest] = {}
        for bookie_id in BOOKIES:
            (directory / bookie_id).mkdir()
            settings = [word for pair in SETTINGS for word in ("--set", pair)]
            self._bookies[bookie_id] = BookieUnderTest(
                directory / bookie_id, metadata_uri, store, *settings, bookie_id=bookie_id
            )

    async def start(self, bookie_id: str) -> None:
        stack = self._stacks[bookie_id] = contextlib.AsyncExitStack()
        running = self._bookies[bookie_id].running()
        self._processes[bookie_id], self.peers[bookie_id] = await stack.enter_async_context(running)

    async def kill(self, bookie_id: str) -> None:
        """As kill -9 does."""
        await self._stacks.pop(bookie_id).aclose()

    async def stop(self, bookie_id: str) -> None:
        """In order, as SIGTERM does."""
        self._processes[bookie_id].terminate()
        assert await asyncio.to_thread(self._processes[bookie_id].wait, 60) == 0
        await self.kill(bookie_id)

    async def kill_all(self) -> None:
        for bookie_id in list(self._stacks):
            await self.kill(bookie_id)

    def current(self, bookie_id: str) -> Path:
        return self._directory / bookie_id / "ledgers" / "current"

    async def rebuild_index(self, bookie_id: str) -> None:
        """All of the index of a stopped bookie is lost, and made again from its logs and journals."""
        for database in (LEDGERS_DATABASE, LOCATIONS_DATABASE):
            shutil.rmtree(self.current(bookie_id) / database)
            (self.current(bookie_id) / seal_file_name(database)).unlink()
        directory = self._directory / bookie_id
        directories = ("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers"))
        rebuild = functools.partial(run_bkctl, BKCTL_STATE_DIR=str(self._directory / "state"))
        result = await asyncio.to_thread(rebuild, "storage", "index", "rebuild", "--yes", *directories)
        assert result.exit_code == 0, result.stderr


async def test_a_writer_that_was_fenced_stays_so_when_all_copies_were_collected(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    trio = Trio(tmp_path, metadata_uri, store)
    try:
        for bookie_id in BOOKIES:
            await trio.start(bookie_id)
        async with (
            await LedgerClient.connect(metadata_uri) as old,
            await LedgerClient.connect(metadata_uri) as client,
        ):
            writer = await old.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, password=PASSWORD)
            for number in range(5):
                await writer.append(b"payload %d" % number)
            ledger_id = writer.ledger_id
            await client.open(ledger_id, password=PASSWORD, recover=True)
            await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)  # the cluster is not empty
            found = await client.ports.ledgers.read(ledger_id)
            assert found.value.last_entry_id == 4
            for bookie_id in ELSEWHERE:
                await store.create(Paths(client.ports.ledgers.root).read_only_bookie(bookie_id))
            moved = msgspec.structs.replace(found.value, segments=(Segment(0, ELSEWHERE),))
            await client.ports.ledgers.write(ledger_id, moved, found.version)
            for bookie_id in BOOKIES:
                await until(lambda: is_collected(trio.peers[bookie_id], ledger_id))  # noqa: B023  awaited at once
            with pytest.raises(LedgerFencedError):
                await writer.append(b"too late")
            await require_fenced_through_restarts(trio, ledger_id)
            await client.ports.ledgers.delete(ledger_id)
            for bookie_id in BOOKIES:
                file = trio.current(bookie_id) / COLLECTED
                await until(lambda: is_removed(file))  # noqa: B023  awaited at once
    finally:
        await trio.kill_all()


async def is_collected(peer: Peer, ledger_id: int) -> bool:
    try:
        await peer.read(ledger_id, 0)
    except NoSuchLedgerError:
        return True
    return False


async def is_removed(file: Path) -> bool:
    return not file.exists()


async def require_fenced_through_restarts(trio: Trio, ledger_id: int) -> None:
    killed, rebuilt, recovered = BOOKIES
    await trio.kill(killed)
    await trio.start(killed)
    assert await trio.peers[killed].add(ledger_id, 5) is Status.FENCED
    await trio.stop(rebuilt)
    await trio.rebuild_index(rebuilt)
    await trio.start(rebuilt)
    assert await trio.peers[rebuilt].add(ledger_id, 5) is Status.FENCED
    # A copy that is made again, for instance by a recovery. The collector may take it away at once.
    assert await trio.peers[recovered].add(ledger_id, 0, recovery=True) is Status.OK
    assert await trio.peers[recovered].add(ledger_id, 5) is Status.FENCED
    await trio.kill(recovered)
    await trio.start(recovered)
    assert await trio.peers[recovered].add(ledger_id, 5) is Status.FENCED
