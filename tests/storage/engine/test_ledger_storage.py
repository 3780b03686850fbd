"""All directories together: routing, locks, marks, and a crash between any two steps of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage, lock_directories
from bkctl.storage.errors import DirectoryLockedError, IndexDamagedError, MisplacedLedgerError, StorageError
from bkctl.storage.filenames import LOCATIONS_DATABASE, current_directory, last_mark_file_name
from bkctl.storage.ids import LogMark
from bkctl.storage.index.ledger_index import LedgerRow
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from bkctl.storage.journal.log_mark import read_last_mark
from bkctl.storage.journal.reader import list_journals
from tests.storage.engines import (
    KEY,
    NOW_MS,
    FailingOnceDisk,
    PhotographedDisk,
    checkpoint,
    config_below,
    entry,
    explicit_lac,
    open_engine,
    open_storage,
    opening_watched,
    release,
)
from tests.storage.traced_disk import TracedDisk

LEDGER_IDS = (3, 4, 5, 6)


class Bookie:
    """Takes adds and fences as a bookie does: storage first, then the journal, in order."""

    def __init__(self, storage: LedgerStorage) -> None:
        self.storage = storage

    def create(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
            self.storage.journal_of(ledger_id).write_group([encode_ledger_key_record(ledger_id, KEY)])

    def add(self, ledger_id: int, *entry_ids: int, payload: bytes = b"data") -> None:
        for entry_id in entry_ids:
            body = entry(ledger_id, entry_id, payload)
            self.storage.engine_of(ledger_id).add(ledger_id, entry_id, body)
            self.storage.journal_of(ledger_id).write_group([body])

    def fence(self, ledger_id: int) -> None:
        self.storage.engine_of(ledger_id).rows.set_fenced(ledger_id)
        self.storage.journal_of(ledger_id).write_group([encode_fence_record(ledger_id)])

    def write_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        body = explicit_lac(ledger_id, last_add_confirmed)
        self.storage.engine_of(ledger_id).set_explicit_lac(ledger_id, body)
        self.storage.journal_of(ledger_id).write_group([encode_explicit_lac_record(ledger_id, body)])


def started(config: StorageConfig, disk: TracedDisk | None = None) -> Bookie:
    storage = open_storage(config, filesystem=disk)
    storage.replay()
    return Bookie(storage)


def body_of(storage: LedgerStorage, ledger_id: int, entry_id: int) -> bytes | None:
    engine = storage.engine_of(ledger_id)
    return engine.find_cached(ledger_id, entry_id) or engine.stored.read(ledger_id, entry_id)


def marks_of(config: StorageConfig) -> list[LogMark]:
    directories = [current_directory(directory) for directory in config.ledger_directories]
    count = len(config.journal_directories)
    return [read_last_mark(TracedDisk(), directories, index, count) for index in range(count)]


def restarted(bookie: Bookie, config: StorageConfig) -> LedgerStorage:
    """After a kill: nothing was flushed on the way out."""
    bookie.storage.close()
    storage = open_storage(config)
    storage.replay()
    return storage


# Routing, locks


def test_routing(tmp_path: Path) -> None:
    storage = started(config_below(tmp_path, journals=2, ledgers=3)).storage
    assert [storage.engines.index(storage.engine_of(ledger_id)) for ledger_id in range(6)] == [0, 1, 2, 0, 1, 2]
    journals: Sequence[object] = storage.journals
    assert [journals.index(storage.journal_of(ledger_id)) for ledger_id in range(4)] == [0, 1, 0, 1]


def test_a_longer_or_reordered_list_sends_ledgers_elsewhere_and_is_refused(tmp_path: Path) -> None:
    """Why the directories of a bookie that holds ledgers never change: routing is ledger id modulo their number.

    That one is missing no other directory can tell: the cookie check does.
    """
    config = config_below(tmp_path, ledgers=2)
    bookie = started(config)
    for ledger_id in range(4):
        bookie.storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
    checkpoint(bookie.storage)
    bookie.storage.close()
    changed = config_below(tmp_path, ledgers=3)
    with pytest.raises(MisplacedLedgerError, match="which belongs in"):
        open_storage(changed)
    swapped = msgspec.structs.replace(config, ledger_directories=config.ledger_directories[::-1])
    with pytest.raises(MisplacedLedgerError, match="which belongs in"):
        open_storage(swapped)
    open_storage(config).close()


def test_index_directories_of_their_own(tmp_path: Path) -> None:
    below = config_below(tmp_path)
    config = StorageConfig(
        journal_directories=below.journal_directories,
        ledger_directories=below.ledger_directories,
        index_directories=(str(tmp_path / "index"),),
        engine=below.engine,
    )
    bookie = started(config)
    bookie.create(5)
    bookie.add(5, 1)
    checkpoint(bookie.storage)
    assert (tmp_path / "index" / "current" / LOCATIONS_DATABASE).is_dir()
    assert not (tmp_path / "ledgers-0" / "current" / LOCATIONS_DATABASE).exists()
    assert body_of(restarted(bookie, config), 5, 1) == entry(5, 1)


@pytest.mark.parametrize("directory", ["journal-0", "ledgers-1"])
def test_a_directory_in_use_is_refused_and_the_others_are_free_again(tmp_path: Path, directory: str) -> None:
    config = config_below(tmp_path, ledgers=2)
    current = tmp_path / directory / "current"
    current.mkdir(parents=True)
    owner = TracedDisk().lock_directory(str(current))
    with pytest.raises(DirectoryLockedError, match=directory):
        open_storage(config)
    owner.release()
    storage = open_storage(config)
    with pytest.raises(DirectoryLockedError):
        open_storage(config)
    storage.close()
    open_storage(config).close()


def test_locks_taken_before_stay_with_the_caller_until_the_open_succeeds(tmp_path: Path) -> None:
    config = config_below(tmp_path, ledgers=2)
    disk = TracedDisk()
    seal = tmp_path / "ledgers-1" / "current" / f"{LOCATIONS_DATABASE}.seal"
    locks = lock_directories(disk, config)
    seal.write_bytes(b"damaged")
    with pytest.raises(IndexDamagedError):
        LedgerStorage.open(disk, open_plyvel, config, NOW_MS, locks)
    with pytest.raises(DirectoryLockedError):
        open_storage(config)
    seal.unlink()
    LedgerStorage.open(disk, open_plyvel, config, NOW_MS, locks).close()
    open_storage(config).close()


def test_a_failed_open_gives_everything_up(tmp_path: Path) -> None:
    """Databases of the first directory and all locks, when the second directory is the damaged one."""
    config = config_below(tmp_path, ledgers=2)
    seal = tmp_path / "ledgers-1" / "current" / f"{LOCATIONS_DATABASE}.seal"
    seal.parent.mkdir(parents=True)
    seal.write_bytes(b"damaged")
    with pytest.raises(IndexDamagedError):
        open_storage(config)
    seal.unlink()
    open_storage(config).close()


# Marks


def test_a_checkpoint_moves_the_marks_and_deletes_old_journals(tmp_path: Path) -> None:
    config = config_below(tmp_path, journals=2, ledgers=2)
    first = started(config)
    first.create(*LEDGER_IDS)
    second = Bookie(restarted(first, config))
    second.add(5, 1)
    checkpoint(second.storage)
    assert marks_of(config) == [journal.durable_position for journal in second.storage.journals]
    for directory in config.journal_directories:
        assert len(list_journals(TracedDisk(), current_directory(directory))) == 1
    for directory in config.ledger_directories:
        names = {path.name for path in Path(current_directory(directory)).iterdir()}
        assert {last_mark_file_name(index, 2) for index in range(2)} <= names


def test_the_token_is_read_before_the_caches_are_swapped(tmp_path: Path) -> None:
    """What comes in while the lane writes is behind the mark."""
    config = config_below(tmp_path)
    bookie = started(config)
    bookie.create(5)
    bookie.add(5, 1)
    before = bookie.storage.journals[0].durable_position
    running = bookie.storage.begin_checkpoint()
    bookie.add(5, 2)
    bookie.fence(5)
    bookie.storage.write_checkpoint(running)
    bookie.storage.end_checkpoint(running)
    release(running)
    assert marks_of(config) == [before]
    storage = restarted(bookie, config)
    assert [body_of(storage, 5, entry_id) for entry_id in (1, 2)] == [entry(5, 1), entry(5, 2)]
    assert storage.engine_of(5).rows.find(5) == LedgerRow(master_key=KEY, is_fenced=True)


def test_the_fence_of_an_idle_ledger_survives_the_mark(tmp_path: Path) -> None:
    """H1, with the journal that held the fence deleted."""
    config = config_below(tmp_path)
    bookie = started(config)
    bookie.create(5)
    bookie.add(5, 1)
    checkpoint(bookie.storage)
    bookie.fence(5)
    bookie.write_lac(5, 7)
    checkpoint(bookie.storage)
    assert marks_of(config) == [bookie.storage.journals[0].durable_position]
    row = restarted(bookie, config).engine_of(5).rows.find(5)
    assert row == LedgerRow(master_key=KEY, is_fenced=True, explicit_lac=explicit_lac(5, 7))


def test_one_idle_journal_does_not_hide_the_work_of_another(tmp_path: Path) -> None:
    """H4: tokens compared as a whole skip a flush whose mark is then published."""
    config = config_below(tmp_path, journals=2)
    bookie = started(config)
    bookie.create(4, 5)
    bookie.add(4, 1)
    checkpoint(bookie.storage)
    bookie.add(5, 1)  # Journal 1 alone moves; journal 0 is where it was.
    checkpoint(bookie.storage)
    assert marks_of(config) == [journal.durable_position for journal in bookie.storage.journals]
    storage = restarted(bookie, config)
    assert [body_of(storage, ledger_id, 1) for ledger_id in (4, 5)] == [entry(4, 1), entry(5, 1)]


def test_a_failed_mark_fails_the_checkpoint_and_keeps_the_journals(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    first = started(config)
    first.create(5)
    disk = FailingOnceDisk()
    first.storage.close()
    bookie = started(config, disk)
    old_marks = marks_of(config)
    bookie.add(5, 1)
    disk.arm("replace", "lastMark")
    with pytest.raises(StorageError):
        checkpoint(bookie.storage)
    assert marks_of(config) == old_marks
    assert len(list_journals(TracedDisk(), current_directory(config.journal_directories[0]))) == 2
    assert body_of(bookie.storage, 5, 1) == entry(5, 1)
    checkpoint(bookie.storage)
    assert marks_of(config) > old_marks


@pytest.mark.parametrize("failing_directory", [0, 1])
def test_after_a_failed_flush_the_next_marks_promise_no_more_than_was_flushed(
    tmp_path: Path, failing_directory: int
) -> None:
    """H2: the retry writes the old halves; what came since is in no file but the journal."""
    config = config_below(tmp_path, ledgers=2)
    disk = FailingOnceDisk()
    bookie = started(config, disk)
    bookie.create(4, 5)
    bookie.add(4, 1)
    bookie.add(5, 1)
    old_marks = marks_of(config)
    token = bookie.storage.journals[0].durable_position
    disk.arm("write", f"ledgers-{failing_directory}/current/0.log")
    with pytest.raises(StorageError):
        checkpoint(bookie.storage)
    assert marks_of(config) == old_marks
    for ledger_id in (4, 5):
        bookie.add(ledger_id, 2)
        assert body_of(bookie.storage, ledger_id, 1) == entry(ledger_id, 1)
    checkpoint(bookie.storage)
    assert marks_of(config) == [token]
    storage = restarted(bookie, config)
    for ledger_id in (4, 5):
        for entry_id in (1, 2):
            assert body_of(storage, ledger_id, entry_id) == entry(ledger_id, entry_id)


def test_a_failed_directory_does_not_stop_the_flushes_of_the_others(tmp_path: Path) -> None:
    """Directory 0 works: its memory is given back although the checkpoint as a whole fails again and again."""
    config = config_below(tmp_path, ledgers=2)
    disk = FailingOnceDisk()
    bookie = started(config, disk)
    bookie.create(4, 5)
    for entry_id in range(3):
        bookie.add(4, entry_id)
        bookie.add(5, entry_id)
        disk.arm("sync", f"ledgers-1/current/{entry_id}.log")
        with pytest.raises(StorageError):
            checkpoint(bookie.storage)
        assert bookie.storage.engine_of(4).memtable_bytes == 0
        assert bookie.storage.engine_of(4).stored.read(4, entry_id) == entry(4, entry_id)


def test_a_deleted_journal_comes_after_the_mark(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    started(config).storage.close()
    disk = TracedDisk()
    bookie = started(config, disk)
    bookie.create(5)
    disk.take_calls()
    checkpoint(bookie.storage)
    names = [call for call in disk.take_calls() if call[0] in {"replace", "remove"}]
    assert [operation for operation, _ in names] == ["replace", "replace", "replace", "remove"]
    assert names[1:3] == [("replace", "lastMark"), ("replace", "bkctl.mark")]


# Crashes


def work_of_a_day(bookie: Bookie) -> None:
    """Two checkpoints with everything that can be acknowledged before, between and after them."""
    bookie.create(*LEDGER_IDS)
    for ledger_id in LEDGER_IDS:
        bookie.add(ledger_id, *range(5), payload=b"first")
    bookie.write_lac(4, 2)
    checkpoint(bookie.storage)
    bookie.fence(3)
    bookie.add(5, 4, 5, payload=b"second")
    running = bookie.storage.begin_checkpoint()
    bookie.add(6, 5, payload=b"third")
    bookie.fence(6)
    bookie.storage.write_checkpoint(running)
    bookie.storage.end_checkpoint(running)
    release(running)


def check_the_work(storage: LedgerStorage, moment: str) -> None:
    for ledger_id in LEDGER_IDS:
        row = storage.engine_of(ledger_id).rows.find(ledger_id)
        assert row is not None, moment
        assert row.is_fenced == (ledger_id in {3, 6}), moment
        assert row.explicit_lac == (explicit_lac(4, 2) if ledger_id == 4 else None), moment
        for entry_id in range(5):
            payload = b"second" if (ledger_id, entry_id) == (5, 4) else b"first"
            assert body_of(storage, ledger_id, entry_id) == entry(ledger_id, entry_id, payload), moment
    assert body_of(storage, 5, 5) == entry(5, 5, b"second"), moment
    assert body_of(storage, 6, 5) == entry(6, 5, b"third"), moment
    assert body_of(storage, 3, 5) is None, moment


@pytest.mark.parametrize(("journals", "ledgers"), [(1, 1), (2, 2)])
def test_a_crash_between_any_two_steps_of_a_checkpoint(tmp_path: Path, journals: int, ledgers: int) -> None:
    """At each step of the second checkpoint the directory is copied; every copy boots with all that was
    acknowledged."""
    live = tmp_path / "live"
    disk = PhotographedDisk(live)
    config = config_below(live, journals=journals, ledgers=ledgers)
    storage = open_storage(config, filesystem=disk, open_index=opening_watched(disk.photograph))
    storage.replay()

    class Photographed(Bookie):
        def fence(self, ledger_id: int) -> None:
            super().fence(ledger_id)
            # All that is acknowledged is acknowledged with the last fence; the checkpoint is on its way.
            disk.photograph_into = tmp_path / "photographs" if ledger_id == 6 else None

    work_of_a_day(Photographed(storage))
    disk.photograph("after all")
    assert len(disk.photographs) >= 8 * ledgers
    storage.close()
    for moment, image in disk.photographs:
        survivor = open_storage(config_below(image, journals=journals, ledgers=ledgers))
        survivor.replay()
        check_the_work(survivor, moment)
        survivor.close()


def test_a_crash_between_any_two_steps_of_a_boot(tmp_path: Path) -> None:
    """The same for a replay with its flush, marks and new journals."""
    live = tmp_path / "live"
    config = config_below(live, journals=2, ledgers=2)
    bookie = started(config)
    work_of_a_day(bookie)
    bookie.storage.close()
    disk = PhotographedDisk(live)
    storage = open_storage(config, filesystem=disk, open_index=opening_watched(disk.photograph))
    disk.photograph_into = tmp_path / "photographs"
    storage.replay()
    storage.close()
    assert len(disk.photographs) >= 10
    for moment, image in disk.photographs:
        survivor = open_storage(config_below(image, journals=2, ledgers=2))
        survivor.replay()
        check_the_work(survivor, moment)
        survivor.close()


def test_a_crash_between_any_two_steps_of_the_first_boot(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    disk = PhotographedDisk(live)
    disk.photograph_into = tmp_path / "photographs"
    storage = open_storage(config_below(live), filesystem=disk, open_index=opening_watched(disk.photograph))
    storage.replay()
    storage.close()
    assert len(disk.photographs) >= 10
    for _, image in disk.photographs:
        bookie = started(config_below(image))
        bookie.create(5)
        bookie.add(5, 1)
        checkpoint(bookie.storage)
        assert body_of(restarted(bookie, config_below(image)), 5, 1) == entry(5, 1)


def test_an_index_batch_lost_behind_the_mark_stops_the_boot(tmp_path: Path) -> None:
    """Promise 2, end to end: the journal no longer has it, so it must not become "no such entry"."""
    config = config_below(tmp_path)
    bookie = started(config)
    bookie.create(5)
    bookie.add(5, 1)
    checkpoint(bookie.storage)
    bookie.storage.close()
    current = Path(current_directory(config.ledger_directories[0]))
    max((current / LOCATIONS_DATABASE).glob("*.log")).unlink()
    with pytest.raises(IndexDamagedError, match="bkctl storage index rebuild"):
        open_engine(current)
    with pytest.raises(IndexDamagedError):
        open_storage(config)
