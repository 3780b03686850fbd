"""A job file after a kill at any byte: everything that was written whole counts, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import ConfigurationError
from runtime.replication.config import OpenLedgers, PlacementMode, VerifyMode
from runtime.replication.plan.job_file import (
    JobDone,
    JobFile,
    JobLedger,
    JobPlanned,
    JobRange,
    JobRecord,
    JobStart,
    RecordedJob,
    WorkOrder,
    read_job,
    read_start,
)
from storage.adapters.filesystem import OsFileSystem

START = JobStart(
    job_id="a1",
    command="recover failed-bookie",
    root="/ledgers",
    instance_id=None,
    bookie_ids=("b1:3181",),
    open_ledgers=OpenLedgers.SKIP,
    placement=PlacementMode.STRICT,
    verify=VerifyMode.SAMPLE,
    started_ms=1,
)
RECORDS: tuple[JobRecord, ...] = (
    JobLedger(ledger_id=5, surviving_copies=2),
    JobLedger(ledger_id=7, surviving_copies=1),
    JobLedger(ledger_id=9, surviving_copies=2),
    JobPlanned(ledgers=3, ledgers_scanned=10),
    JobRange(ledger_id=7, first_entry_id=0, ensemble_index=1, target="b4:3181", last_entry_id=499),
    JobRange(ledger_id=9, first_entry_id=0, ensemble_index=1, target="b4:3181", last_entry_id=99),
    JobRange(ledger_id=7, first_entry_id=0, ensemble_index=1, target="b5:3181", last_entry_id=299),
    JobDone(ledger_id=9, outcome="REPAIRED", fragments=1, entries=100, bytes=50, was_closed=True),
)


def job_bytes(tmp_path: Path) -> bytes:
    path = tmp_path / "whole"
    job_file = JobFile.create(OsFileSystem(), str(path), START)
    for record in RECORDS:
        job_file.append(record)
    job_file.write()
    job_file.close()
    return path.read_bytes()


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_bytes(job_bytes(tmp_path))
    state = read_job(OsFileSystem(), str(path))
    assert state.start == read_start(OsFileSystem(), str(path)) == START
    assert (state.is_planned, len(state.order)) == (True, 3)
    assert list(state.order) == [7, 9, 5]
    assert [ledger_id for ledger_id in state.order if not state.is_done(ledger_id)] == [7, 5]
    assert state.ranges == {7: {(0, 1): RECORDS[6]}}, (
        "the last record of a stripe counts, and a finished ledger has none"
    )
    assert (state.ledgers_done, state.bytes_copied) == (1, 50)


def test_a_kill_while_earlier_copies_are_verified_again_loses_none_of_them() -> None:
    """A continued job reports how far it has verified what an earlier run had copied to the same target."""
    state = RecordedJob(START)

    def note(target: str, last_entry_id: int) -> None:
        state.apply(
            JobRange(ledger_id=7, first_entry_id=0, ensemble_index=1, target=target, last_entry_id=last_entry_id)
        )

    def known() -> tuple[str, int]:
        found = state.ranges[7][0, 1]
        return found.target, found.last_entry_id

    note("b3", 900_000)
    note("b3", 100)
    assert known() == ("b3", 900_000)
    note("b4", 50)
    assert known() == ("b4", 50), "the copy was begun again on another bookie"
    note("b4", 60)
    assert known() == ("b4", 60)


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    job_bytes(tmp_path)
    assert (tmp_path / "whole").stat().st_mode & 0o777 == 0o600


def test_a_kill_at_any_byte_leaves_the_whole_lines(tmp_path: Path) -> None:
    data = job_bytes(tmp_path)
    path = tmp_path / "cut"
    for cut in range(data.index(b"\n") + 1, len(data)):
        path.write_bytes(data[:cut])
        job_file, state = JobFile.reopen(OsFileSystem(), str(path))
        whole = data[:cut].count(b"\n") - 1
        assert len(state.order) == min(whole, 3), cut
        assert state.is_done(9) is False, cut
        job_file.append(RECORDS[-1])
        job_file.write()
        job_file.close()
        again = read_job(OsFileSystem(), str(path))
        assert again.is_done(9)
        assert len(again.order) == min(whole, 3), "the continued file has no torn line in its middle"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no complete line"),
        (b'{"record":"start","vers', "no complete line"),
        (b"hello\n", "line 1"),
        (b'{"record":"ledger","ledger_id":1,"surviving_copies":1}\n', "first line is a JobLedger"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_another_file_is_refused_and_stays_as_it_was(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError, match=reason):
        JobFile.reopen(OsFileSystem(), str(path))
    with pytest.raises(ConfigurationError, match=reason):
        read_start(OsFileSystem(), str(path))
    assert path.read_bytes() == data


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    lines = job_bytes(tmp_path).split(b"\n")
    lines[4] = lines[4][:-3] + b"???"
    path = tmp_path / "damaged"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ConfigurationError, match="line 5"):
        read_job(OsFileSystem(), str(path))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newer"
    path.write_bytes(job_bytes(tmp_path).replace(b'"version":1', b'"version":2'))
    with pytest.raises(ConfigurationError, match="version 2 of the job file is unknown"):
        read_job(OsFileSystem(), str(path))


@given(st.dictionaries(st.integers(0, 2**62), st.integers(0, 3)))
def test_the_order_of_work(copies: dict[int, int]) -> None:
    order = WorkOrder()
    for ledger_id, surviving_copies in copies.items():
        order.add(ledger_id, surviving_copies)
    assert list(order) == sorted(copies, key=lambda ledger_id: (copies[ledger_id], -ledger_id))
    assert len(order) == len(copies)
