"""Bookies on small disks that are filled and emptied while they run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.disks.monitor import DiskMonitor
from bkctl.runtime.bookie.disks.rules import DiskVerdict
from bkctl.runtime.config import BookieConfig, DiskConfig, GarbageCollectionConfig
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.bookies.registration import BookieMode, RegistrationClient, Registrations
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.bookie_status import BookieStatus, encode_bookie_status
from bkctl.storage.config import EngineConfig, EntryLogConfig, JournalConfig
from bkctl.storage.errors import DiskUnusableError
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.small_disk import SmallDisk
from tests.until import until

pytestmark = pytest.mark.cluster

Boot = Callable[[BookieConfig], AbstractAsyncContextManager[Peer]]
FULL, ALMOST_FULL, RECOVERED = 0.9, 0.7, 0.8
DISKS = DiskConfig(
    full_fraction=FULL,
    almost_full_fraction=ALMOST_FULL,
    recovered_fraction=RECOVERED,
    check_interval_s=0.05,
    high_priority_room_bytes=1024 * 1024,
)
BOOKIE_FAILED_EXIT_CODE = 5
SERVER_EXCEPTION_EXIT_CODE = 2


@pytest.fixture
def config(bookie_config: BookieConfig, journal_disk: SmallDisk) -> BookieConfig:
    """On no disk whose usage the test does not decide."""
    return msgspec.structs.replace(bookie_config, disks=DISKS)


@pytest.fixture
def registrations(store: ZooKeeperStore, metadata_uri: str) -> RegistrationClient:
    return RegistrationClient(store, parse_metadata_uri(metadata_uri).root)


async def wait_mode(registrations: RegistrationClient, bookie_id: str, mode: BookieMode) -> None:
    writable, read_only = ((bookie_id,), ()) if mode is BookieMode.WRITABLE else ((), (bookie_id,))

    async def has_mode() -> bool:
        return await registrations.snapshot() == Registrations(writable, read_only)

    await until(has_mode, f"{bookie_id} is registered as {mode}")


@pytest.fixture
async def peer(config: BookieConfig, boot: Boot) -> AsyncIterator[Peer]:
    async with boot(config) as peer:
        yield peer


async def test_read_only_and_back(
    ledger_disk: SmallDisk, config: BookieConfig, boot: Boot, registrations: RegistrationClient
) -> None:
    async with boot(config) as peer:
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)
        assert await peer.add(1, 0) is Status.OK
        ledger_disk.use(0.93)
        await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
        assert await peer.add(1, 1) is Status.READ_ONLY
        assert await peer.add(1, 1, recovery=True) is Status.READ_ONLY
        assert await peer.add(1, 1, recovery=True, high_priority=True) is Status.OK, (
            "recovery goes on while there is room"
        )
        assert await peer.read(1, 0) == peer.body(1, 0)
        assert await peer.read(1, 0, fence_with=KEY) == peer.body(1, 0)
        ledger_disk.use(0.85)
        await asyncio.sleep(0.3)
        assert await peer.add(2, 0) is Status.READ_ONLY, "not full any more, and not recovered either: no flapping"
        ledger_disk.use(0.5)
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)
        assert await peer.add(2, 0) is Status.OK
        assert await peer.add(1, 2) is Status.FENCED
    async with boot(config) as peer:
        for entry_id in (0, 1):
            assert await peer.read(1, entry_id) == peer.body(1, entry_id)


async def test_without_room_for_high_priority_writes_these_are_refused_too(
    ledger_disk: SmallDisk, config: BookieConfig, boot: Boot, registrations: RegistrationClient
) -> None:
    disks = msgspec.structs.replace(DISKS, high_priority_room_bytes=8 * 1024 * 1024)
    async with boot(msgspec.structs.replace(config, disks=disks)) as peer:
        ledger_disk.use(0.93)
        await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
        assert await peer.add(1, 1, recovery=True, high_priority=True) is Status.READ_ONLY


async def test_a_start_on_a_full_disk_comes_up_read_only_and_loses_nothing(
    ledger_disk: SmallDisk, config: BookieConfig, boot: Boot, registrations: RegistrationClient
) -> None:
    async with boot(config) as peer:
        assert await peer.add(1, 0) is Status.OK
    ledger_disk.use(0.93)
    async with boot(config) as peer:
        await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
        assert await peer.read(1, 0) == peer.body(1, 0)
        assert await peer.add(1, 1) is Status.READ_ONLY
        ledger_disk.use(0.1)
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)
        assert await peer.add(1, 1) is Status.OK


async def test_a_full_journal_disk_makes_it_read_only_instead_of_ending_it(
    journal_disk: SmallDisk, config: BookieConfig, boot: Boot, registrations: RegistrationClient
) -> None:
    disks = msgspec.structs.replace(DISKS, is_read_only_when_any_is_full=False)
    async with boot(msgspec.structs.replace(config, disks=disks)) as peer:
        journal_disk.use(0.93)
        await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
        assert await peer.add(1, 1) is Status.READ_ONLY
        journal_disk.use(0.3)
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)
        assert await peer.add(1, 1) is Status.OK


async def test_with_one_of_two_disks_full_only_its_ledgers_are_refused(
    ledger_disk: SmallDisk, journal_disk: SmallDisk, config: BookieConfig, boot: Boot, registrations: RegistrationClient
) -> None:
    """Routing is static: Java goes on writing to the full disk then."""
    directories = (str(journal_disk.path / "other"), str(ledger_disk.path))
    storage = msgspec.structs.replace(config.storage, ledger_directories=directories)
    disks = msgspec.structs.replace(DISKS, is_read_only_when_any_is_full=False)
    ledger_disk.use(0.93)
    async with boot(msgspec.structs.replace(config, disks=disks, storage=storage)) as peer:
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)
        assert await peer.add(2, 0) is Status.OK
        assert await peer.add(3, 0) is Status.READ_ONLY
        assert await peer.add(3, 0, recovery=True, high_priority=True) is Status.OK


async def test_the_mode_and_the_hysteresis_survive_a_restart(
    ledger_disk: SmallDisk, config: BookieConfig, boot: Boot, registrations: RegistrationClient
) -> None:
    kept = msgspec.structs.replace(config, disks=msgspec.structs.replace(DISKS, is_status_kept=True))
    status = ledger_disk.path / "current" / "BOOKIE_STATUS"
    async with boot(kept) as peer:
        assert status.read_text().startswith("1,READ_WRITE,")
        ledger_disk.use(0.93)
        await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
        assert status.read_text().startswith("1,READ_ONLY,")
        assert status.read_text().endswith(",false\n")
    ledger_disk.use(0.85)
    async with boot(kept) as peer:
        await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
        ledger_disk.use(0.5)
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)
        assert status.read_text().startswith("1,READ_WRITE,")
    ledger_disk.use(0.85)
    async with boot(config) as peer:
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)


@pytest.mark.parametrize("line", [b"1,READ_ONLY,5\n", encode_bookie_status(BookieStatus(True, 5, True))])
async def test_a_mode_set_by_hand_stays(
    line: bytes, ledger_disk: SmallDisk, config: BookieConfig, boot: Boot, registrations: RegistrationClient
) -> None:
    kept = msgspec.structs.replace(config, disks=msgspec.structs.replace(DISKS, is_status_kept=True))
    current = ledger_disk.path / "current"
    async with boot(kept):
        pass
    (current / "BOOKIE_STATUS").write_bytes(line)
    for _ in range(2):
        async with boot(kept) as peer:
            await asyncio.sleep(0.2)
            await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
            assert (current / "BOOKIE_STATUS").read_text().endswith(",true\n")
    (current / "BOOKIE_STATUS").unlink()
    async with boot(kept) as peer:
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)


@pytest.fixture
def process(tmp_path: Path, journal_disk: SmallDisk, metadata_uri: str, store: ZooKeeperStore) -> BookieUnderTest:
    keys = ("diskUsageThreshold=0.9", "diskCheckInterval=50", "readOnlyModeEnabled=false")
    return BookieUnderTest(tmp_path, metadata_uri, store, *(word for key in keys for word in ("--set", key)))


async def test_where_read_only_is_forbidden_a_full_disk_ends_it(
    ledger_disk: SmallDisk, process: BookieUnderTest
) -> None:
    async with process.running() as (running, peer):
        assert await peer.add(1, 0) is Status.OK
        ledger_disk.use(0.93)
        assert await asyncio.to_thread(running.wait, 60) == BOOKIE_FAILED_EXIT_CODE
        assert "read-only mode is disabled" in process.said().splitlines()[-1]
    assert await process.refused(()) == SERVER_EXCEPTION_EXIT_CODE
    assert "read-only mode is disabled" in process.said().splitlines()[-1]
    ledger_disk.use(0.2)
    async with process.running() as (running, peer):
        assert await peer.read(1, 0) == peer.body(1, 0)
        running.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.wait, 60) == 0


async def test_a_disk_that_is_gone_ends_the_bookie_with_a_sentence(
    ledger_disk: SmallDisk, process: BookieUnderTest
) -> None:
    async with process.running() as (running, peer):
        assert await peer.add(1, 0) is Status.OK
        ledger_disk.detach()
        assert await asyncio.to_thread(running.wait, 60) == BOOKIE_FAILED_EXIT_CODE
        assert f"{ledger_disk.path}/current: cannot use the disk" in process.said().splitlines()[-1]


async def test_a_disk_that_was_mounted_read_only_cannot_be_used(ledger_disk: SmallDisk, config: BookieConfig) -> None:
    for directory in (*config.storage.journal_directories, *config.storage.ledger_directories):
        (Path(directory) / "current").mkdir()
    workers = LaneWorkers()
    seen: list[DiskVerdict] = []
    monitor = DiskMonitor(OsFileSystem(), config.storage, DISKS, workers, LoopClock(), seen.append)
    await monitor.check()
    ledger_disk.remount_read_only()
    with pytest.raises(DiskUnusableError, match=r"ledgers/current: .* \(mounted read-only\)"):
        await monitor.check()
    await workers.close()
    assert [verdict.is_read_only for verdict in seen] == [False]


async def test_a_bookie_that_was_filled_up_comes_back_when_ledgers_are_deleted(
    ledger_disk: SmallDisk,
    config: BookieConfig,
    boot: Boot,
    store: ZooKeeperStore,
    metadata_uri: str,
    registrations: RegistrationClient,
) -> None:
    """Nobody tidies up the disk: the collector frees it, and checkpoints free the journal's, all while it is full."""
    uri = parse_metadata_uri(metadata_uri)
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    config = msgspec.structs.replace(
        config,
        flush_interval_s=0.2,
        disks=msgspec.structs.replace(DISKS, full_fraction=0.5, almost_full_fraction=0.4, recovered_fraction=0.3),
        garbage_collection=GarbageCollectionConfig(wait_s=0.3),
        storage=msgspec.structs.replace(
            config.storage,
            journal=JournalConfig(preallocation_bytes=2**20, size_bytes_max=2**20, backup_count_max=0),
            engine=EngineConfig(memtable_bytes_max=2**22, entry_log=EntryLogConfig(size_bytes_max=2**21)),
        ),
    )
    payload = bytes(64 * 1024)
    async with boot(config) as peer:
        ensemble = (peer.bookie_id,)
        for ledger_id in (1, 2):
            metadata = new_ledger(ensemble, 1, 1, DigestType.CRC32C, b"secret")
            await ledgers.create(metadata, ledger_id=ledger_id)
        assert await peer.add(2, 0) is Status.OK
        statuses = {Status.OK}
        for start in range(0, 2000, 20):
            entries = range(start, start + 20)
            statuses |= set(
                await asyncio.gather(*(peer.add(1, entry_id, peer.body(1, entry_id, payload)) for entry_id in entries))
            )
            if Status.READ_ONLY in statuses:
                break
        assert statuses == {Status.OK, Status.READ_ONLY}
        await wait_mode(registrations, peer.bookie_id, BookieMode.READ_ONLY)
        assert await peer.read(1, 0) == peer.body(1, 0, payload)
        await ledgers.delete(1)
        await wait_mode(registrations, peer.bookie_id, BookieMode.WRITABLE)
        assert await peer.add(2, 1) is Status.OK
    async with boot(config) as peer:
        for entry_id in (0, 1):
            assert await peer.read(2, entry_id) == peer.body(2, entry_id)
