from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import CorruptFileError, JournalError
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import CatalogedJournal, JournalCatalog
from bkctl.storage.journal.format import (
    JournalRecord,
    JournalRecordKind,
    encode_explicit_lac_record,
    encode_fence_record,
    encode_file_header,
    encode_ledger_key_record,
)
from bkctl.storage.journal.log_mark import read_last_mark
from bkctl.storage.journal.reader import JournalEnd, JournalEndReason, JournalScan, journals_to_replay, list_journals
from tests.storage.golden import FILES, REPLAY_CASES, content, paths, unpack
from tests.storage.groups import group_bytes

FS = OsFileSystem()


def entry(entry_id: int, size: int = 40) -> bytes:
    return struct.pack(">qqqq", 1, entry_id, entry_id - 1, 0).ljust(size, b"x")


def journal(*groups: list[bytes], tail: bytes = bytes(4096)) -> bytes:
    data = encode_file_header()
    for group in groups:
        data += group_bytes(group, len(data))
    return data + tail


def scan(path: Path, data: bytes, start: int = 0, *, is_newest: bool = True) -> tuple[list[JournalRecord], JournalEnd]:
    path.write_bytes(data)
    scanned = JournalScan(FS, str(path), start, is_newest=is_newest)
    return list(scanned), scanned.end


@pytest.mark.parametrize("name", paths("journal"))
@pytest.mark.parametrize("is_newest", [True, False])
def test_journals_of_java_give_every_record(tmp_path: Path, name: str, is_newest: bool) -> None:
    records, end = scan(tmp_path / "journal", content(name), is_newest=is_newest)
    expected: list[dict[str, Any]] = [record for record in FILES[name]["records"] if record["type"] != "padding"]
    assert [(r.offset, r.ledger_id, r.entry_id) for r in records] == [
        (r["offset"], r["ledger"], r["entry"]) for r in expected
    ]
    for record, description in zip(records, expected, strict=True):
        kinds = {"explicitLac": JournalRecordKind.EXPLICIT_LAC, "key": JournalRecordKind.LEDGER_KEY}
        assert record.kind is kinds.get(description["type"]) or record.kind.value == description["type"]
        if record.kind is JournalRecordKind.ENTRY:
            assert hashlib.sha1(record.payload).hexdigest() == description["sha1"]
        if record.kind is JournalRecordKind.LEDGER_KEY:
            assert record.payload.hex() == description["key"]
        if record.kind is JournalRecordKind.EXPLICIT_LAC:
            assert record.payload.hex() == description["packet"]
    # Java counts the zero length word that ended its scan.
    data_end = FILES[name]["scan_stop_offset"] - 4
    assert end == JournalEnd(JournalEndReason.ZEROS, data_end, data_end, 0)


def test_a_scan_resumed_at_any_mark_gives_the_rest(tmp_path: Path) -> None:
    data = journal([entry(0), entry(1)], [entry(2, 600)], [entry(3)])
    every, _ = scan(tmp_path / "journal", data)
    for start in (-5, 0, 1, 512, 1024, 2048, 2560, 2564, len(data)):
        records, end = scan(tmp_path / "journal", data, start, is_newest=False)
        assert records == [record for record in every if record.offset >= start]
        assert end.resume_offset >= start
        assert end.dropped_bytes == 0


def test_a_mark_behind_the_end_of_the_file_is_refused(tmp_path: Path) -> None:
    data = journal([entry(0)], tail=b"")
    with pytest.raises(CorruptFileError, match="the log mark is 1025") as caught:
        scan(tmp_path / "journal", data, 1025)
    assert caught.value.offset == 1024
    assert scan(tmp_path / "journal", data[:8], 512)[0] == [], "a header that a crash cut holds nothing"


# Where a scan of the damaged journals does not give what Java's replay does, and why.
KILLING_JAVA_ALONE = {
    "huge_len": "ends like any other record that the file does not hold; Java runs out of memory",
    "wrongkey": "for the ledger storage to refuse; the journal is whole",
    "nonhex": "no journal; Java dies of its name",
}
REFUSED_HERE = {"zero_mid_next": "a hole in a file that is not the newest: Java drops a fence without a word"}
DROPPING = {"trunc_body", "torn_then_next", "zero_group", "zero_mid_body", "zero_mid_all", "huge_len",
            "over_len", "len16_zero", "hdr3", "markinrec"}  # fmt: skip
MISSING_FILE = {"marknext", "markgone", "nojournals"}
ENTRIES_AT_STAKE = {"1:8", "6:3", "6:7", "21474836485:0", "21474836485:1"}


def apply_patch(image: Path, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        if "create" in step:
            (image / step["create"]).write_bytes(bytes.fromhex(step["hex"]).ljust(step["size"], b"\0"))
        elif "remove" in step:
            (image / step["remove"]).unlink()
        elif "truncate" in step:
            os.truncate(image / step["truncate"], step["size"])
        else:
            with (image / step["write"]).open("r+b") as stream:
                stream.seek(step["offset"])
                stream.write(bytes.fromhex(step["hex"]))


@pytest.mark.parametrize("case", REPLAY_CASES, ids=lambda case: case["case"])
def test_damaged_journals(tmp_path: Path, case: dict[str, Any]) -> None:
    """No journal that Java replays loses more here, and none that kills it is taken for good."""
    unpack("db-4.18.0/crash", tmp_path)
    apply_patch(tmp_path, case["patch"])
    mark = read_last_mark(FS, [str(tmp_path / "ledgers")], 0, 1)
    name = case["case"]
    if name in MISSING_FILE:
        with pytest.raises(JournalError, match="is missing"):
            journals_to_replay(FS, str(tmp_path / "journal"), mark)
        return
    journal_ids = journals_to_replay(FS, str(tmp_path / "journal"), mark)
    records: list[JournalRecord] = []
    dropped = 0

    def read_all() -> None:
        nonlocal dropped
        for journal_id in journal_ids:
            path = str(tmp_path / "journal" / f"{journal_id:x}.txn")
            start = mark.offset if journal_id == mark.journal_id else 0
            scanned = JournalScan(FS, path, start, is_newest=journal_id == journal_ids[-1])
            records.extend(scanned)
            dropped += scanned.end.dropped_bytes

    if name in REFUSED_HERE or (not case["java"]["boots"] and name not in KILLING_JAVA_ALONE):
        with pytest.raises(CorruptFileError):
            read_all()
        return
    read_all()
    differences = case["java"].get("differs_from_undamaged", {})
    found = {f"{record.ledger_id}:{record.entry_id}" for record in records if record.kind is JournalRecordKind.ENTRY}
    for key in ENTRIES_AT_STAKE | {"77:0", "78:0", "80:0", "1:20"} & differences.keys():
        if name != "huge_len":
            assert (key in found) == (differences.get(key, ["EOK"])[0] == "EOK"), key
    fences = {record.ledger_id for record in records if record.kind is JournalRecordKind.FENCE}
    assert (2 in fences) == case["java"].get("ledger 2 fenced", name != "huge_len")
    assert (dropped > 0) == (name in DROPPING)


def test_a_hole_in_an_older_file_is_refused(tmp_path: Path) -> None:
    data = journal([entry(0)], [entry(1)], [entry(2)])
    holed = data[:1024] + bytes(512) + data[1536:]
    records, end = scan(tmp_path / "journal", holed)
    assert [record.entry_id for record in records] == [0]
    assert end == JournalEnd(JournalEndReason.HOLE, 1024, len(holed), len(holed.rstrip(b"\0")) - 1024)
    with pytest.raises(CorruptFileError, match="zeros followed by data") as caught:
        scan(tmp_path / "journal", holed, is_newest=False)
    assert caught.value.offset == 1024


def test_a_reported_hole_is_not_met_again(tmp_path: Path) -> None:
    data = journal([entry(0)], [entry(1)], [entry(2)])
    holed = data[:1024] + bytes(512) + data[1536:]
    _, end = scan(tmp_path / "journal", holed)
    records, again = scan(tmp_path / "journal", holed, end.resume_offset, is_newest=False)
    assert records == []
    assert again.dropped_bytes == 0


def test_a_reported_torn_tail_is_not_met_again(tmp_path: Path) -> None:
    torn = journal([entry(0)], [entry(1)], tail=b"")[:1044]
    records, end = scan(tmp_path / "journal", torn)
    assert [record.entry_id for record in records] == [0]
    assert end == JournalEnd(JournalEndReason.TORN_RECORD, 1024, 1044, 20)
    assert scan(tmp_path / "journal", torn, end.resume_offset, is_newest=False) == (
        [],
        JournalEnd(JournalEndReason.END_OF_FILE, 1044, 1044, 0),
    )


def test_the_mark_that_java_sets_at_a_hole_does_not_stop_the_boot(tmp_path: Path) -> None:
    data = journal([entry(0)], [entry(1)], [entry(2)])
    holed = data[:1024] + bytes(512) + data[1536:]
    records, end = scan(tmp_path / "journal", holed, 1028, is_newest=False)
    assert records == []
    assert end.dropped_bytes > 0


def test_a_record_of_zeros_is_dropped_from_the_newest_file_alone(tmp_path: Path) -> None:
    data = bytearray(journal([entry(0), entry(1, 1000), entry(2)]))
    data[512 + 44 + 4 : 512 + 44 + 4 + 1000] = bytes(1000)
    records, end = scan(tmp_path / "journal", bytes(data))
    assert [record.entry_id for record in records] == [0, 2]
    assert end.dropped_bytes == 1004
    with pytest.raises(CorruptFileError, match="1000 zeros"):
        scan(tmp_path / "journal", bytes(data), is_newest=False)


@pytest.mark.parametrize("count", [-7, -256, 100_000])
def test_padding_that_cannot_be_real_is_refused(tmp_path: Path, count: int) -> None:
    data = journal([entry(0)], [entry(1)]).replace(struct.pack(">ii", -256, 460), struct.pack(">ii", -256, count), 1)
    with pytest.raises(CorruptFileError, match="padding"):
        scan(tmp_path / "journal", data)


@pytest.mark.parametrize("version", [0, 7, -1, 2**31 - 1])
def test_unknown_versions_are_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(CorruptFileError, match=f"version {version}"):
        scan(tmp_path / "journal", struct.pack(">4si", b"BKLG", version) + bytes(512))


@pytest.mark.parametrize(
    "data",
    [b"", b"BKL", b"BKLG\0\0\0\6", b"BKLG\0\0\0\6" + bytes(92), bytes(8192)],
    ids=["empty", "3 bytes", "8 bytes", "100 bytes", "zeros"],
)
def test_a_file_that_was_just_begun_holds_nothing(tmp_path: Path, data: bytes) -> None:
    records, end = scan(tmp_path / "journal", data, is_newest=False)
    assert records == []
    assert end.data_end_offset in {0, 512}


def test_the_end_is_known_only_after_the_records(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(journal([entry(0)]))
    scanned = JournalScan(FS, str(tmp_path / "journal"), is_newest=True)
    with pytest.raises(RuntimeError, match="has not been read"):
        _ = scanned.end


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_gives_records_or_a_refusal(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = bytearray(journal([entry(0), entry(1, 700)], [entry(2)], tail=bytes(700)))
    start = data.draw(st.integers(0, len(whole)))
    noise = data.draw(st.binary(max_size=40))
    whole[start : start + len(noise)] = noise
    size = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.getbasetemp() / "damaged"
    try:
        records, end = scan(path, bytes(whole[:size]), is_newest=data.draw(st.booleans()))
    except CorruptFileError as error:
        assert 0 <= error.offset <= size  # noqa: PT017
        return
    assert all(0 <= record.offset < end.data_end_offset for record in records)
    assert end.dropped_bytes <= size


def test_the_file_that_the_mark_names_must_be_there(tmp_path: Path) -> None:
    for number in (0xFF, 0x100, 0x102):
        (tmp_path / f"{number:x}.txn").touch()
    assert list_journals(FS, str(tmp_path)) == [0xFF, 0x100, 0x102]
    assert journals_to_replay(FS, str(tmp_path), LogMark(0, 0)) == [0xFF, 0x100, 0x102]
    assert journals_to_replay(FS, str(tmp_path), LogMark(0x100, 7)) == [0x100, 0x102]
    for missing in (0x101, 0x103, 1):
        with pytest.raises(JournalError, match=f"{missing:x}.txn is missing"):
            journals_to_replay(FS, str(tmp_path), LogMark(missing, 512))


def test_the_mark_may_be_in_a_newer_file_than_the_catalog_lists(tmp_path: Path) -> None:
    """A crash cut off the creation of the file, and the next start, which read it to its end, cut off its own."""
    for number in (0x100, 0x101, 0x102):
        (tmp_path / f"{number:x}.txn").touch()
    catalog = JournalCatalog((CatalogedJournal(0x100, 512),))
    for newest in (0x101, 0x102):
        assert journals_to_replay(FS, str(tmp_path), LogMark(newest, 0), catalog)[0] == newest
    (tmp_path / "100.txn").unlink()
    with pytest.raises(JournalError, match=r"100.txn is missing, but bkctl\.journals"):
        journals_to_replay(FS, str(tmp_path), LogMark(0, 0), catalog)


# Versions


def records_of(version: int) -> list[bytes]:
    """One record of every type that a version has."""
    records = [entry(0), entry(1, 700)]
    if version >= 3:
        records.insert(0, encode_ledger_key_record(1, b"k" * 20))
    if version >= 4:
        records.append(encode_fence_record(1))
    if version >= 6:
        records.append(encode_explicit_lac_record(1, struct.pack(">qq", 1, 0) + b"digest"))
    return records


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("tail", [b"", bytes(4096)], ids=["end of file", "zeros"])
def test_every_version_is_read(tmp_path: Path, version: int, tail: bytes) -> None:
    """Versions 1 to 3 by hand from the sheet: nobody writes them any more."""
    header = {1: b"", 2: b"BKLG\0\0\0\2", 3: b"BKLG\0\0\0\3", 4: b"BKLG\0\0\0\4"}
    start = header.get(version, b"BKLG\0\0\0" + bytes([version]) + bytes(504))
    framed = b"".join(struct.pack(">i", len(record)) + record for record in records_of(version))
    padding = b"\xff\xff\xff\0\0\0\0\0" if version >= 5 else b""
    data = start + framed + padding + tail
    records, end = scan(tmp_path / "journal", data)
    assert [record.kind.value for record in records] == {
        1: ["entry", "entry"],
        2: ["entry", "entry"],
        3: ["ledger key", "entry", "entry"],
        4: ["ledger key", "entry", "entry", "fence"],
        5: ["ledger key", "entry", "entry", "fence"],
        6: ["ledger key", "entry", "entry", "fence", "explicit LAC"],
    }[version]
    assert records[0].offset == len(start)
    assert (end.data_end_offset, end.dropped_bytes) == (len(data) - len(tail), 0)


@pytest.mark.parametrize(
    ("version", "record"),
    [(1, encode_ledger_key_record(1, b"k")), (2, encode_ledger_key_record(1, b"k")), (3, encode_fence_record(1)),
     (4, encode_explicit_lac_record(1, bytes(16))), (5, encode_explicit_lac_record(1, bytes(16)))],
)  # fmt: skip
def test_a_type_too_new_for_the_version_is_refused(tmp_path: Path, version: int, record: bytes) -> None:
    header = b"" if version == 1 else (b"BKLG\0\0\0" + bytes([version])).ljust(512 if version >= 5 else 8, b"\0")
    first = struct.pack(">i", 40) + entry(0)
    with pytest.raises(CorruptFileError, match=f"which version {version} does not have") as caught:
        scan(tmp_path / "journal", header + first + struct.pack(">i", len(record)) + record)
    assert caught.value.offset == len(header) + 44
