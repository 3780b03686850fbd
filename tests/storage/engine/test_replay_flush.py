"""A replay whose flush finds no room: what it applied waits in memory, and the journals keep it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.storage.config import JournalConfig, StorageConfig
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import IndexFailedError, JournalFullError, NoRoomToStartError
from bkctl.storage.filenames import current_directory, journal_file_name
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.format import encode_fence_record, encode_ledger_key_record
from bkctl.storage.journal.reader import list_journals
from tests.storage.engine.test_replay import key_record, mark_of, replayed, write_journal
from tests.storage.engines import KEY, SMALL, checkpoint, config_below, entry, open_storage, opening_watched
from tests.storage.traced_disk import TracedDisk

TORN = b"\0\0\x04\0torn"
"""Of a record of 1 KiB, in the first of its sectors."""
BODY = bytes(1000)


def no_room(root: Path) -> DiskRoom:
    return DiskRoom(TracedDisk(), [str(root / "ledgers-0")], reserve_bytes=2**60)


def journals_of(root: Path) -> list[int]:
    return list_journals(TracedDisk(), current_directory(str(root / "journal-0")))


def write_entries(root: Path, count: int, *, config: StorageConfig | None = None) -> Path:
    """What a bookie has journaled that was killed before its first checkpoint; the journal's file."""
    storage = open_storage(config or config_below(root))
    storage.replay()
    records = [encode_ledger_key_record(5, KEY), *(entry(5, entry_id, BODY) for entry_id in range(count))]
    position = storage.journals[0].write_group(records)
    storage.close()
    return Path(current_directory(str(root / "journal-0"))) / journal_file_name(position.journal_id)


def tear(path: Path) -> None:
    """The beginning of a group whose rest a crash kept from the disk; it is where the next group would be."""
    data = path.read_bytes()
    start = -(-len(data.rstrip(b"\0")) // 512) * 512
    path.write_bytes(data[:start] + TORN + data[start + len(TORN) :])


class FullDisk(TracedDisk):
    """Has no room for some files."""

    def __init__(self, is_refused: Callable[[str], bool]) -> None:
        super().__init__()
        self.is_refused = is_refused

    def note(self, operation: str, path: str) -> None:
        super().note(operation, path)
        if operation in {"write", "replace"} and self.is_refused(os.path.basename(path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def require_entries(storage: LedgerStorage, count: int) -> None:
    engine = storage.engine_of(5)
    for entry_id in range(count):
        body = engine.find_cached(5, entry_id) or engine.stored.read(5, entry_id)
        assert body == entry(5, entry_id, BODY)


def require_fenced(storage: LedgerStorage) -> None:
    row = storage.engine_of(5).rows.find(5)
    assert row is not None
    assert row.is_fenced


def test_it_waits_in_the_cache_for_the_next_checkpoint(tmp_path: Path) -> None:
    path = write_journal(tmp_path, [key_record(5), entry(5, 0)], [encode_fence_record(5)])
    for is_last in (False, True):
        disk = TracedDisk()
        storage = open_storage(config_below(tmp_path), filesystem=disk)
        disk.take_calls()
        assert storage.replay(room=no_room(tmp_path)).unflushed_bytes > 0
        assert storage.flush_failure is not None
        # A process that was killed may have left it in the page cache alone, and now the fence is vouched for.
        assert ("sync", path.name) in disk.calls
        assert storage.engine_of(5).find_cached(5, 0) == entry(5, 0)
        assert mark_of(tmp_path) == LogMark(0, 0)
        if is_last:
            checkpoint(storage)
        storage.close()
    storage = replayed(tmp_path)
    assert storage.engine_of(5).stored.read(5, 0) == entry(5, 0)
    require_fenced(storage)
    storage.close()


def test_behind_a_torn_tail_of_our_own_the_next_journal_begins(tmp_path: Path) -> None:
    """The tail is judged by the file itself, whether it is the newest or not."""
    tear(write_entries(tmp_path, 1))
    for ledger_id in (6, 7):
        storage = open_storage(config_below(tmp_path))
        report = storage.replay(room=no_room(tmp_path))
        assert len(report.dropped_tails) == 1
        assert storage.flush_failure is not None
        assert report.fence_count == ledger_id - 6
        require_entries(storage, 1)
        storage.journals[0].write_group([encode_fence_record(ledger_id)])
        storage.close()
    storage = replayed(tmp_path)
    require_entries(storage, 1)
    rows = [storage.engine_of(ledger_id).rows.find(ledger_id) for ledger_id in (6, 7)]
    assert [row is not None and row.is_fenced for row in rows] == [True, True]
    storage.close()


def test_behind_a_torn_tail_that_only_the_newest_file_may_have_the_next_journal_waits(tmp_path: Path) -> None:
    """In an older file of Java's it would be damage: so nothing is journaled before a mark is behind it."""
    write_journal(tmp_path, [key_record(5), entry(5, 0, BODY)], tail=TORN)
    files = journals_of(tmp_path)
    for _ in range(2):
        storage = open_storage(config_below(tmp_path))
        report = storage.replay(room=no_room(tmp_path))
        assert len(report.dropped_tails) == 1
        require_entries(storage, 1)
        with pytest.raises(JournalFullError, match="flushed"):
            storage.journals[0].write_group([encode_fence_record(5)])
        assert journals_of(tmp_path) == files
        storage.close()
    storage = open_storage(config_below(tmp_path))
    storage.replay(room=no_room(tmp_path))
    checkpoint(storage)
    storage.journals[0].write_group([encode_fence_record(5)])
    storage.close()
    storage = replayed(tmp_path)
    require_entries(storage, 1)
    require_fenced(storage)
    storage.close()


def test_both_halves_of_the_write_cache_wait(tmp_path: Path) -> None:
    """More than one half takes: what was applied first is a checkpoint of its own, which proves nothing of any mark."""
    write_entries(tmp_path, 50)
    start = mark_of(tmp_path)
    for checkpoint_count in (0, 1, 2):
        storage = open_storage(config_below(tmp_path))
        report = storage.replay(room=no_room(tmp_path))
        assert (report.entry_count, storage.engine_of(5).memtable_bytes) == (50, report.unflushed_bytes)
        require_entries(storage, 50)
        for number in range(checkpoint_count):
            assert storage.is_retry_due is (number == 0)
            checkpoint(storage)
            assert (mark_of(tmp_path) > start) is (number == 1)
            require_entries(storage, 50)
        storage.close()
    storage = replayed(tmp_path)
    assert storage.engine_of(5).memtable_bytes == 0
    require_entries(storage, 50)
    storage.close()


def test_the_deletion_that_a_crash_cut_off_is_not_taken_for_journaled(tmp_path: Path) -> None:
    write_entries(tmp_path, 50)
    storage = open_storage(config_below(tmp_path))
    storage.replay(room=no_room(tmp_path))
    storage.engine_of(5).delete_ledger(5)
    checkpoint(storage)
    assert storage.engine_of(5).is_deletion_pending(5), "the journal still holds its former life"
    checkpoint(storage)
    assert not storage.engine_of(5).is_deletion_pending(5)
    storage.close()


def test_more_than_the_write_cache_takes_stops_the_boot_with_the_way_out(tmp_path: Path) -> None:
    write_entries(tmp_path, 200)
    storage = open_storage(config_below(tmp_path))
    with pytest.raises(NoRoomToStartError) as raised:
        storage.replay(room=no_room(tmp_path))
    storage.close()
    sentence = str(raised.value)
    assert sentence.startswith(f"{tmp_path / 'ledgers-0'}: ")
    assert " more are needed" in sentence
    found = re.search(r"--set dbStorage_writeCacheMaxSizeMb=([0-9]+)$", sentence)
    assert found is not None
    enough = msgspec.structs.replace(SMALL, memtable_bytes_max=int(found[1]) * 2**20)
    storage = open_storage(config_below(tmp_path, engine=enough))
    storage.replay(room=no_room(tmp_path))
    require_entries(storage, 200)
    storage.close()
    storage = replayed(tmp_path)
    require_entries(storage, 200)
    storage.close()


def test_a_flush_that_finds_no_room_waits_too(tmp_path: Path) -> None:
    """A quota, or a limit on file sizes: the file system says that there is room."""
    write_entries(tmp_path, 50)
    disk = FullDisk(lambda name: name.endswith(".log"))
    storage = open_storage(config_below(tmp_path), filesystem=disk)
    storage.replay(room=DiskRoom(disk, [str(tmp_path / "ledgers-0")], reserve_bytes=0))
    assert storage.flush_failure is not None
    require_entries(storage, 50)
    disk.is_refused = lambda _: False
    for _ in range(2):
        checkpoint(storage)
    storage.close()
    storage = replayed(tmp_path)
    require_entries(storage, 50)
    storage.close()


@pytest.mark.parametrize("suffix", [".txn", "bkctl.journals"])
@pytest.mark.parametrize("reserve_bytes", [0, 2**60])
def test_a_journal_that_finds_no_room_begins_with_its_first_group(
    tmp_path: Path, suffix: str, reserve_bytes: int
) -> None:
    """Whether the ledger directories have room or not, and however often it was tried."""
    write_entries(tmp_path, 3)
    room = DiskRoom(TracedDisk(), [str(tmp_path / "ledgers-0")], reserve_bytes)
    for _ in range(4):
        disk = FullDisk(lambda name: name.endswith(suffix))
        storage = open_storage(config_below(tmp_path), filesystem=disk)
        storage.replay(room=room)
        require_entries(storage, 3)
        with pytest.raises(JournalFullError, match="No space left"):
            storage.journals[0].write_group([encode_fence_record(5)])
        storage.close()
    storage = open_storage(config_below(tmp_path), filesystem=disk)
    storage.replay(room=room)
    disk.is_refused = lambda _: False
    storage.journals[0].write_group([encode_fence_record(5)])
    storage.close()
    storage = replayed(tmp_path)
    require_entries(storage, 3)
    require_fenced(storage)
    storage.close()


def test_a_checkpoint_before_the_first_group_covers_what_was_replayed(tmp_path: Path) -> None:
    path = write_entries(tmp_path, 3)
    disk = FullDisk(lambda name: name.endswith(".txn"))
    storage = open_storage(config_below(tmp_path), filesystem=disk)
    storage.replay(room=no_room(tmp_path))
    checkpoint(storage)
    storage.close()
    assert mark_of(tmp_path).journal_id == int(path.stem, 16)
    storage = open_storage(config_below(tmp_path))
    assert storage.replay().entry_count == 0
    require_entries(storage, 3)
    storage.close()


def test_no_journal_begins_before_its_mark_is_recorded(tmp_path: Path) -> None:
    """On Java's directories: a catalog without a mark record would say that one is lost."""
    write_journal(tmp_path, [key_record(5), entry(5, 0, BODY)])
    disk = FullDisk(lambda name: name == "bkctl.mark")
    storage = open_storage(config_below(tmp_path), filesystem=disk)
    storage.replay(room=no_room(tmp_path))
    require_entries(storage, 1)
    with pytest.raises(JournalFullError):
        storage.journals[0].write_group([encode_fence_record(5)])
    disk.is_refused = lambda _: False
    checkpoint(storage)
    storage.journals[0].write_group([encode_fence_record(5)])
    storage.close()
    replayed(tmp_path).close()


def test_a_loose_journal_is_no_exception(tmp_path: Path) -> None:
    """Version 4 has no checksums: its tail is judged as Java's is."""
    config = msgspec.structs.replace(
        config_below(tmp_path), journal=JournalConfig(format_version=4, preallocation_bytes=4096)
    )
    path = write_entries(tmp_path, 1, config=config)
    data = path.read_bytes()
    start = len(data.rstrip(b"\0")) + 2000
    path.write_bytes(data[:start] + TORN + data[start + len(TORN) :])
    for _ in range(2):
        storage = open_storage(config)
        assert len(storage.replay(room=no_room(tmp_path)).dropped_tails) == 1
        require_entries(storage, 1)
        with pytest.raises(JournalFullError):
            storage.journals[0].write_group([encode_fence_record(5)])
        storage.close()


def test_an_index_that_fails_for_lack_of_room_stops_the_boot(tmp_path: Path) -> None:
    """After a failed write LevelDB cannot be written again, so the entries cannot wait for the next checkpoint."""
    write_entries(tmp_path, 50)

    def fail(_: str) -> None:
        raise IndexFailedError("no room") from OSError(errno.ENOSPC, "no room")

    storage = open_storage(config_below(tmp_path), open_index=opening_watched(fail))
    with pytest.raises(IndexFailedError):
        storage.replay(room=DiskRoom(TracedDisk(), [str(tmp_path / "ledgers-0")], reserve_bytes=0))
    storage.close()
