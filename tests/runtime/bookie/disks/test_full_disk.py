"""A bookie whose ledger disk is full: read-only until there is room, and nothing that it acknowledged is lost.

The disk that is full is a limit on the size of files, which the journal stays below and one checkpoint of the write
cache does not: it needs no privileges, and a test can lift it while the bookie runs. A true ENOSPC is /dev/full's.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import NoSuchEntryError
from bkctl.runtime.metadata.bookies.registration import BookieMode, Registrations
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from bkctl.storage.setting import MEBIBYTE
from tests.processes import run_bkctl
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import KEY, Peer
from tests.until import until
from tests.zookeeper_permissions import Permissions

pytestmark = pytest.mark.cluster

LEDGER_ID = 7
FILE_BYTES_MAX = 7 * MEBIBYTE
PAYLOAD = bytes(100_000)
ENTRY_COUNT = 120
"""More than half a write cache, so that a checkpoint of 8 MiB at once begins."""
LIMITED = [
    sys.executable,
    "-c",
    "import os, resource, sys\n"
    f"resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_BYTES_MAX}, resource.RLIM_INFINITY))\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
]
"""Prefix of a command that may write no larger file."""
BOOKIE_FAILED_EXIT_CODE = 5
SERVER_EXCEPTION_EXIT_CODE = 2


@pytest.fixture
def bookie(tmp_path: Path, metadata_uri: str, store: ZooKeeperStore) -> BookieUnderTest:
    keys = ("journalMaxSizeMB=1", "dbStorage_writeCacheMaxSizeMb=16", "flushInterval=3600000", "diskCheckInterval=500")
    return BookieUnderTest(tmp_path, metadata_uri, store, *(word for key in keys for word in ("--set", key)))


async def fill(bookie: BookieUnderTest, peer: Peer) -> list[int]:
    """Add until the bookie is read-only; the ids that were acknowledged."""
    statuses = await asyncio.gather(
        *(peer.add(LEDGER_ID, n, peer.body(LEDGER_ID, n, PAYLOAD)) for n in range(ENTRY_COUNT))
    )
    await wait_registered(bookie, BookieMode.READ_ONLY)
    assert set(statuses) <= {Status.OK, Status.READ_ONLY}
    acknowledged = [entry_id for entry_id, status in enumerate(statuses) if status is Status.OK]
    assert acknowledged
    return acknowledged


async def wait_registered(bookie: BookieUnderTest, mode: BookieMode) -> None:
    writable, read_only = (("traced",), ()) if mode is BookieMode.WRITABLE else ((), ("traced",))

    async def has_mode() -> bool:
        return await bookie.registrations.snapshot() == Registrations(writable, read_only)

    await until(has_mode, f"registered as {mode}")


async def require_all(peer: Peer, entry_ids: list[int]) -> None:
    for entry_id in entry_ids:
        assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id, PAYLOAD)


async def test_it_is_read_only_until_there_is_room(bookie: BookieUnderTest) -> None:
    async with bookie.running(LIMITED) as (process, peer):
        acknowledged = await fill(bookie, peer)
        assert await peer.add(LEDGER_ID, ENTRY_COUNT) is Status.READ_ONLY
        assert await peer.add(LEDGER_ID, ENTRY_COUNT, recovery=True, high_priority=True) is Status.READ_ONLY
        await require_all(peer, acknowledged)
        assert bookie.said().count("no space for a checkpoint (") == 1
        assert bookie.said().count("the disk is not full, but the file size limit is reached") == 1
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await wait_registered(bookie, BookieMode.WRITABLE)
        assert bookie.said().count("disk space is available again: writable") == 1
        assert await peer.add(LEDGER_ID, ENTRY_COUNT, peer.body(LEDGER_ID, ENTRY_COUNT, PAYLOAD)) is Status.OK
        await require_all(peer, [*acknowledged, ENTRY_COUNT])
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0


async def test_it_serves_on_where_zookeeper_refuses_its_new_registration(
    bookie: BookieUnderTest, metadata_uri: str
) -> None:
    permissions = Permissions(metadata_uri)
    async with bookie.running(LIMITED) as (process, peer):
        permissions.limit(permissions.available, read=True)
        adds = (peer.add(LEDGER_ID, n, peer.body(LEDGER_ID, n, PAYLOAD)) for n in range(ENTRY_COUNT))
        statuses = await asyncio.gather(*adds)

        async def publishes() -> bool:
            found = await bookie.registrations.troubles(await bookie.registrations.snapshot())
            return f": {permissions.available}: no permission" in found.get("traced", "")

        await until(publishes, "its registration says what is wrong")
        assert await peer.add(LEDGER_ID, ENTRY_COUNT) is Status.READ_ONLY
        await require_all(peer, [entry_id for entry_id, status in enumerate(statuses) if status is Status.OK])
        status = run_bkctl("status", BKCTL_METADATA_URI=metadata_uri).json()
        (found,) = [each for each in status["findings"] if each["part"] == "bookies_troubled"]
        assert "not registered as read-only (no space for a checkpoint): " in found["finding"]
        assert bookie.said().count("not registered as read-only: ") == 1
        permissions.lift(permissions.available)
        await wait_registered(bookie, BookieMode.READ_ONLY)
        assert process.poll() is None
    permissions.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.battery)])
async def test_its_end_and_a_boot_on_the_full_disk_lose_nothing(
    bookie: BookieUnderTest, number: signal.Signals
) -> None:
    async with bookie.running(LIMITED) as (process, peer):
        acknowledged = await fill(bookie, peer)
        assert await peer.read(LEDGER_ID, acknowledged[0], fence_with=KEY)
        process.send_signal(number)
        code = await asyncio.to_thread(process.wait, 60)
    if number is signal.SIGTERM:
        assert code == BOOKIE_FAILED_EXIT_CODE, "it could not flush"
        last_line = bookie.said().splitlines()[-1]
        assert last_line.startswith("error: the final flush failed; the next start replays the journal: ")
        assert "/ledgers/current" in last_line
    for _ in range(2):
        async with bookie.running(LIMITED) as (_, peer):
            await wait_registered(bookie, BookieMode.READ_ONLY)
            await require_all(peer, acknowledged)
            assert await peer.add(LEDGER_ID, ENTRY_COUNT) is Status.READ_ONLY
    async with bookie.running() as (_, peer):
        await require_all(peer, acknowledged)
        assert await peer.add(LEDGER_ID, ENTRY_COUNT) is Status.FENCED


async def test_an_index_without_room_ends_the_bookie_with_the_code_of_a_running_one(bookie: BookieUnderTest) -> None:
    async with bookie.running() as (process, peer):
        assert await peer.add(LEDGER_ID, 0) is Status.OK
        # Fences are rows of the index and no entries: the index alone has something to write.
        await asyncio.gather(*(fence(peer, ledger_id) for ledger_id in range(100, 400)))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == BOOKIE_FAILED_EXIT_CODE
        assert "index write failed" in bookie.said().splitlines()[-1]
    async with bookie.running() as (_, peer):
        assert await peer.read(LEDGER_ID, 0) == peer.body(LEDGER_ID, 0)
        assert await peer.add(399, 0) is Status.FENCED


async def fence(peer: Peer, ledger_id: int) -> None:
    with pytest.raises(NoSuchEntryError):
        await peer.read(ledger_id, -1, fence_with=KEY)


async def test_without_zookeeper_it_stops_at_once_and_in_order(tmp_path: Path, store: ZooKeeperStore) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path / "zookeeper"))
    uri = f"zk+hierarchical://{server.connect_string}/ledgers"
    assert (await asyncio.to_thread(run_bkctl, "cluster", "init", "-u", uri)).exit_code == 0
    async with await ZooKeeperStore.connect(server.connect_string) as own_store:
        bookie = BookieUnderTest(tmp_path, uri, own_store, "--timeout", "3600s")
        async with bookie.running() as (process, peer):
            assert await peer.add(LEDGER_ID, 0) is Status.OK
            await server.stop()
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0, bookie.said()
    assert bookie.said().count("ZooKeeper does not respond, so the registration stays") == 1
    assert "replayed" in bookie.said()
    assert not list((tmp_path / "ledgers").rglob("DIRTY"))


async def test_no_space_for_the_mark_is_a_full_disk_too(
    boot: Callable[[BookieConfig], AbstractAsyncContextManager[Peer]],
    bookie_config: BookieConfig,
    store: ZooKeeperStore,
) -> None:
    seen: list[list[str] | None] = []
    left = asyncio.Event()

    def look(names: list[str] | None) -> None:
        seen.append(names)
        if len(seen) >= 3:
            left.set()

    async with boot(msgspec.structs.replace(bookie_config, flush_interval_s=0.1)) as peer:
        watch = store.watch_children(Paths(parse_metadata_uri(bookie_config.metadata_uri).root).read_only, look)
        mark = Path(bookie_config.storage.ledger_directories[0]) / "current" / "lastMark.tmp"
        mark.symlink_to("/dev/full")
        assert await peer.add(LEDGER_ID, 0) is Status.OK
        async with asyncio.timeout(60):
            await left.wait()
        watch.cancel()
        assert seen == [[], [peer.bookie_id], []]
        assert await peer.add(LEDGER_ID, 1) is Status.OK
    async with boot(bookie_config) as peer:
        assert await peer.read(LEDGER_ID, 1) == peer.body(LEDGER_ID, 1)
