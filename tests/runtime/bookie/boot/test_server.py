"""Boot, service and stop of a bookie, seen from outside: sockets, znodes and files."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import real_ports, running_bookie
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import (
    ConfigurationError,
    CookieError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.messages import BookieInfoAnswer
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import DirectoryLockedError
from bkctl.storage.ports import DiskSpace
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.net.test_listener import peer_of

Boot = Callable[[BookieConfig], AbstractAsyncContextManager[Peer]]


async def test_added_entries_are_read_back_with_the_last_add_confirmed(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        assert [await peer.add(7, entry_id) for entry_id in range(3)] == [Status.OK] * 3
        assert await peer.read_with_lac(7, 1) == (peer.body(7, 1), 1)
        assert await peer.read(7, -1) == peer.body(7, 2)


async def test_the_entries_of_a_ledger_are_listed(boot: Boot, bookie_config: BookieConfig) -> None:
    """Java never answers this with DbLedgerStorage (storage section 5.7)."""
    for added, expected in (((0, 1, 5), 3), ((1, 6), 4)):
        async with boot(bookie_config) as peer:
            for entry_id in added:
                assert await peer.add(7, entry_id) is Status.OK
            entries = await peer.list_entries(7)
            assert len(entries) == expected
            assert all(entry_id in entries for entry_id in added)
            with pytest.raises(NoSuchLedgerError):
                await peer.list_entries(8)


async def test_negative_answers_tell_ledger_from_entry(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        await peer.add(7, 0)
        with pytest.raises(NoSuchEntryError):
            await peer.read(7, 1)
        with pytest.raises(NoSuchLedgerError):
            await peer.read(8, 0)


async def test_everything_acknowledged_is_there_after_a_restart(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        for entry_id in range(50):
            assert await peer.add(7, entry_id) is Status.OK
    async with boot(bookie_config) as peer:
        assert [await peer.read(7, entry_id) for entry_id in range(50)] == [peer.body(7, n) for n in range(50)]
        assert await peer.read_with_lac(7, 49) == (peer.body(7, 49), 48)
        assert await peer.read(7, -1) == peer.body(7, 49)
        assert await peer.add(7, 50) is Status.OK


async def test_adds_beyond_the_write_cache_wait_for_a_checkpoint_and_succeed(
    boot: Boot, bookie_config: BookieConfig
) -> None:
    async with boot(bookie_config) as peer:
        payload = bytes(8000)
        statuses = await asyncio.gather(*(peer.add(7, n, peer.body(7, n, payload)) for n in range(200)))
        assert set(statuses) == {Status.OK}
        for entry_id in (0, 99, 199):
            assert await peer.read(7, entry_id) == peer.body(7, entry_id, payload)


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "body"),
    [
        (7, 0, b"short"),
        (7, 1, None),  # body of another entry, see below
        (-1, 0, None),
        (7, -0x2000, None),
        (0, 0, bytes(64)),
    ],
)
async def test_malformed_adds_are_refused_and_store_nothing(
    boot: Boot, bookie_config: BookieConfig, ledger_id: int, entry_id: int, body: bytes | None
) -> None:
    async with boot(bookie_config) as peer:
        assert await peer.add(ledger_id, entry_id, body or peer.body(7, 0)) is Status.BAD_REQUEST
        with pytest.raises(NoSuchLedgerError):
            await peer.read(7, -1)


async def test_a_wrong_key_may_neither_add_nor_fence(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        await peer.add(7, 0)
    async with boot(bookie_config) as peer:
        assert await peer.add(7, 1, key=b"x" * 20) is Status.UNAUTHORIZED
        assert await peer.add(7, 1, key=bytes(20)) is Status.UNAUTHORIZED
        with pytest.raises(UnauthorizedError):
            await peer.read(7, 0, fence_with=b"x" * 20)
        assert await peer.add(7, 1) is Status.OK


async def test_a_fence_stops_adds_for_good_but_not_recovery(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        await peer.add(7, 0)
        assert await peer.read(7, -1, fence_with=KEY) == peer.body(7, 0)
        assert await peer.add(7, 1) is Status.FENCED
        assert await peer.add(7, 1, recovery=True) is Status.OK
    async with boot(bookie_config) as peer:
        assert await peer.add(7, 2) is Status.FENCED
        assert await peer.read(7, 1) == peer.body(7, 1)


async def test_fencing_a_ledger_never_seen_creates_and_fences_it(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        with pytest.raises(NoSuchEntryError):
            await peer.read(9, -1, fence_with=KEY)
        assert await peer.add(9, 0) is Status.FENCED
    async with boot(bookie_config) as peer:
        assert await peer.add(9, 0) is Status.FENCED


async def test_a_read_only_bookie_reads_and_fences(
    boot: Boot, bookie_config: BookieConfig, store: ZooKeeperStore
) -> None:
    registrations = RegistrationClient(store, parse_metadata_uri(bookie_config.metadata_uri).root)
    async with boot(bookie_config) as peer:
        await peer.add(7, 0)
        assert await registrations.writable() == [peer.bookie_id]
    assert await registrations.writable() == []
    async with boot(msgspec.structs.replace(bookie_config, is_read_only=True)) as peer:
        assert await registrations.read_only() == [peer.bookie_id]
        assert await peer.add(7, 1) is Status.READ_ONLY
        assert await peer.read(7, 0, fence_with=KEY) == peer.body(7, 0)
    async with boot(bookie_config) as peer:
        assert await peer.add(7, 1) is Status.FENCED


async def test_disk_space_is_that_of_the_ledger_directory(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        directory = bookie_config.storage.ledger_directories[0]
        assert abs(await peer.free_bytes() - shutil.disk_usage(directory).free) < 2**30


class WatchedFileSystem(OsFileSystem):
    """Notes which threads ask for disk space."""

    def __init__(self) -> None:
        super().__init__()
        self.askers: list[int] = []

    def space(self, path: str) -> DiskSpace:
        self.askers.append(threading.get_ident())
        return super().space(path)


async def test_a_client_that_asks_for_disk_space_makes_the_event_loop_wait_for_no_disk(
    bookie_config: BookieConfig,
) -> None:
    disk = WatchedFileSystem()
    ports = dataclasses.replace(real_ports(), file_system=disk)
    async with running_bookie(bookie_config, ports) as server, peer_of(server.port) as peer:
        disk.askers.clear()
        peer.send(*map(v3.encode_bookie_info_request, range(100)))
        for txn_id in range(100):
            answer = await peer.answer()
            assert isinstance(answer, BookieInfoAnswer)
            assert (answer.txn_id, answer.status) == (txn_id, Status.OK)
            assert answer.free_bytes
        assert threading.get_ident() not in disk.askers


async def test_two_bookies_cannot_share_directories(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config):
        with pytest.raises(DirectoryLockedError):
            async with boot(bookie_config):
                pass


async def test_directories_of_another_bookie_are_refused_and_left_alone(
    boot: Boot, bookie_config: BookieConfig
) -> None:
    async with boot(bookie_config) as peer:
        await peer.add(7, 0)
    directory = Path(bookie_config.storage.ledger_directories[0]) / "current"
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    with pytest.raises(CookieError, match="new address: the directories belong to bookie bookie-under-test"):
        async with boot(msgspec.structs.replace(bookie_config, bookie_id="another")):
            pass
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


async def test_an_emptied_directory_is_refused(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        await peer.add(7, 0)
    shutil.rmtree(bookie_config.storage.ledger_directories[0])
    with pytest.raises(CookieError, match="missing disk"):
        async with boot(bookie_config):
            pass


async def test_a_port_in_use_changes_nothing(boot: Boot, bookie_config: BookieConfig) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(ConfigurationError, match=f"port {port}"):
            async with boot(msgspec.structs.replace(bookie_config, port=port)):
                pass
    finally:
        server.close()
    assert not Path(bookie_config.storage.ledger_directories[0]).exists()


async def test_dirty_marks_stand_while_the_bookie_serves(boot: Boot, bookie_config: BookieConfig) -> None:
    mark = Path(bookie_config.storage.ledger_directories[0]) / "current" / "DIRTY"
    async with boot(bookie_config):
        assert mark.exists()
    assert not mark.exists()


async def test_fencing_read_of_an_entry_gives_the_entry(boot: Boot, bookie_config: BookieConfig) -> None:
    async with boot(bookie_config) as peer:
        await peer.add(7, 0)
        assert await peer.read(7, 0, fence_with=KEY) == peer.body(7, 0)
        with pytest.raises(NoSuchEntryError):
            await peer.read(7, 1, fence_with=KEY)
