"""What each journal record does at boot, and what stops the boot. Rules: storage section 3.11."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.config import EngineConfig
from storage.errors import CorruptFileError, EntryTooLargeError, IndexMissingError, JournalError
from storage.filenames import LOCK, current_directory, journal_file_name
from storage.ids import LogMark
from storage.journal_format import (
    encode_explicit_lac_record,
    encode_fence_record,
    encode_file_header,
    encode_ledger_key_record,
)
from storage.journal_reader import list_journals
from storage.ledger_index import LedgerRow
from storage.ledger_storage import LedgerStorage
from storage.log_mark import encode_mark_record, read_last_mark
from storage.step_sizes import StepSizes
from tests.storage.engines import KEY, config_below, entry, explicit_lac, open_storage
from tests.storage.golden import FILES, paths, unpack
from tests.storage.groups import group_bytes
from tests.storage.traced_disk import TracedDisk

FIRST = 0x19A2B3C4D5E


def write_journal(
    root: Path, *groups: Sequence[bytes], journal_id: int = FIRST, index: int = 0, tail: bytes = b""
) -> Path:
    """A journal file as a killed bookie leaves it."""
    folder = Path(current_directory(str(root / f"journal-{index}")))
    folder.mkdir(parents=True, exist_ok=True)
    data = encode_file_header()
    for group in groups:
        data += group_bytes(list(group), len(data))
    path = folder / journal_file_name(journal_id)
    path.write_bytes(data + tail)
    return path


def replayed(root: Path) -> LedgerStorage:
    storage = open_storage(config_below(root))
    try:
        storage.replay()
    except BaseException:
        storage.close()
        raise
    return storage


def mark_of(root: Path) -> LogMark:
    return read_last_mark(TracedDisk(), [current_directory(str(root / "ledgers-0"))], 0, 1)


def key_record(ledger_id: int) -> bytes:
    return encode_ledger_key_record(ledger_id, KEY)


def test_every_kind_of_record(tmp_path: Path) -> None:
    write_journal(
        tmp_path,
        [key_record(5), entry(5, 0), entry(5, 1)],
        [encode_explicit_lac_record(5, explicit_lac(5, 1)), encode_fence_record(5)],
    )
    storage = open_storage(config_below(tmp_path))
    report = storage.replay()
    engine = storage.engine_of(5)
    assert engine.ledger(5) == LedgerRow(master_key=KEY, is_fenced=True, explicit_lac=explicit_lac(5, 1))
    assert [engine.read(5, entry_id) for entry_id in (0, 1)] == [entry(5, 0), entry(5, 1)]
    assert engine.note_last_stored(5, engine.find_last(5), engine.read_generation) == 1
    counts = (report.file_count, report.ledger_key_count, report.entry_count, report.fence_count)
    assert counts == (1, 1, 2, 1)
    assert (report.explicit_lac_count, report.skipped_count, report.unknown_count) == (1, 0, 0)
    assert report.dropped_tails == []


def test_nothing_is_left_to_the_journal(tmp_path: Path) -> None:
    """All is flushed and the mark is behind it: the next boot needs none of the old records."""
    path = write_journal(tmp_path, [key_record(5), entry(5, 0), encode_fence_record(5)])
    end = path.stat().st_size
    storage = replayed(tmp_path)
    assert storage.engine_of(5).memtable_bytes == 0
    assert mark_of(tmp_path) == LogMark(FIRST, end)
    storage.close()
    storage = open_storage(config_below(tmp_path))
    report = storage.replay()
    assert (report.file_count, report.entry_count, report.fence_count) == (2, 0, 0)
    assert storage.engine_of(5).ledger(5) == LedgerRow(master_key=KEY, is_fenced=True)
    assert storage.engine_of(5).read(5, 0) == entry(5, 0)


def test_replay_begins_at_the_mark(tmp_path: Path) -> None:
    groups = [[key_record(5), entry(5, 0)], [entry(5, 1)]]
    second_at = len(encode_file_header()) + len(group_bytes(groups[0], 512))
    write_journal(tmp_path, *groups, journal_id=FIRST)
    replayed(tmp_path).close()
    current = Path(current_directory(str(tmp_path / "ledgers-0")))
    (current / "bkctl.mark").write_bytes(encode_mark_record(LogMark(FIRST, second_at)))
    storage = open_storage(config_below(tmp_path))
    assert storage.replay().entry_count == 1


def test_records_of_a_deleted_ledger_are_skipped(tmp_path: Path) -> None:
    write_journal(tmp_path, [entry(5, 0), encode_explicit_lac_record(5, explicit_lac(5, 0))])
    storage = open_storage(config_below(tmp_path))
    report = storage.replay()
    assert report.skipped_count == 2
    assert storage.engine_of(5).ledger(5) is None
    assert storage.engine_of(5).read(5, 0) is None


def test_entries_of_a_ledger_with_a_row_need_no_key_record(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5)])
    replayed(tmp_path).close()
    newest = list_journals(TracedDisk(), current_directory(str(tmp_path / "journal-0")))[-1]
    write_journal(tmp_path, [entry(5, 0)], journal_id=newest + 1)
    storage = replayed(tmp_path)
    assert storage.engine_of(5).read(5, 0) == entry(5, 0)


def test_a_fence_creates_the_row(tmp_path: Path) -> None:
    """H3: Java finds neither key nor row, drops the fence, and the ledger takes adds again."""
    write_journal(tmp_path, [encode_fence_record(5), key_record(5), entry(5, 0)])
    engine = replayed(tmp_path).engine_of(5)
    assert engine.ledger(5) == LedgerRow(master_key=KEY, is_fenced=True)
    assert engine.read(5, 0) == entry(5, 0)


def test_the_last_of_duplicates_wins(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5), entry(5, 0, b"old"), entry(5, 0, b"new")])
    assert replayed(tmp_path).engine_of(5).read(5, 0) == entry(5, 0, b"new")


def test_a_placeholder_key_is_replaced(tmp_path: Path) -> None:
    write_journal(tmp_path, [encode_ledger_key_record(5, bytes(20)), key_record(5), encode_ledger_key_record(5, b"")])
    assert replayed(tmp_path).engine_of(5).ledger(5) == LedgerRow(master_key=KEY)


def test_a_contradicting_key_stops_the_boot(tmp_path: Path) -> None:
    records = [key_record(5), entry(5, 0), encode_ledger_key_record(5, b"o" * 20)]
    path = write_journal(tmp_path, records)
    offset = 512 + sum(4 + len(record) for record in records[:2])
    with pytest.raises(CorruptFileError, match="another master key") as caught:
        replayed(tmp_path)
    assert (caught.value.path, caught.value.offset) == (str(path), offset)
    assert mark_of(tmp_path) == LogMark(0, 0)


def test_unknown_records_are_skipped(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5), struct.pack(">qq", 5, -0x3000) + b"later", entry(5, 0)])
    storage = open_storage(config_below(tmp_path))
    report = storage.replay()
    assert (report.unknown_count, report.entry_count) == (1, 1)


def test_a_ledger_of_another_journal_stops_the_boot(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5)], index=0)
    storage = open_storage(config_below(tmp_path, journals=2))
    with pytest.raises(CorruptFileError, match="ledger 5, which belongs to another journal"):
        storage.replay()


def test_an_explicit_lac_too_short_to_hold_one_stops_the_boot(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5), encode_explicit_lac_record(5, b"short")])
    with pytest.raises(CorruptFileError, match="explicit LAC of 5 bytes"):
        replayed(tmp_path)


def test_a_negative_ledger_stops_the_boot(tmp_path: Path) -> None:
    path = write_journal(tmp_path)
    path.write_bytes(path.read_bytes() + struct.pack(">iqqq", 24, -5, 1, 0))
    with pytest.raises(CorruptFileError):
        replayed(tmp_path)


def test_zeros_do_not_overwrite_entry_0_of_ledger_0(tmp_path: Path) -> None:
    """H21: the length word of an unsynced group reached the disk, its body did not."""
    write_journal(
        tmp_path, [key_record(0), entry(0, 0)], tail=struct.pack(">i", 40) + bytes(40) + b"\xff\xff\xff\0\0\0\1\xcc"
    )
    storage = open_storage(config_below(tmp_path))
    report = storage.replay()
    assert storage.engine_of(0).read(0, 0) == entry(0, 0)
    assert [tail.dropped_bytes > 0 for tail in report.dropped_tails] == [True]


def test_a_torn_tail_is_reported_and_not_met_again(tmp_path: Path) -> None:
    whole = write_journal(tmp_path, [key_record(5), entry(5, 0)])
    end = whole.stat().st_size
    path = write_journal(tmp_path, [key_record(5), entry(5, 0)], tail=struct.pack(">i", 100) + b"x" * 50)
    storage = open_storage(config_below(tmp_path))
    [tail] = storage.replay().dropped_tails
    assert (tail.path, tail.offset, tail.dropped_bytes) == (str(path), end, 54)
    assert tail.reason
    storage.close()
    storage = open_storage(config_below(tmp_path))
    assert storage.replay().dropped_tails == []
    assert storage.engine_of(5).read(5, 0) == entry(5, 0)


def test_a_hole_in_the_newest_file_does_not_stop_the_boots_after(tmp_path: Path) -> None:
    """The first boot drops it and begins a newer file: from then on the hole would be corruption."""
    later = group_bytes([entry(5, 1)], 0)
    write_journal(tmp_path, [key_record(5), entry(5, 0)], tail=bytes(1024) + later)
    storage = open_storage(config_below(tmp_path))
    [tail] = storage.replay().dropped_tails
    assert tail.dropped_bytes >= 1024
    storage.close()
    for _ in range(2):
        storage = open_storage(config_below(tmp_path))
        assert storage.replay().dropped_tails == []
        storage.close()


def test_a_hole_in_an_older_file_stops_the_boot(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5)], tail=bytes(1024) + group_bytes([encode_fence_record(5)], 0))
    write_journal(tmp_path, [key_record(5)], journal_id=FIRST + 1)
    with pytest.raises(CorruptFileError):
        replayed(tmp_path)


def test_a_missing_marked_file_stops_the_boot(tmp_path: Path) -> None:
    path = write_journal(tmp_path, [key_record(5), entry(5, 0)])
    replayed(tmp_path).close()
    path.unlink()
    with pytest.raises(JournalError, match="is missing"):
        replayed(tmp_path)


def test_more_than_a_memtable_is_flushed_on_the_way_without_a_mark(tmp_path: Path) -> None:
    bodies = [entry(5, entry_id, bytes(2000)) for entry_id in range(60)]
    path = write_journal(tmp_path, [key_record(5), *bodies])
    broken = path.read_bytes()
    path.write_bytes(broken + struct.pack(">i", -7))
    with pytest.raises(CorruptFileError):
        replayed(tmp_path)
    assert mark_of(tmp_path) == LogMark(0, 0)
    path.write_bytes(broken)
    storage = open_storage(config_below(tmp_path))
    assert storage.replay().entry_count == 60
    assert [storage.engine_of(5).read(5, entry_id) for entry_id in range(60)] == bodies


def test_an_entry_over_the_limit_stops_the_boot(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5), entry(5, 0, bytes(40 * 1024))])
    with pytest.raises(EntryTooLargeError):
        replayed(tmp_path)


# Journals that Java bookies wrote


def java_journals(root: Path, image: str) -> None:
    """The journal files of a Java bookie, and nothing of its ledger directory."""
    unpack(image, root / "java")
    target = Path(current_directory(str(root / "journal-0")))
    target.parent.mkdir()
    (root / "java" / "journal").rename(target)


def java_records(image: str) -> list[dict[str, Any]]:
    return [
        record
        for path in sorted(paths("journal"))
        if path.startswith(f"{image}/")
        for record in FILES[path]["records"]
        if record["type"] != "padding"
    ]


@pytest.mark.parametrize(
    "image", ["db-4.18.0/crash", "direct-io-4.18.0/replayed", "journal-v5-4.18.0/crash", "journal-v4-4.18.0/crash"]
)
def test_journals_of_java_bookies(tmp_path: Path, image: str) -> None:
    """Every entry with its bytes, every key, every fence, from journals of the versions 4, 5 and 6."""
    java_journals(tmp_path, image)
    storage = open_storage(config_below(tmp_path, engine=EngineConfig()))
    report = storage.replay()
    records = java_records(image)
    kinds = Counter(record["type"] for record in records)
    assert report.entry_count == kinds["entry"] > 0
    assert report.fence_count == kinds["fence"] > 0
    assert report.ledger_key_count == kinds["key"] > 0
    assert report.explicit_lac_count == kinds["explicitLac"]
    assert report.skipped_count == 0
    newest = {(record["ledger"], record["entry"]): record for record in records}
    for (ledger_id, entry_id), record in newest.items():
        row = storage.engine_of(ledger_id).ledger(ledger_id)
        assert row is not None
        if record["type"] == "entry":
            body = storage.engine_of(ledger_id).read(ledger_id, entry_id)
            assert body is not None
            assert hashlib.sha1(body, usedforsecurity=False).hexdigest() == record["sha1"]
        elif record["type"] == "key":
            assert row.master_key.hex() == record["key"]
        elif record["type"] == "fence":
            assert row.is_fenced
        else:
            assert row.explicit_lac is not None


def test_the_directory_of_a_java_bookie_needs_a_rebuild(tmp_path: Path) -> None:
    """Its index is not ours: opening with an empty one would deny all that is in its logs (H15)."""
    unpack("db-4.18.0/crash", tmp_path / "java")
    target = Path(current_directory(str(tmp_path / "ledgers-0")))
    target.parent.mkdir()
    (tmp_path / "java" / "ledgers").rename(target)
    before = sorted(target.iterdir())
    with pytest.raises(IndexMissingError, match="bkctl storage index rebuild"):
        open_storage(config_below(tmp_path))
    assert sorted(path for path in target.iterdir() if path.name != LOCK) == before


# Groups with a checksum, which are applied ledger by ledger


def journal_of(root: Path, *groups: Sequence[bytes]) -> None:
    """What a bookie of ours wrote before it was killed."""
    storage = open_storage(config_below(root))
    storage.replay()
    for group in groups:
        storage.journals[0].write_group(group)
    storage.close()


@pytest.mark.parametrize("batch_bytes", [1, 4000, 1 << 20])
def test_groups_of_many_ledgers_give_every_entry(tmp_path: Path, batch_bytes: int) -> None:
    """Whether they are applied one by one, a few together, or all."""
    ledgers = range(5, 12)
    bodies = {(ledger_id, entry_id): entry(ledger_id, entry_id) for entry_id in range(40) for ledger_id in ledgers}
    journal_of(
        tmp_path,
        [key_record(ledger_id) for ledger_id in ledgers],
        list(bodies.values()),
        [entry(5, 100), entry(99, 0)],
        [entry(5, 101, b"first")],
        [entry(5, 100, b"again"), encode_fence_record(6)],
        [entry(5, 101, b"again"), entry(5, 102)],
    )
    storage = open_storage(config_below(tmp_path), steps=StepSizes(replay_batch_bytes=batch_bytes))
    report = storage.replay()
    assert (report.entry_count, report.skipped_count, report.fence_count) == (len(bodies) + 5, 1, 1)
    for (ledger_id, entry_id), body in bodies.items():
        assert storage.engine_of(ledger_id).read(ledger_id, entry_id) == body
    for entry_id in (100, 101):
        assert storage.engine_of(5).read(5, entry_id) == entry(5, entry_id, b"again")
    assert storage.engine_of(5).list_entries(5)[-1] == 102
    assert storage.engine_of(99).ledger(99) is None
    storage.close()


def test_a_group_larger_than_the_write_cache_is_flushed_on_the_way(tmp_path: Path) -> None:
    bodies = [entry(5, entry_id, bytes(2000) + b"x") for entry_id in range(60)]
    journal_of(tmp_path, [key_record(5)], bodies)
    storage = open_storage(config_below(tmp_path))
    assert storage.replay().entry_count == 60
    assert [storage.engine_of(5).read(5, entry_id) for entry_id in range(60)] == bodies
    storage.close()


def test_a_group_of_another_journals_ledger_stops_the_boot(tmp_path: Path) -> None:
    """The list of journals has changed: the ledger's other records are looked for elsewhere."""
    journal_of(tmp_path, [entry(4, 0), entry(5, 0)])
    storage = open_storage(config_below(tmp_path, journals=2))
    with pytest.raises(CorruptFileError, match="ledger 5, which belongs to another journal"):
        storage.replay()
    storage.close()
