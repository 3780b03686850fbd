"""What a bookie notes after a loss, before anybody can ask it: from metadata alone, durable, awaited."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bkctl.runtime.bookie.integrity.preboot_check import note_open_ledgers, read_integrity_flag, set_integrity_flag
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import (
    BookieFailedError,
    BookieIOError,
    MetadataAuthError,
    NoSuchEntryError,
    UnknownLedgerStateError,
)
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.bookies.registration import RegistrationClient, Registrations
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.dirty_marks import CrashRisk, leave_dirty_marks
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.index.ledger_index import NEEDS_INTEGRITY_CHECK, LedgerRow
from tests.runtime.bookie.conftest import Peer
from tests.runtime.bookie.integrity.test_limbo import change_rows
from tests.storage.engines import KEY, SMALL, config_below, entry, open_engine, open_storage

pytestmark = pytest.mark.cluster

Boot = Callable[[BookieConfig], AbstractAsyncContextManager[Peer]]
ME, OTHERS = "bookie-under-test", ("a", "b")
OPEN_HERE, OPEN_ELSEWHERE, CLOSED_HERE, STRANGE, DAMAGED = 1, 2, 3, 4, 5


@pytest.fixture
async def ledgers(bookie_config: BookieConfig, boot: Boot, store: ZooKeeperStore, metadata_uri: str) -> LedgerStore:
    """One ledger of each kind, none of which the bookie has ever heard of; it has been up once before."""
    async with boot(bookie_config):
        pass
    uri = parse_metadata_uri(metadata_uri)
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    here = new_ledger((ME, *OTHERS), 2, 2, DigestType.CRC32C, b"secret")
    strange = new_ledger(("c", *OTHERS), 2, 2, DigestType.CRC32C, b"secret")
    moved = msgspec.structs.replace(
        here, segments=(*here.segments, msgspec.structs.replace(strange.segments[0], first_entry_id=3))
    )
    for ledger_id, metadata in (
        (OPEN_HERE, here),
        (OPEN_ELSEWHERE, moved),
        (CLOSED_HERE, to_closed(here, 0, 7)),
        (STRANGE, strange),
        (DAMAGED, here),
    ):
        await ledgers.create(metadata, ledger_id=ledger_id)
    await store.set(ledgers.path(DAMAGED), b"no metadata", -1)
    return ledgers


@pytest.fixture
async def workers() -> AsyncIterator[LaneWorkers]:
    workers = LaneWorkers()
    yield workers
    await workers.close()


async def test_rows_limbo_and_fences_follow_from_the_metadata_and_are_durable_h1(
    ledgers: LedgerStore,
    store: ZooKeeperStore,
    workers: LaneWorkers,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H1: with an empty write cache, too. The storage is opened anew without anything that was not flushed."""
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    engine = storage.engines[0]

    async def write_rows() -> None:
        await workers.run("checkpoint", checkpoint_now, engine)

    await note_open_ledgers(storage, ME, store, ledgers, workers, write_rows)
    assert "of 5 ledgers, 4 have data on this bookie (2 open)" in caplog.text
    storage.close()

    storage = LedgerStorage.open(OsFileSystem(), open_plyvel, config, 1)
    engine = storage.engines[0]
    known, limbo = LedgerRow(), LedgerRow(is_fenced=True, is_limbo=True)
    assert {ledger_id: engine.rows.find(ledger_id) for ledger_id in engine.ledger_ids()} == {
        OPEN_HERE: limbo,
        OPEN_ELSEWHERE: known,
        CLOSED_HERE: known,
        DAMAGED: limbo,  # it may name anybody
    }
    assert read_integrity_flag(engine)
    storage.close()


async def test_what_is_known_of_a_ledger_stays(
    ledgers: LedgerStore, store: ZooKeeperStore, workers: LaneWorkers, tmp_path: Path
) -> None:
    storage = open_storage(config_below(tmp_path))
    storage.replay()
    engine = storage.engines[0]
    for ledger_id in (OPEN_HERE, CLOSED_HERE):
        engine.rows.set_master_key(ledger_id, KEY)
        engine.add(ledger_id, 0, entry(ledger_id, 0))

    async def write_rows() -> None:
        checkpoint_now(engine)

    await note_open_ledgers(storage, ME, store, ledgers, workers, write_rows)
    assert engine.rows.find(OPEN_HERE) == LedgerRow(master_key=KEY, is_fenced=True, is_limbo=True)
    assert engine.rows.find(CLOSED_HERE) == LedgerRow(master_key=KEY)
    assert engine.stored.read(OPEN_HERE, 0) == entry(OPEN_HERE, 0)
    storage.close()


async def test_the_rows_of_many_ledgers_do_not_fill_the_memory(
    ledgers: LedgerStore, store: ZooKeeperStore, workers: LaneWorkers, tmp_path: Path
) -> None:
    here = new_ledger((ME, *OTHERS), 2, 2, DigestType.CRC32C, b"secret")
    many = range(100, 200)
    for ledger_id in many:
        await ledgers.create(here, ledger_id=ledger_id)
    storage = open_storage(config_below(tmp_path, engine=msgspec.structs.replace(SMALL, ledger_rows_bytes_max=65536)))
    storage.replay()
    engine = storage.engines[0]
    peaks = []

    async def write_rows() -> None:
        peaks.append(engine.rows.memory_bytes)
        checkpoint_now(engine)

    await note_open_ledgers(storage, ME, store, ledgers, workers, write_rows)
    assert max(peaks) <= 65536
    assert len(peaks) > 2, "there is room for 35 changed rows"
    assert all(engine.rows.find(ledger_id) == LedgerRow(is_fenced=True, is_limbo=True) for ledger_id in many)
    storage.close()


def ledger_directories(config: BookieConfig) -> list[str]:
    return [f"{directory}/current" for directory in config.storage.ledger_directories]


def note_risk(config: BookieConfig, risk: CrashRisk) -> None:
    """As a process leaves it that was killed."""
    leave_dirty_marks(OsFileSystem(), ledger_directories(config), risk, "")


async def test_a_bookie_does_it_before_it_can_be_asked(
    bookie_config: BookieConfig, boot: Boot, ledgers: LedgerStore
) -> None:
    note_risk(bookie_config, CrashRisk.CRASH)
    async with boot(bookie_config) as peer:
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(OPEN_HERE, 0)
        assert await peer.add(OPEN_HERE, 0) is Status.FENCED
        assert await peer.add(OPEN_ELSEWHERE, 0) is Status.OK


async def test_without_a_mark_of_risk_nothing_is_noted(
    bookie_config: BookieConfig, boot: Boot, ledgers: LedgerStore
) -> None:
    note_risk(bookie_config, CrashRisk.NONE)
    async with boot(bookie_config) as peer:
        assert await peer.add(OPEN_HERE, 0) is Status.OK


async def test_a_mark_of_java_is_a_risk_where_adds_are_not_journaled(
    bookie_config: BookieConfig, boot: Boot, ledgers: LedgerStore
) -> None:
    journal = msgspec.structs.replace(bookie_config.storage.journal, is_data_written=False)
    config = msgspec.structs.replace(
        bookie_config, storage=msgspec.structs.replace(bookie_config.storage, journal=journal)
    )
    note_risk(bookie_config, CrashRisk.NONE)
    async with boot(config) as peer:
        assert await peer.add(OPEN_HERE, 0) is Status.FENCED


async def test_what_a_rebuild_could_not_know_is_noted_by_the_next_boot(
    bookie_config: BookieConfig, boot: Boot, ledgers: LedgerStore
) -> None:
    """An offline tool sets the flag alone. Once the ledgers are noted, a restart in mid-repair fences no new ones."""
    change_rows(bookie_config, lambda storage: storage.engines[0].rows.write_flags(NEEDS_INTEGRITY_CHECK))
    async with boot(bookie_config) as peer:
        assert await peer.add(OPEN_HERE, 0) is Status.FENCED
    later = new_ledger((ME, *OTHERS), 2, 2, DigestType.CRC32C, b"secret")
    await ledgers.create(later, ledger_id=6)
    async with boot(bookie_config) as peer:
        assert await peer.add(OPEN_HERE, 0) is Status.FENCED
        assert await peer.add(6, 0) is Status.OK


async def test_a_listing_that_fails_ends_the_boot_and_nobody_is_registered_h11(
    bookie_config: BookieConfig,
    boot: Boot,
    ledgers: LedgerStore,
    store: ZooKeeperStore,
    zookeeper: EmbeddedZooKeeper,
) -> None:
    note_risk(bookie_config, CrashRisk.CRASH)
    client = KazooClient(zookeeper.connect_string)
    client.start()
    client.create(f"{ledgers.root}/00/0077", acl=[make_digest_acl("somebody", "else", all=True)])
    client.stop()
    client.close()
    for _ in range(2):
        with pytest.raises(MetadataAuthError):
            async with boot(bookie_config):
                pass
        assert await RegistrationClient(store, ledgers.root).snapshot() == Registrations((), ())
        for directory in ledger_directories(bookie_config):
            assert (Path(directory) / "DIRTY").exists(), "the next start has to do it still"


async def test_the_mark_stays_when_the_last_flush_failed_h13(
    bookie_config: BookieConfig, boot: Boot, tmp_path: Path
) -> None:
    current = Path(ledger_directories(bookie_config)[0])

    async def run() -> None:
        async with boot(bookie_config) as peer:
            assert await peer.add(9, 0) is Status.OK
            (current / "lastMark.tmp").symlink_to("/dev/full")

    with pytest.raises(BookieFailedError, match="the final flush failed"):
        await run()
    assert (current / "DIRTY").exists()
    async with boot(bookie_config) as peer:
        assert await peer.read(9, 0) == peer.body(9, 0)
    assert not (current / "DIRTY").exists()


def test_a_flag_that_is_not_known_stops_whoever_reads_it(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    assert not read_integrity_flag(engine)
    set_integrity_flag(engine, is_needed=True)
    assert read_integrity_flag(engine)
    set_integrity_flag(engine, is_needed=False)
    assert not read_integrity_flag(engine)
    engine.rows.write_flags(5)
    with pytest.raises(IndexDamagedError, match="0x5"):
        read_integrity_flag(engine)
    engine.close()


@pytest.mark.parametrize("restored", ["journal- ledgers- index-", "ledgers-1", "index-1"])
async def test_directories_that_were_restored_from_an_older_copy_deny_nothing(
    bookie_config: BookieConfig,
    boot: Boot,
    ledgers: LedgerStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    restored: str,
) -> None:
    """A virtual machine is set back, or one disk; the bookie was stopped in order before and after."""
    storage = msgspec.structs.replace(
        bookie_config.storage,
        journal_directories=(str(tmp_path / "journal-0"),),
        ledger_directories=tuple(str(tmp_path / f"ledgers-{number}") for number in range(2)),
        index_directories=tuple(str(tmp_path / f"index-{number}") for number in range(2)),
    )
    own_id = "set-back"
    config = msgspec.structs.replace(bookie_config, storage=storage, bookie_id=own_id)
    ledger_id = 11
    here = new_ledger((own_id, *OTHERS), 2, 2, DigestType.CRC32C, b"secret")
    async with boot(config) as peer:
        await ledgers.create(here, ledger_id=ledger_id)
        assert await peer.add(ledger_id, 0) is Status.OK
    copied = [each for each in storage.all_directories if Path(each).name.startswith(tuple(restored.split()))]
    for number, directory in enumerate(copied):
        shutil.copytree(directory, tmp_path / f"copy-{number}")
    async with boot(config) as peer:
        assert await peer.add(ledger_id, 1) is Status.OK
        with pytest.raises(NoSuchEntryError):
            await peer.read(ledger_id, 2)
    for number, directory in enumerate(copied):
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / f"copy-{number}", directory)
    async with boot(config) as peer:
        assert await peer.read(ledger_id, 0) == peer.body(ledger_id, 0)
        with pytest.raises((UnknownLedgerStateError, BookieIOError)):  # the latter if the index knows it
            await peer.read(ledger_id, 1)
        assert await peer.add(ledger_id, 2) is Status.FENCED
    assert f"{copied[-1]}/current: an older copy" in caplog.text
    caplog.clear()
    async with boot(config):
        assert "an older copy" not in caplog.text
