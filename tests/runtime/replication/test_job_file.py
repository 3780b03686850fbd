"""A job file after a kill at any moment: everything that was reported as durable counts."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.errors import ConfigurationError, ConflictError
from bkctl.runtime.replication.config import OpenLedgers, PlacementMode, VerifyMode
from bkctl.runtime.replication.judge.ledger_result import LedgerResult
from bkctl.runtime.replication.plan.store import (
    VERSION,
    JobFile,
    JobRange,
    JobStart,
    JobWork,
    UnfinishedJob,
)
from bkctl.storage.adapters.sqlite import SqliteDatabase, create_database, memory_database

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
WORK = (JobWork(2, 5), JobWork(1, 7), JobWork(2, 9))
"""Surviving copies, ledger id."""


def found(ledger_id: int, target: str, last_entry_id: int) -> JobRange:
    return JobRange(ledger_id=ledger_id, first_entry_id=0, ensemble_index=1, target=target, last_entry_id=last_entry_id)


def done(ledger_id: int) -> LedgerResult:
    return LedgerResult(ledger_id=ledger_id, fragments=1, entries=100, bytes_copied=50, was_closed=True)


def new_job(path: Path) -> str:
    """A job that has done something."""
    job = JobFile.create(create_database(str(path)), START, WORK)
    for record in (found(7, "b4:3181", 499), found(9, "b4:3181", 99), found(7, "b5:3181", 299), done(9)):
        job.append(record)
    job.write()
    job.append(done(7))  # not written
    job.close()
    return str(path)


def reopen(path: str) -> JobFile:
    return JobFile(SqliteDatabase(path))


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    job = reopen(new_job(tmp_path / "job"))
    assert job.unfinished == UnfinishedJob(START, (7, 5), (None, None)), "in the order of work"
    assert job.ranges_of(7) == (found(7, "b5:3181", 299),), "the last record of a stripe counts"
    assert job.ranges_of(9) == (), "a finished ledger has none"
    assert job.done_before == (1, 50)
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o600
    job.append(done(9))
    job.write()
    assert job.done_before == (1, 100), "a drain moved it twice"
    job.close()


def test_a_kill_while_earlier_copies_are_verified_again_loses_none_of_them(tmp_path: Path) -> None:
    """A continued job reports how far it has verified what an earlier run had copied to the same target."""
    path = str(tmp_path / "job")
    JobFile.create(create_database(path), START, WORK).close()

    def noted(*records: JobRange) -> tuple[JobRange, ...]:
        job = reopen(path)
        for record in records:
            job.append(record)
        job.write()
        job.close()
        return reopen(path).ranges_of(7)

    assert noted(found(7, "b3", 900_000), found(7, "b3", 100)) == (found(7, "b3", 900_000),)
    assert noted(found(7, "b4", 50)) == (found(7, "b4", 50),), "the copy was begun again on another bookie"
    assert noted(found(7, "b4", 60)) == (found(7, "b4", 60),)


def test_a_file_that_exists_or_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            create_database(str(tmp_path / name))
    assert (tmp_path / "file").read_bytes() == b""
    assert not (tmp_path / "elsewhere").exists()


def test_one_process_continues_a_job(tmp_path: Path) -> None:
    path = new_job(tmp_path / "job")
    job = JobFile(SqliteDatabase(path, is_exclusive=True))
    for is_exclusive in (False, True):
        with pytest.raises(BlockingIOError, match="another process uses it"):
            JobFile(SqliteDatabase(path, is_exclusive=is_exclusive))
    job.append(done(7))
    job.write()
    with pytest.raises(BlockingIOError):
        reopen(path)
    job.close()
    assert reopen(path).unfinished.ledger_ids == (5,)


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = new_job(tmp_path / "job")
    database = SqliteDatabase(path, is_exclusive=True)
    job = JobFile(database)
    (pages,) = next(database.execute("PRAGMA page_count"))
    database.execute(f"PRAGMA max_page_count = {pages}")
    for ledger_id in range(10_000):
        job.append(done(ledger_id))
    with pytest.raises(OSError, match="No space left") as raised:
        job.write()
    assert raised.value.errno == errno.ENOSPC
    database.execute("PRAGMA max_page_count = 1000000")
    assert job.done_before[0] == 1
    job.write()
    job.close()
    assert reopen(path).done_before[0] == 10_000, "space was freed"


@pytest.mark.parametrize("killed_after_s", [0.0, 0.02, 0.1])
def test_a_kill_at_any_moment_keeps_what_was_written(tmp_path: Path, killed_after_s: float) -> None:
    """The process reports each ledger whose record is durable."""
    path = str(tmp_path / "job")
    process = subprocess.Popen([sys.executable, "-u", "-c", _WRITE, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(killed_after_s)  # any moment
    process.kill()
    reported = [int(line) for line in process.communicate()[0].split("\n")[:-1]]
    job = JobFile(SqliteDatabase(path, is_exclusive=True))
    left = job.unfinished.ledger_ids
    assert 1000 - len(reported) - len(left) in {0, 1}, "it may have been killed before it reported the last one"
    assert left == tuple(range(len(left) - 1, -1, -1))
    job.append(done(0))
    job.write()
    job.close()
    assert reopen(path).unfinished.ledger_ids == left[:-1]


_WRITE = """
import sys
from bkctl.runtime.replication.plan.store import JobFile
from bkctl.storage.adapters.sqlite import create_database
from tests.runtime.replication.test_job_file import START, done

job = JobFile.create(create_database(sys.argv[1]), START, ((1, each, None) for each in range(1000)))
print("begun")
for ledger_id in range(999, -1, -1):
    job.append(done(ledger_id))
    job.write()
    print(ledger_id)
"""


def test_a_kill_while_the_plan_is_written_leaves_no_job(tmp_path: Path) -> None:
    """The plan is larger than the cache of SQLite, so some of it is in the file already."""
    path = str(tmp_path / "job")
    code = f"""
import os, signal
from bkctl.runtime.replication.plan.store import JobFile
from bkctl.storage.adapters.sqlite import create_database
from tests.runtime.replication.test_job_file import START

def work():
    for ledger_id in range(300_000):
        yield 1, ledger_id, None
    assert os.path.getsize({path!r})
    os.kill(os.getpid(), signal.SIGKILL)

JobFile.create(create_database({path!r}), START, work())
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    for _ in range(2):
        with pytest.raises(ConflictError, match="no complete plan, so the job had copied nothing"):
            reopen(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("PRAGMA application_id = 7", "is not a job file of bkctl"),
        ("PRAGMA user_version = 3", "version 3 of the job file is unknown; this bkctl reads version 2"),
        ("UPDATE start SET record = '{}'", "is not a job file of bkctl"),
        ("DELETE FROM start", "is not a job file of bkctl"),
    ],
)
def test_another_database_is_refused(tmp_path: Path, change: str, reason: str) -> None:
    path = new_job(tmp_path / "job")
    with contextlib.closing(SqliteDatabase(path)) as database:
        database.execute(change)
    with pytest.raises(ConfigurationError, match=reason):
        reopen(path)
    assert VERSION == 2


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "job"
    new_job(path)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"?" * (len(data) - 4096))
    with pytest.raises(OSError, match="malformed"):
        reopen(str(path))


def test_the_record_of_the_start_may_have_more_fields() -> None:
    """So that a later bkctl can add some without another version."""
    database = memory_database()
    job = JobFile.create(database, START, WORK)
    database.execute("UPDATE start SET record = json_set(record, '$.later', 1)")
    assert JobFile(database).start == job.start == START
    assert msgspec.json.decode(next(database.execute("SELECT record FROM start"))[0])["later"] == 1
