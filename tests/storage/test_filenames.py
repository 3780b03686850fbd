from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage import filenames


@given(st.integers(0, 2**63 - 1))
def test_journal_names_come_back(journal_id: int) -> None:
    assert filenames.parse_journal_file_name(filenames.journal_file_name(journal_id)) == journal_id


@given(st.integers(0, 2**31 - 1))
def test_entry_log_names_come_back(log_id: int) -> None:
    assert filenames.parse_entry_log_file_name(filenames.entry_log_file_name(log_id)) == log_id
    assert filenames.parse_claimed_entry_log_id(filenames.entry_log_file_name(log_id)) == log_id


def test_names_are_those_of_java() -> None:
    assert filenames.journal_file_name(0x19A2B3C4D5E) == "19a2b3c4d5e.txn"
    assert filenames.entry_log_file_name(0x1F4) == "1f4.log"
    assert filenames.compacting_file_name(0x1F4) == "1f4.log.compacting"
    assert filenames.compacted_file_name(0x1F4, 0x78) == "1f4.log.78.compacted"
    assert filenames.last_mark_file_name(0, 1) == "lastMark"
    assert [filenames.last_mark_file_name(index, 2) for index in range(2)] == ["lastMark.0", "lastMark.1"]


@pytest.mark.parametrize(
    "name",
    ["foo.txn", "123.x.txn", "12.txn.bak", "12", ".txn", "012.txn", "1A.txn", "-1.txn", "0x1.txn", " 1.txn", "1_0.txn",
     "8000000000000000.txn"],
)  # fmt: skip
def test_stray_journal_names_are_not_counted(name: str) -> None:
    assert filenames.parse_journal_file_name(name) is None


@pytest.mark.parametrize(
    "name", ["foo.log", "1.log.compacting", "2.log.1.compacted", "01.log", "80000000.log", "1.txn"]
)
def test_stray_entry_log_names_are_not_counted(name: str) -> None:
    assert filenames.parse_entry_log_file_name(name) is None


@pytest.mark.parametrize(
    ("name", "log_id"),
    [("1f.log.compacting", 0x1F), ("1f.log.a.compacted", 0x1F), ("1f.log.a", None), ("1f.log.x.compacted", None),
     ("1f.log.a.b.compacted", None), ("lastId", None), ("1f.log.0a.compacted", None)],
)  # fmt: skip
def test_leftovers_of_a_compaction_claim_their_id(name: str, log_id: int | None) -> None:
    assert filenames.parse_claimed_entry_log_id(name) == log_id


def test_a_journal_index_outside_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="index 1"):
        filenames.last_mark_file_name(1, 1)


def test_files_beside_the_journals_and_marks_are_not_those_of_java() -> None:
    names = [filenames.JOURNAL_CATALOG, *(filenames.mark_record_file_name(0, count) for count in (1, 2))]
    assert names == ["bkctl.journals", "bkctl.mark", "bkctl.mark.0"]
    for name in names:
        assert not name.endswith((".txn", ".log", ".idx"))
        assert not name.startswith("lastMark")


def test_databases_lie_where_a_java_bookie_does_not_look() -> None:
    java_names = {"ledgers", "locations", "metadata-cache"}
    for name in (filenames.LOCATIONS_DATABASE, filenames.LEDGERS_DATABASE):
        assert name not in java_names
        assert not filenames.seal_file_name(name).endswith((".log", ".txn", ".idx"))
