"""What each journal record does at boot, and what stops the boot. Rules: storage section 3.11."""

from __future__ import annotations

import hashlib
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import crc32c
import pytest

from bkctl.storage.config import EngineConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.entry_log.reader import EntryLogScan, list_entry_logs
from bkctl.storage.errors import CorruptFileError, EntryTooLargeError, IndexMissingError, JournalError
from bkctl.storage.filenames import LOCK, current_directory, journal_file_name
from bkctl.storage.ids import LogMark
from bkctl.storage.index.ledger_index import LedgerRow
from bkctl.storage.journal.format import (
    JournalRecordKind,
    decode_record,
    encode_explicit_lac_record,
    encode_fence_record,
    encode_file_header,
    encode_ledger_key_record,
)
from bkctl.storage.journal.log_mark import encode_mark_record, read_last_mark
from bkctl.storage.journal.reader import list_journals
from bkctl.storage.step_sizes import StepSizes
from tests.storage.engines import KEY, config_below, entry, explicit_lac, open_storage
from tests.storage.golden import FILES, paths, unpack
from tests.storage.groups import group_bytes
from tests.storage.traced_disk import TracedDisk

FIRST = 0x19A2B3C4D5E
UNKNOWN_LEDGER = 90


def write_journal(
    root: Path, *groups: Sequence[bytes], journal_id: int = FIRST, index: int = 0, tail: bytes = b""
) -> Path:
    """A journal file as a killed bookie leaves it."""
    directory = Path(current_directory(str(root / f"journal-{index}")))
    directory.mkdir(parents=True, exist_ok=True)
    data = encode_file_header()
    for group in groups:
        data += group_bytes(list(group), len(data))
    path = directory / journal_file_name(journal_id)
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
    assert engine.rows.find(5) == LedgerRow(master_key=KEY, is_fenced=True, explicit_lac=explicit_lac(5, 1))
    assert [engine.stored.read(5, entry_id) for entry_id in (0, 1)] == [entry(5, 0), entry(5, 1)]
    assert engine.note_last_stored(5, engine.stored.find_last(5), engine.read_generation) == 1
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
    assert storage.engine_of(5).rows.find(5) == LedgerRow(master_key=KEY, is_fenced=True)
    assert storage.engine_of(5).stored.read(5, 0) == entry(5, 0)


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
    assert storage.engine_of(5).rows.find(5) is None
    assert storage.engine_of(5).stored.read(5, 0) is None


def test_entries_of_a_ledger_with_a_row_need_no_key_record(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5)])
    replayed(tmp_path).close()
    newest = list_journals(TracedDisk(), current_directory(str(tmp_path / "journal-0")))[-1]
    write_journal(tmp_path, [entry(5, 0)], journal_id=newest + 1)
    storage = replayed(tmp_path)
    assert storage.engine_of(5).stored.read(5, 0) == entry(5, 0)


def test_a_fence_creates_the_row(tmp_path: Path) -> None:
    """H3: Java finds neither key nor row, drops the fence, and the ledger takes adds again."""
    write_journal(tmp_path, [encode_fence_record(5), key_record(5), entry(5, 0)])
    engine = replayed(tmp_path).engine_of(5)
    assert engine.rows.find(5) == LedgerRow(master_key=KEY, is_fenced=True)
    assert engine.stored.read(5, 0) == entry(5, 0)


def test_the_last_of_duplicates_wins(tmp_path: Path) -> None:
    write_journal(tmp_path, [key_record(5), entry(5, 0, b"old"), entry(5, 0, b"new")])
    assert replayed(tmp_path).engine_of(5).stored.read(5, 0) == entry(5, 0, b"new")


def test_a_placeholder_key_is_replaced(tmp_path: Path) -> None:
    write_journal(tmp_path, [encode_ledger_key_record(5, bytes(20)), key_record(5), encode_ledger_key_record(5, b"")])
    assert replayed(tmp_path).engine_of(5).rows.find(5) == LedgerRow(master_key=KEY)


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
    assert storage.engine_of(0).stored.read(0, 0) == entry(0, 0)
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
    assert storage.engine_of(5).stored.read(5, 0) == entry(5, 0)


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
    assert [storage.engine_of(5).stored.read(5, entry_id) for entry_id in range(60)] == bodies


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
        row = storage.engine_of(ledger_id).rows.find(ledger_id)
        assert row is not None
        if record["type"] == "entry":
            body = storage.engine_of(ledger_id).stored.read(ledger_id, entry_id)
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
        assert storage.engine_of(ledger_id).stored.read(ledger_id, entry_id) == body
    for entry_id in (100, 101):
        assert storage.engine_of(5).stored.read(5, entry_id) == entry(5, entry_id, b"again")
    assert storage.engine_of(5).stored.list_entries(5)[-1] == 102
    assert storage.engine_of(99).rows.find(99) is None
    storage.close()


def test_a_group_larger_than_the_write_cache_is_flushed_on_the_way(tmp_path: Path) -> None:
    bodies = [entry(5, entry_id, bytes(2000) + b"x") for entry_id in range(60)]
    journal_of(tmp_path, [key_record(5)], bodies)
    storage = open_storage(config_below(tmp_path))
    assert storage.replay().entry_count == 60
    assert [storage.engine_of(5).stored.read(5, entry_id) for entry_id in range(60)] == bodies
    storage.close()


@pytest.mark.parametrize("group", [[entry(4, 0), entry(5, 0)], [entry(5, 0)], [key_record(5), entry(5, 0)]])
def test_a_group_of_another_journals_ledger_stops_the_boot(tmp_path: Path, group: list[bytes]) -> None:
    """The list of journals has changed: the ledger's other records are looked for elsewhere."""
    journal_of(tmp_path, group)
    storage = open_storage(config_below(tmp_path, journals=2))
    with pytest.raises(CorruptFileError, match="ledger 5, which belongs to another journal"):
        storage.replay()
    storage.close()


def any_groups(seed: int, count: int, *, has_deleted: bool) -> Iterator[list[bytes]]:
    """Groups as clients cause them: ledgers begin and end on the way, and entries are added again."""
    choice = random.Random(seed)
    next_ids: dict[int, int] = {}
    if has_deleted:
        yield [entry(UNKNOWN_LEDGER, 0)]
    yield [key_record(20), entry(20, 0, last_add_confirmed=10**6)]
    for number in range(1, count):
        group = [entry(20, number)]
        for _ in range(choice.randint(1, 30)):
            ledger_id = choice.randrange(12)
            if ledger_id not in next_ids:
                next_ids[ledger_id] = 0
                group.append(key_record(ledger_id))
            entry_id = next_ids[ledger_id]
            what = choice.random()
            if what < 0.9:
                next_ids[ledger_id] += 1
            elif what < 0.95:
                entry_id = choice.randrange(entry_id + 1)
            elif what < 0.97:
                group.append(encode_explicit_lac_record(ledger_id, explicit_lac(ledger_id, entry_id)))
            elif what < 0.98:
                group.append(encode_fence_record(ledger_id))
            elif what < 0.99 and has_deleted:
                group.append(entry(UNKNOWN_LEDGER, entry_id))
            body = choice.randbytes(choice.choice([0, 5, 300, 300, 4000]))
            # One client may know a larger or a smaller LAC than the client before it.
            group.append(entry(ledger_id, entry_id, body, last_add_confirmed=entry_id + choice.randint(-5, 5)))
        yield group


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_all_that_was_journaled_is_there(tmp_path: Path, seed: int, batch_bytes: int) -> None:
    """Several journals and ledger directories, small write caches, and entries of a ledger that was deleted."""
    config = config_below(tmp_path, journals=2, ledgers=3)
    storage = open_storage(config)
    storage.replay()
    bodies: dict[tuple[int, int], bytes] = {}
    lacs: defaultdict[int, int] = defaultdict(lambda: -1)
    fenced: set[int] = set()
    for group in any_groups(seed, 200, has_deleted=seed == 2):
        for index, journal in enumerate(storage.journals):
            mine = [data for data in group if struct.unpack_from(">q", data)[0] % 2 == index]
            if mine:
                journal.write_group(mine)
        for data in group:
            record = decode_record(data, 0, 6)
            if record.kind is JournalRecordKind.FENCE:
                fenced.add(record.ledger_id)
            elif record.kind is JournalRecordKind.EXPLICIT_LAC:
                lacs[record.ledger_id] = max(lacs[record.ledger_id], struct.unpack_from(">qq", record.payload)[1])
            elif record.kind is JournalRecordKind.ENTRY and record.ledger_id != UNKNOWN_LEDGER:
                bodies[record.ledger_id, record.entry_id] = data
                lacs[record.ledger_id] = max(lacs[record.ledger_id], struct.unpack_from(">qqq", data)[2])
    storage.close()
    storage = open_storage(config, steps=StepSizes(replay_batch_bytes=batch_bytes))
    report = storage.replay()
    assert (report.skipped_count > 0) == (seed == 2)
    found = {}
    for engine in storage.engines:
        for ledger_id in engine.ledger_ids():
            row = engine.rows.find(ledger_id)
            assert row is not None
            assert (row.master_key, row.is_fenced) == (KEY, ledger_id in fenced)
            found.update(
                {
                    (ledger_id, each): engine.stored.read(ledger_id, each)
                    for each in engine.stored.list_entries(ledger_id)
                }
            )
            last = engine.note_last_stored(ledger_id, engine.stored.find_last(ledger_id), engine.read_generation)
            assert last == lacs[ledger_id]
    assert found == bodies
    storage.close()


@pytest.mark.parametrize(
    ("late", "error"),
    [
        (encode_ledger_key_record(5, b"x" * 20), CorruptFileError),
        (entry(5, 10_000, bytes(40 * 1024)), EntryTooLargeError),
    ],
)
def test_a_record_that_cannot_be_applied_stops_the_boot(tmp_path: Path, late: bytes, error: type[Exception]) -> None:
    """Another key of a ledger; an entry over a limit that was lowered since."""
    groups = [[entry(5, number)] for number in range(100)]
    groups.insert(50, [late])
    journal_of(tmp_path, [key_record(5)], *groups)
    with pytest.raises(error):
        replayed(tmp_path)


@pytest.mark.parametrize("sign", [encode_fence_record(5), encode_ledger_key_record(5, KEY)])
@pytest.mark.parametrize(("first", "place"), [(4, 0), (4, 3), (100, 0), (100, 3), (100, 400)])
def test_entries_before_the_first_key_or_fence_of_their_ledger_are_skipped(
    tmp_path: Path, sign: bytes, first: int, place: int
) -> None:
    """They belong to a ledger that was deleted; in another group, in the same one, in another batch.

    No log has them either: an index that is rebuilt from the logs would bring them back.
    """
    groups = [[key_record(6)]]
    groups += [[entry(ledger_id, number, bytes(400)) for ledger_id in (5, 6)] for number in range(600)]
    groups[first].insert(1, sign)
    groups[first + place].insert(0, sign)
    journal_of(tmp_path, *groups)
    storage = open_storage(config_below(tmp_path), steps=StepSizes(replay_batch_bytes=64 * 1024))
    skipped_count = first if place else first - 1
    assert storage.replay().skipped_count == skipped_count
    assert storage.engine_of(5).stored.list_entries(5) == list(range(skipped_count, 600))
    directory = storage.engine_of(5).ledger_directory
    logged = [
        (each.ledger_id, each.entry_id)
        for log_id in list_entry_logs(TracedDisk(), directory)
        for each in EntryLogScan(TracedDisk(), directory, log_id)
    ]
    assert sorted(logged) == [
        *((5, number) for number in range(skipped_count, 600)),
        *((6, number) for number in range(600)),
    ]
    storage.close()


class KilledError(Exception):
    """The process was killed here."""


def killed() -> None:
    raise KilledError


def test_a_deletion_that_was_cut_off_deletes_no_entry_of_the_journal(tmp_path: Path) -> None:
    """The ledger was deleted and is in the journal again: the deletion ends before the journal is applied."""
    bodies = [entry(5, number, bytes(400)) for number in range(300)]
    journal_of(tmp_path, [key_record(5)], *([body] for body in bodies))
    storage = open_storage(config_below(tmp_path))
    engine = storage.engine_of(5)
    engine.rows.set_master_key(5, KEY)
    engine.add(5, 0, entry(5, 0))
    checkpoint_now(engine)
    engine.delete_ledger(5)
    with pytest.raises(KilledError):
        engine.write_checkpoint(engine.begin_checkpoint(), killed)
    storage.close()
    engine = replayed(tmp_path).engine_of(5)
    assert [engine.stored.read(5, number) for number in range(300)] == bodies


def test_an_entry_that_contains_a_group_is_one_entry(tmp_path: Path) -> None:
    """A client that knows where its entry goes can put the end of a group into it, and another group after that."""
    journal_of(tmp_path)
    storage = open_storage(config_below(tmp_path, engine=EngineConfig()))
    storage.replay()
    journal = storage.journals[0]
    journal.write_group([key_record(5), key_record(6)])
    start, size_bytes = journal.durable_position, 100 * 1024
    body = bytearray(entry(5, 0))
    while len(body) < size_bytes // 2:
        body += bytes(-(start.offset + 4 + len(body)) % 512)
        body += fake_end(struct.pack(">i", size_bytes) + body, start)
        body += bytes(-(start.offset + 4 + len(body)) % 512)
        inner_start = start.offset + 4 + len(body)
        body += group_bytes([entry(6, 666)], inner_start, journal_id=start.journal_id)
    body += bytes(size_bytes - len(body))
    journal.write_group([bytes(body)])
    journal.write_group([entry(5, 1)])
    storage.close()
    storage = open_storage(config_below(tmp_path, engine=EngineConfig()))
    assert storage.replay().entry_count == 2
    assert [storage.engine_of(5).stored.read(5, entry_id) for entry_id in (0, 1)] == [bytes(body), entry(5, 1)]
    assert storage.engine_of(6).stored.list_entries(6) == []
    storage.close()


def fake_end(before: bytes, start: LogMark) -> bytes:
    """Padding after ``before`` up to the next sector, with the right checksum of a group that ends here."""
    count = -(start.offset + len(before) + 8) % 512 or 512
    padding = struct.pack(">ii3scq", -256, count, b"bkg", b"\1", start.offset)
    crc = crc32c.crc32c(before + padding, crc32c.crc32c(struct.pack(">q", start.journal_id)))
    return padding + struct.pack(">I", crc) + bytes(count - 16)
