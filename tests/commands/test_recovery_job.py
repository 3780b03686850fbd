"""Recoveries with byte rates, and continued from their job file after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.commands.config import Settings
from bkctl.commands.console import Console
from bkctl.commands.context import BookieFlags, BookieSettings, CommandContext, CopyFlags
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.outages import continuing_command
from bkctl.commands.recovery_job import RatesFile, delete_finished_jobs, parse_rates
from bkctl.commands.replication_access import policy_of
from bkctl.commands.session import Session
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.replication.config import CopyPace, OpenLedgers, PlacementMode, Policy, ReplicationConfig, VerifyMode
from bkctl.runtime.replication.plan.store import JobFile
from bkctl.storage.adapters.sqlite import SqliteDatabase, create_database
from bkctl.storage.words import counted
from tests.processes import COMMAND_TIMEOUT_S, BkctlProcess, Cluster, start_bkctl
from tests.runtime.replication.test_job_file import START
from tests.until import wait_until

ENTRY_BYTES = 1024


class DegradedCluster:
    """A cluster of four bookies. One that has a copy of the first ledger is stopped after all were written."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.state = directory / "state"
        self.log = directory / "command.log"
        self.dead = ""

    def write(self, ledgers: int, entries: int) -> None:
        sizes = ("-E", "3", "-W", "3", "-A", "3", "--entry-size", str(ENTRY_BYTES), "--no-read-back")
        written = self.cluster.run("ledger", "write-test", "--ledgers", str(ledgers), "--entries", str(entries), *sizes)
        assert written.exit_code == 0, written.stderr
        first = written.json()["items"][0]["ledger_id"]
        self.dead = self.dead or self.cluster.run("ledger", "show", first).json()["ensembles"][0]["ensemble"][0]

    def start(self, *arguments: str) -> BkctlProcess:
        variables = {"BKCTL_METADATA_URI": self.cluster.metadata_uri, "BKCTL_STATE_DIR": str(self.state)}
        with open(self.log, "wb") as log:
            return start_bkctl(
                "recover", "failed-bookie", self.dead, "--yes", *arguments, stdout=log, stderr=log, variables=variables
            )

    def end_of(self, process: BkctlProcess) -> str:
        assert process.wait(COMMAND_TIMEOUT_S) == 0, self.log.read_text()
        return self.log.read_text()

    def job_file(self, process: BkctlProcess) -> str:
        """That of a process that has just been started, once it is there."""
        jobs = self.state / "jobs"
        wait_until(lambda: any(jobs.glob("*.sqlite")), process=process, tell=self.log.read_text)
        (found,) = jobs.glob("*.sqlite")
        return str(found)

    def require_all_recovered(self) -> None:
        assert self.cluster.run("ledger", "list", "--bookie", self.dead, "-o", "name").stdout == ""
        verified = self.cluster.run("ledger", "verify", "--all")
        assert verified.exit_code == 0, verified.stdout
        assert os.listdir(self.state / "jobs") == [], "a finished job leaves no file"


def count_of(table: str, path: str) -> int:
    """Rows that a job that runs, which has the lock, has recorded: ranges of long copies, or ledgers that are done."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as unlocked:
        try:
            return len(unlocked.execute(f"SELECT * FROM {table}").fetchall())
        except sqlite3.DatabaseError:  # it is just being written
            return 0


@pytest.fixture
def degraded(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> DegradedCluster:
    return DegradedCluster(start_cluster(4), tmp_path)


@pytest.mark.battery
def test_a_killed_job_continues_within_a_long_copy(degraded: DegradedCluster) -> None:
    degraded.write(1, 24_000)
    degraded.write(10, 10)
    degraded.cluster.stop_bookie(degraded.dead)
    killed = degraded.start("--copy-rate", "2MiB/s")
    job_file = degraded.job_file(killed)
    wait_until(lambda: count_of("range", job_file), process=killed, tell=degraded.log.read_text)
    refused = degraded.cluster.run("recover", "failed-bookie", degraded.dead, "--yes", "--resume", job_file)
    assert (refused.exit_code, "another process continues the job of" in refused.stderr) == (5, True), refused
    killed.kill()
    killed.wait()
    job = JobFile(SqliteDatabase(job_file))
    left = job.unfinished.ledger_ids
    ((record,),) = (ranges for ranges in map(job.ranges_of, left) if ranges)
    done = job.done_before[0]
    job.close()
    assert 0 < record.last_entry_id < 24_000
    for verb in (("recover", "failed-bookie"), ("decommission",)):
        planned = degraded.cluster.run(*verb, degraded.dead, "-n", "--resume", job_file, "-o", "table")
        assert re.search(r"takes at least \d+ s at the limit of 2\.0 MiB/s", planned.stdout), planned

    continued = degraded.start("--resume", job_file, "--copy-rate", "500MiB/s", "-o", "json")
    said = degraded.end_of(continued)
    assert f"continues a job with {counted(done, 'ledger')} done before" in said
    assert "now with copy-rate 500.0 MiB/s, copy-rate-per-bookie none" in said
    copied_bytes = int(said.partition('"bytes": ')[2].partition(",")[0])
    assert copied_bytes < (24_000 - record.last_entry_id + 200) * (ENTRY_BYTES + 100)
    degraded.require_all_recovered()


@pytest.mark.battery
def test_the_rates_of_a_running_job_can_be_changed(degraded: DegradedCluster) -> None:
    degraded.write(1, 20_000)
    degraded.cluster.stop_bookie(degraded.dead)
    process = degraded.start("--copy-rate", "50KiB/s")  # it would take minutes
    rates = Path(f"{degraded.job_file(process)}.rates")
    wait_until(rates.exists, process=process, tell=degraded.log.read_text)
    assert rates.read_text().endswith("copy-rate = 50KiB/s\ncopy-rate-per-bookie = none\n")
    wait_until(
        lambda: "waits for the copy rate" in degraded.log.read_text(), process=process, tell=degraded.log.read_text
    )
    rates.write_text("copy-rate = fast\n")
    wait_until(lambda: "'fast' is not a rate" in degraded.log.read_text(), process=process, tell=degraded.log.read_text)
    rates.write_text("copy-rate = none\n")
    assert "new byte rates: all copies none, each bookie none" in degraded.end_of(process)
    degraded.require_all_recovered()


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("", {}),
        ("# a comment\ncopy-rate = 1MiB/s  # slow\n", {"bytes_per_s": 2**20}),
        ("copy-rate-per-bookie=2k\n\ncopy-rate = none", {"bytes_per_s": None, "bytes_per_s_per_bookie": 2048}),
    ],
)
def test_rates(text: str, rates: dict[str, int | None]) -> None:
    assert parse_rates(text) == rates


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def rates(tmp_path: Path, output: io.StringIO) -> RatesFile:
    rates = RatesFile(str(tmp_path / "job.rates"), Console(Settings(), {}, io.StringIO(), output, io.StringIO()))
    rates.write(CopyFlags(copy_rate="200KiB/s"))
    rates.load()
    return rates


AT_THE_START = CopyPace(bytes_per_s=200 * 1024, bytes_per_s_per_bookie=None)


def test_a_rates_file_without_rates_or_with_mistakes_changes_nothing(rates: RatesFile, output: io.StringIO) -> None:
    path = Path(rates.path)
    assert rates.read() == AT_THE_START
    for content in (b"", b"copy-rate = fast", b"\xff\xfe", None):
        path.unlink()
        if content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content)
        assert rates.read() is None
    assert output.getvalue().count("stay as they were") == 3
    with pytest.raises(ConfigurationError, match="not a regular file"):
        rates.load()


def test_a_rates_file_that_is_edited_before_the_first_copy_is_reported(rates: RatesFile, output: io.StringIO) -> None:
    Path(rates.path).write_text("copy-rate = fast\n")
    assert rates.read() == AT_THE_START
    assert rates.read() is None
    Path(rates.path).write_text("copy-rate = none\n")
    assert rates.read() == CopyPace(bytes_per_s=None, bytes_per_s_per_bookie=None)
    assert "new byte rates: all copies none, each bookie none" in output.getvalue()


def test_a_rate_that_is_not_given_again_stays_as_it_was(rates: RatesFile) -> None:
    rates.write(CopyFlags(copy_rate_per_bookie="1MiB/s"))
    rates.load()
    assert rates.read() == CopyPace(bytes_per_s=200 * 1024, bytes_per_s_per_bookie=2**20)
    Path(rates.path).write_text("copy-rate = fast\n")
    with pytest.raises(ConfigurationError, match="'fast' is not a rate"):
        rates.write(CopyFlags(copy_rate_per_bookie="1MiB/s"))
    rates.write(CopyFlags(copy_rate="1k", copy_rate_per_bookie="2k"))
    assert Path(rates.path).read_text().endswith("copy-rate = 1k\ncopy-rate-per-bookie = 2k\n")
    rates.write(CopyFlags(copy_rate="none"))
    rates.load()
    assert rates.kept == (None, 2048), "a limit can be lifted"


@pytest.mark.parametrize("text", ["copy-rate = 0", "copy-rate", "rate = 5k", "= 5k", "copy-rate = 5k = 5k"])
def test_bad_rates(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_rates(text)


def test_the_command_to_continue() -> None:
    words = ("recover", "failed-bookie", "b1", "--to", "b2", "--ledger=7", "--apply", "plan", "--yes")
    assert continuing_command(words) == "bkctl recover failed-bookie b1 --to b2 --ledger=7 --yes"
    assert continuing_command(words, "job") == "bkctl recover failed-bookie b1 --yes --resume job"
    rates = ("recover", "failed-bookie", "b1", "--copy-rate", "5k", "--copy-rate-per-bookie=2k")
    assert continuing_command(rates, "job") == "bkctl recover failed-bookie b1 --resume job"
    leaving = ("decommission", "b1", "--accept-loss", "b1", "--from-file", "ids", "--apply", "plan")
    assert continuing_command(leaving, "job") == (
        "bkctl decommission b1 --accept-loss b1 --from-file ids --resume job"
    ), "no job has the ledgers that are given up"
    again = ("recover", "failed-bookie", "b1", "--resume=old", "--yes")
    assert continuing_command(again, "job") == "bkctl recover failed-bookie b1 --yes --resume job"


def test_a_continued_job_keeps_its_choices() -> None:
    start = msgspec.structs.replace(START, placement=PlacementMode.BEST_EFFORT)
    config = ReplicationConfig()
    recorded = msgspec.structs.replace(config, placement=PlacementMode.BEST_EFFORT, verify=VerifyMode.SAMPLE)
    continued = policy_of(config, CopyFlags(), None, start)
    assert continued == Policy(config=recorded, open_ledgers=OpenLedgers.SKIP)
    assert policy_of(config, CopyFlags(copy_rate="none"), None, start) == continued
    given = CopyFlags(placement=PlacementMode.STRICT, verify=VerifyMode.ALL)
    assert policy_of(config, given, OpenLedgers.FENCE, start) == policy_of(config, given, OpenLedgers.FENCE)


async def test_files_of_finished_jobs_are_deleted_while_another_command_of_the_process_goes_on(tmp_path: Path) -> None:
    """One is in use until something else on the event loop ends."""
    (tmp_path / "jobs").mkdir()
    path = tmp_path / "jobs" / "a1.sqlite"
    JobFile.create(create_database(str(path)), START, []).close()
    in_use = SqliteDatabase(str(path), is_exclusive=True)
    settings = Settings(state_directory=str(tmp_path))
    console = Console(settings, {}, io.StringIO(), io.StringIO(), io.StringIO())
    context = CommandContext(settings, console, _no_bookie)
    store: Any = None
    session = Session(
        context, store, parse_metadata_uri("zk+hierarchical://z1:2181/ledgers"), contextlib.AsyncExitStack()
    )

    async def end() -> None:
        in_use.close()

    await asyncio.gather(delete_finished_jobs(context, session, START.bookie_ids), end())

    assert not path.exists()


def _no_bookie(flags: BookieFlags) -> BookieSettings:
    raise AssertionError("no bookie has settings here")
