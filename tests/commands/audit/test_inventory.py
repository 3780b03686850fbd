"""``bkctl audit --inventory`` against real bookies, one of which lost entries while it was stopped."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import VOTE_PREFIX, Paths
from bkctl.runtime.metadata.replication.format import encode_vote
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.commands.test_advice import run_printed
from tests.commands.test_cluster_walk import succeed
from tests.commands.test_recover_ledger import forget
from tests.processes import BkctlResult, BookieProcess, Cluster, run_bkctl, run_bkctl_on_terminal, start_bkctl
from tests.runtime.replication.samples import ledger
from tests.until import wait_until

pytestmark = pytest.mark.cluster

OK, USAGE, REFUSED, CONFLICT, FINDINGS = 0, 2, 3, 5, 10
STRIPED, WHOLE = 40, 20
WRITE_ON_TWO = ("ledger", "write-test", "--entries", "9", "-E", "2", "-W", "2", "-A", "2")
READ_ALL = ("--inventory", "--read", "--all-entries")
OF_THE_RUN = {"seconds": 0, "judged_at": "", "out": None, "bad_copies_file": None, "findings": []}


def write(cluster: Cluster, entries: int, write_quorum: int) -> str:
    arguments = ("--entries", str(entries), "-E", "3", "-W", str(write_quorum))
    written: str = succeed(cluster, "ledger", "write-test", *arguments).json()["items"][0]["ledger_id"]
    return written


def remove_oldest_log(bookie: BookieProcess) -> None:
    """Delete the entry log of a stopped bookie that has the entries of its first run."""
    logs = Path(bookie.directory, "ledgers", "current").glob("*.log")
    min(logs, key=lambda log: int(log.stem, 16)).unlink()


def holdings(report: dict[str, Any], name: str) -> dict[str, int]:
    """A count of each bookie that is not 0."""
    return {row["bookie_id"]: row[name] for row in report["holdings"] if row[name]}


def without_times(report: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two runs. How many requests there are depends on what is asked at the same time."""
    rows = [{**row, "requests": 0, "waited_us": 0} for row in report["holdings"]]
    bookies = [{**row, "disk_free_bytes": 0} for row in report["bookies"]]
    return report | OF_THE_RUN | {"holdings": rows, "bookies": bookies, "requests": 0}


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """With the vote of an auditor, so that this is not the finding."""
    uri = parse_metadata_uri(cluster.metadata_uri)
    client = KazooClient(uri.servers)
    client.start()
    vote = f"{Paths(uri.root).auditor_election}/{VOTE_PREFIX}0000000000"
    client.create(vote, encode_vote(cluster.bookies[0].id), makepath=True)
    client.stop()
    client.close()
    return cluster


@pytest.fixture
def damaged(cluster: Cluster) -> tuple[Cluster, BookieProcess, str]:
    """Three bookies with a striped ledger and a whole one; the log of one bookie that had the first is gone."""
    ledger_id = write(cluster, STRIPED, 2)
    cluster.down()
    cluster.up(3)
    write(cluster, WHOLE, 3)
    cluster.down()
    victim = cluster.bookies[0]
    remove_oldest_log(victim)
    cluster.up(3)
    return cluster, victim, ledger_id


def test_a_lost_log_is_found_by_reading_and_its_copies_are_restored(
    damaged: tuple[Cluster, BookieProcess, str], tmp_path: Path
) -> None:
    cluster, victim, ledger_id = damaged
    out = tmp_path / "report"
    assert "all 2 ledgers have every copy" in succeed(cluster, "audit", "-o", "table").stdout

    listed = succeed(cluster, "audit", "--inventory").json()
    assert (listed["listed_copies"], listed["read_copies"], listed["bad_copies"]) == (2 * STRIPED + 3 * WHOLE, 0, 0)
    sampled = cluster.run("audit", "--inventory", "--read")
    counts = [sampled.json()[f"{name}_copies"] for name in ("read", "listed", "bad", "unknown")]
    assert (sampled.exit_code, sum(counts), counts[3]) == (FINDINGS, 2 * STRIPED + 3 * WHOLE, 0)
    assert all(counts[:3])
    (finding,) = sampled.json()["findings"]
    assert (finding["command"], "this was a sample" in finding["finding"]) == (
        f"bkctl recover ledger {ledger_id}",
        True,
    )

    plain = cluster.run("audit", *READ_ALL, "--out", str(out))

    report = plain.json()
    lost = succeed(cluster, "ledger", "show", ledger_id).json()
    index = lost["ensembles"][0]["ensemble"].index(victim.id)
    entry_ids = [each for each in range(STRIPED) if index in {each % 3, (each + 1) % 3}]
    assert (plain.exit_code, report["severity"], report["bad_copies"]) == (FINDINGS, "warning", len(entry_ids))
    assert holdings(report, "failed_copies") == {victim.id: len(entry_ids)}
    assert sum(holdings(report, "read_copies").values()) == 2 * STRIPED + 3 * WHOLE - len(entry_ids)
    (found,) = report["bad_copy_ranges"]
    assert (found["ledger_id"], found["bookie_id"], found["copy"]) == (ledger_id, victim.id, "failed")
    assert (found["known_by"], found["copies"]) == ("read", len(entry_ids))
    assert (found["first_entry_id"], found["last_entry_id"]) == (str(entry_ids[0]), str(entry_ids[-1]))
    file = str(out / "bad_copies.jsonl")
    assert [each["command"] for each in report["findings"]] == [f"bkctl recover ledger --from-file {file}"]
    names = cluster.run("audit", *READ_ALL, "-o", "name").stdout.split()
    shown = cluster.run("audit", "show", str(out))
    assert (names, shown.exit_code, shown.json()["bad_copies"]) == ([ledger_id], FINDINGS, len(entry_ids))
    assert f"some of its copies on {victim.id} are failed" in (out / "report.html").read_text()

    repaired = succeed(cluster, "recover", "ledger", "--from-file", file, "--yes").json()

    assert (repaired["copies_written"], repaired["copies_left"]) == (len(entry_ids), 0)
    again = succeed(cluster, "audit", *READ_ALL).json()
    assert (again["bad_copies"], again["read_copies"]) == (0, 2 * STRIPED + 3 * WHOLE)
    assert again["verdict"] == f"no copy is known to be bad: {2 * STRIPED + 3 * WHOLE} read and good"


def test_entries_whose_every_copy_is_on_a_lost_log_are_critical(cluster: Cluster, tmp_path: Path) -> None:
    ledger_id = write(cluster, STRIPED, 2)
    reports = str(tmp_path / "reports")
    in_series = ("--compare", reports, "--out")
    succeed(cluster, "audit", *in_series, f"{reports}/run=1")
    succeed(cluster, "audit", *READ_ALL, *in_series, f"{reports}/run=2")
    cluster.down()
    cluster.up(3)
    write(cluster, WHOLE, 3)
    cluster.down()
    for bookie in cluster.bookies[:2]:
        remove_oldest_log(bookie)
    cluster.up(3)
    ensemble = succeed(cluster, "ledger", "show", ledger_id).json()["ensembles"][0]["ensemble"]
    kept = ensemble.index(cluster.bookies[2].id)
    gone = [each for each in range(STRIPED) if kept not in {each % 3, (each + 1) % 3}]

    found = cluster.run("audit", *READ_ALL, "--fail-on", "critical", *in_series, f"{reports}/run=3")

    report = found.json()
    assert (found.exit_code, report["severity"], report["lost_entries"]) == (FINDINGS, "critical", len(gone))
    assert [(row["first_entry_id"], row["entries"], row["has_errors"]) for row in report["lost_ranges"]] == [
        (str(each), 1, True) for each in gone
    ]
    assert report["findings"][0]["command"] == f"bkctl ledger verify {ledger_id}"
    verified = cluster.run("ledger", "verify", ledger_id, "-o", "table")
    assert (verified.exit_code, "UNREADABLE ENTRIES" in verified.stdout) == (FINDINGS, True)
    trend = [(row["bad_copies"], row["lost_entries"]) for row in report["trend"]]
    assert trend == [(None, None), (0, 0), (report["bad_copies"], len(gone))]
    assert 'aria-label="Entries without a good copy' in Path(reports, "run=3", "report.html").read_text()
    shown = cluster.run("audit", "show", f"{reports}/run=3", "--compare", f"{reports}/run=2", "-o", "table").stdout
    assert f"{report['bad_copies']} more bad copies and {len(gone)} more entries without a good copy" in shown
    assert cluster.run("audit", *READ_ALL, "--fail-on", "lost_entries").exit_code == FINDINGS
    cluster.stop_bookie(cluster.bookies[0].id)
    down = cluster.run("audit", *READ_ALL).json()
    assert (down["lost_entries"], down["lost_ranges"]) == (0, []), "a bookie that is down may have them"


async def leave_open(cluster: Cluster, entries: int) -> str:
    """A ledger on three bookies whose writer has gone."""
    client = await LedgerClient.connect(cluster.metadata_uri)
    writer = await client.create(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2)
    for number in range(entries):
        await writer.append(b"entry %d" % number)
    writer.abandon()
    await client.close()
    return str(writer.ledger_id)


def lose_logs(cluster: Cluster, *bookies: BookieProcess) -> None:
    cluster.down()
    cluster.up(3)
    cluster.down()
    for bookie in bookies:
        remove_oldest_log(bookie)
    cluster.up(3)


async def test_an_open_ledger_whose_end_became_unknown_does_not_look_repaired(cluster: Cluster, tmp_path: Path) -> None:
    ledger_id = await leave_open(cluster, STRIPED)
    reports = str(tmp_path / "reports")

    async def audit(run: int) -> dict[str, Any]:
        options = ("--compare", reports, "--out", f"{reports}/run={run}", "--fail-on", "unknown_copies")
        result = await asyncio.to_thread(cluster.run, "audit", *READ_ALL, *options)
        report: dict[str, Any] = result.json() | {"exit_code": result.exit_code}
        return report

    await audit(0)
    await asyncio.to_thread(lose_logs, cluster, cluster.bookies[0])
    bad = await audit(1)
    await asyncio.to_thread(lose_logs, cluster, cluster.bookies[1])
    report = await audit(2)

    assert (bad["severity"], bad["unknown_ends"], bad["exit_code"]) == ("warning", 0, OK)
    assert bad["bad_copies"] > 0
    assert (report["severity"], report["unknown_ends"], report["exit_code"]) == ("critical", 1, FINDINGS)
    assert report["lost_entries"] == sum(row["entries"] for row in report["lost_ranges"]) > STRIPED / 4
    findings = {each["part"]: each for each in report["findings"]}
    assert list(findings) == ["entries_without_copy", "bad_open_copies", "unknown_ends"]
    for part in ("unknown_ends", "bad_open_copies"):  # it cannot be closed now
        assert findings[part]["command"] == f"bkctl ledger explain {ledger_id}"
    assert [(each["ledgers"]) for each in findings["unknown_ends"]["owners"]] == [1]
    (row,) = report["unknown_ends_ledgers"]
    assert (row["ledger_id"], int(row["first_entry_id"]) >= STRIPED - 2) == (ledger_id, True)
    assert "its end is unknown: " in row["problem"]
    assert [row["bad_copies"] for row in report["trend"]] == [0, bad["bad_copies"], None]
    assert not [each for each in report["changes"]["counts"] if each["name"] == "bad_copies"]
    assert "Ledgers whose end is unknown" in Path(reports, "run=2", "report.html").read_text()
    assert [row["bad_copies"] for row in (await audit(3))["trend"]] == [0, bad["bad_copies"], None, None]


async def test_bad_copies_of_an_open_ledger_lead_to_close_and_then_to_their_repair(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def run(*arguments: str) -> BkctlResult:
        return await asyncio.to_thread(cluster.run, *arguments)

    async def audit(name: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        report: dict[str, Any] = (await run("audit", *READ_ALL, "--out", str(tmp_path / name))).json()
        return report, [(each["part"], each["command"]) for each in report["findings"]]

    closed = await asyncio.to_thread(write, cluster, STRIPED, 2)
    open_id = await leave_open(cluster, STRIPED)
    await asyncio.to_thread(lose_logs, cluster, cluster.bookies[0])
    file = str(tmp_path / "mixed" / "bad_copies.jsonl")
    mixed, findings = await audit("mixed")
    in_open = sum(row["copies"] for row in mixed["bad_copy_ranges"] if row["is_open"])
    assert {row["ledger_id"] for row in mixed["bad_copy_ranges"] if row["is_open"]} == {open_id}
    assert 0 < in_open < mixed["bad_copies"]
    recover, close = f"bkctl recover ledger --from-file {file}", f"bkctl ledger close {open_id}"
    assert findings == [("bad_copies", recover), ("bad_open_copies", close)]

    part, none = [await run("recover", "ledger", "--from-file", file, "--yes") for _ in range(2)]

    assert (part.exit_code, none.exit_code) == (9, 1)
    for result, written in (part, mixed["bad_copies"] - in_open), (none, 0):
        report = result.json()
        counts = report["severity"], report["copies_written"], report["copies_left"]
        assert counts == ("warning", written, in_open)
        assert [(row["ledger_id"], row["copies"]) for row in report["left"]] == [(open_id, in_open)]
        assert f"explain {open_id} says how it ends, then bkctl recover ledger {open_id}" in result.stderr
        assert "no bad copy is left" not in result.stderr
    left, findings = await audit("left")
    assert (findings, left["bad_copies"]) == ([("bad_open_copies", close)], in_open)
    assert left["verdict"] == (
        f"1 ledger has {in_open} bad copies: {in_open} failed; close it first, then bkctl recover ledger"
    )

    await run("ledger", "close", open_id, "--grace", "0s", "--yes")
    done = await run("recover", "ledger", "--from-file", file, "--yes")

    assert (done.exit_code, done.json()["copies_left"]) == (OK, 0)
    clean, findings = await audit("clean")
    assert (clean["bad_copies"], findings, closed != open_id) == (0, [], True)


@pytest.mark.battery
def test_executors_find_the_same(damaged: tuple[Cluster, BookieProcess, str], tmp_path: Path) -> None:
    cluster, _, _ = damaged
    out = tmp_path / "report"
    plain = cluster.run("audit", *READ_ALL)

    spark = cluster.run("audit", "--spark", "--cores", "2", *READ_ALL, "--copy-rate", "10MiB/s", "--out", str(out))

    assert (plain.exit_code, spark.exit_code) == (FINDINGS, FINDINGS), spark.stderr
    assert without_times(plain.json()) == without_times(spark.json())
    listed, on_spark = (
        succeed(cluster, "audit", *options, "--inventory").json() for options in ((), ("--spark", "--cores", "1"))
    )
    assert on_spark["requests"] == listed["requests"] + len(cluster.bookies), "one probe of each"
    lines = (out / "bad_copies.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["findings"] == len(spark.json()["bad_copy_ranges"])
    assert {"holdings", "bad_copy_ranges", "lost_ranges"} <= {path.name for path in out.iterdir()}


def test_adds_that_no_bookie_lists_are_found_without_reading(cluster: Cluster, tmp_path: Path) -> None:
    ledger_id = write(cluster, 9, 3)
    cluster.down()
    for bookie in cluster.bookies:
        forget(bookie, int(ledger_id), 3, 4)
    forget(cluster.bookies[0], int(ledger_id), 7)
    cluster.up(3)

    result = cluster.run("audit", "--inventory", "--out", str(tmp_path / "report"))

    report = result.json()
    assert (result.exit_code, report["severity"], report["bad_copies"]) == (FINDINGS, "critical", 7)
    assert (report["lost_entries"], report["lost_entry_ledgers"]) == (2, 1)
    (lost,) = report["lost_ranges"]
    assert (lost["ledger_id"], lost["first_entry_id"], lost["last_entry_id"]) == (ledger_id, "3", "4")
    ranges = {
        (row["bookie_id"], row["first_entry_id"], row["last_entry_id"], row["known_by"], row["copy"])
        for row in report["bad_copy_ranges"]
    }
    assert ranges == {
        *((bookie.id, "3", "4", "listed", "missing") for bookie in cluster.bookies),
        (cluster.bookies[0].id, "7", "7", "listed", "missing"),
    }
    assert [each["part"] for each in report["findings"]] == ["entries_without_copy", "bad_copies"]
    unread = cluster.run("audit", "--inventory", "--fail-on", "unavailable")
    assert unread.exit_code == OK
    repaired = run_printed(cluster, report["findings"][1]["command"], "--yes").json()
    assert (repaired["copies_written"], repaired["copies_left"]) == (1, 0), "no repair brings the others back"
    again = cluster.run("audit", "--inventory").json()
    assert [each["part"] for each in again["findings"]] == ["entries_without_copy"]


async def edit(cluster: Cluster, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
    uri = parse_metadata_uri(cluster.metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        found = await ledgers.read(ledger_id)
        await ledgers.write(ledger_id, change(found.value), found.version)


def moved_and_cut(metadata: LedgerMetadata) -> LedgerMetadata:
    """The ensemble in another order, so that each bookie should have other entries, and an end two entries earlier."""
    (segment,) = metadata.segments
    first, *rest = segment.ensemble
    segment = msgspec.structs.replace(segment, ensemble=(*rest, first))
    return msgspec.structs.replace(metadata, segments=(segment,), last_entry_id=metadata.last_entry_id - 2)


async def test_copies_that_the_metadata_does_not_name_are_information(cluster: Cluster, tmp_path: Path) -> None:
    whole = await asyncio.to_thread(write, cluster, 9, 3)
    moved = await asyncio.to_thread(write, cluster, 9, 2)
    await edit(cluster, int(whole), lambda metadata: msgspec.structs.replace(metadata, last_entry_id=6))

    out = str(tmp_path / "report")
    report = (await asyncio.to_thread(succeed, cluster, "audit", "--inventory", "--out", out)).json()

    assert (report["severity"], report["unnamed_copies"]) == ("information", 6)
    assert (report["after_end_ledgers"], report["elsewhere_ledgers"]) == (1, 0)
    (finding,) = report["findings"]
    assert (finding["part"], finding["command"]) == ("copies_after_end", f"bkctl ledger explain {whole}")
    assert {(row["first_entry_id"], row["last_entry_id"]) for row in report["unnamed_ranges"]} == {("7", "8")}
    assert "lists entries after its end" in Path(out, "report.html").read_text()

    await edit(cluster, int(moved), moved_and_cut)
    report = (await asyncio.to_thread(cluster.run, "audit", "--inventory")).json()

    assert (report["elsewhere_ledgers"], report["after_end_ledgers"]) == (1, 2)
    elsewhere = [row for row in report["unnamed_ranges"] if row["copy"] == "elsewhere"]
    assert {row["ledger_id"] for row in elsewhere} == {moved}
    assert sum(row["copies"] for row in elsewhere) == report["bad_copies"] == 7
    assert {row["requests"] for row in report["holdings"]} == {2}
    assert all(row["waited_us"] > 0 for row in report["holdings"])
    printed = (await asyncio.to_thread(cluster.run, "audit", "--inventory", "-o", "wide")).stdout
    assert "6 to 3 bookies, " in printed
    assert "MS PER REQUEST" in printed


async def test_every_bookie_is_asked_about_every_ledger(cluster: Cluster) -> None:
    """The metadata names another bookie than the one that has the copies."""
    written = await asyncio.to_thread(succeed, cluster, *WRITE_ON_TWO)
    ledger_id = written.json()["items"][0]["ledger_id"]

    def move(metadata: LedgerMetadata) -> LedgerMetadata:
        (segment,) = metadata.segments
        (third,) = {each.id for each in cluster.bookies} - set(segment.ensemble)
        return msgspec.structs.replace(
            metadata, segments=(msgspec.structs.replace(segment, ensemble=(segment.ensemble[0], third)),)
        )

    shown = (await asyncio.to_thread(succeed, cluster, "ledger", "show", ledger_id)).json()
    holder = shown["ensembles"][0]["ensemble"][1]
    await edit(cluster, int(ledger_id), move)

    usual = (await asyncio.to_thread(cluster.run, "audit", "--inventory")).json()
    report = (await asyncio.to_thread(cluster.run, "audit", "--inventory", "--all-bookies")).json()

    assert (usual["bad_copies"], usual["unnamed_copies"]) == (9, 0)
    assert (report["bad_copies"], report["unnamed_copies"], report["elsewhere_ledgers"]) == (9, 9, 1)
    (row,) = report["unnamed_ranges"]
    assert (row["bookie_id"], row["copy"], row["first_entry_id"], row["last_entry_id"]) == (
        holder,
        "elsewhere",
        "0",
        "8",
    )
    assert [each["part"] for each in report["findings"]] == ["bad_copies", "copies_elsewhere"]


def test_copies_of_a_bookie_that_is_down_are_unknown(cluster: Cluster) -> None:
    write(cluster, 9, 3)
    down = cluster.bookies[2].id
    cluster.stop_bookie(down)

    for options in (("--inventory",), READ_ALL):
        report = cluster.run("audit", *options).json()

        assert (report["unknown_copies"], report["bad_copies"]) == (9, 0)
        assert holdings(report, "unknown_copies") == {down: 9}
        commands = {each["part"]: each["command"] for each in report["findings"]}
        assert commands["unread_copies"] == f"bkctl bookie show {down}"
        assert not {"no_lists", "unknown_copies"} & commands.keys()
    assert cluster.run("audit", "--inventory", "--fail-on", "unknown_copies").exit_code == FINDINGS


async def claim(cluster: Cluster, count: int) -> None:
    """Closed ledgers of ten entries, of which the bookies have none."""
    uri, bookie_ids = parse_metadata_uri(cluster.metadata_uri), [each.id for each in cluster.bookies]
    async with await ZooKeeperStore.connect(uri.servers) as store:
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        for ledger_id in range(1000, 1000 + count):
            await ledgers.create(ledger({0: bookie_ids}, 3, 2, last_entry_id=9, length=100), ledger_id=ledger_id)


def ids_of(report: dict[str, Any]) -> set[int]:
    rows = report["checked_ranges"]
    return {each for row in rows for each in range(int(row["ledger_id"]), int(row["last_ledger_id"]) + 1)}


def remembered(file: Path) -> dict[int, int]:
    """When each ledger was checked."""
    runs = json.loads(file.read_text())["runs"]
    return {
        each: run["checked_ms"]
        for run in runs
        for first, last in run["ranges"]
        for each in range(int(first), int(last) + 1)
    }


@pytest.mark.parametrize("spark", [(), pytest.param(("--spark", "--cores", "1"), marks=pytest.mark.battery)])
async def test_limited_time_goes_to_the_longest_unchecked(
    cluster: Cluster, tmp_path: Path, spark: tuple[str, ...]
) -> None:
    await claim(cluster, 60)
    file = tmp_path / "checked.json"
    options = ("--inventory", "--for", "2s", "--checked-file", str(file), "--copy-rate-per-bookie", "5KiB/s")
    everything, seen = set(range(1000, 1060)), dict[int, int]()
    for _ in range(2):
        before = dict(seen)

        result = await asyncio.to_thread(cluster.run, "audit", *spark, *options)

        report = result.json()
        assert result.exit_code == FINDINGS, result.stderr
        assert (report["ledgers"], report["inventory_ledgers"] + report["left_out_ledgers"]) == (60, 60)
        examined, left = ids_of(report), everything - before.keys()
        assert len(examined) == report["inventory_ledgers"] > 0
        assert examined <= left or left <= examined, "those come first that were never checked"
        assert report["bad_copies"] == 30 * len(examined)
        seen = remembered(file)
        assert {each for each, time in seen.items() if time > max(before.values(), default=0)} == examined
    damaged = file.read_bytes()[:-9]
    file.write_bytes(damaged)
    refused = await asyncio.to_thread(cluster.run, "audit", *spark, *options, "--out", str(tmp_path / "report"))
    assert (refused.exit_code, refused.stdout, file.read_bytes()) == (USAGE, "", damaged)
    assert f"--checked-file {file}: it is damaged, or was not written by bkctl audit --checked-file: " in refused.stderr
    assert "; name another file: it will begin with all ledgers" in refused.stderr
    assert not (tmp_path / "report").exists()


async def test_ledgers_of_which_nothing_was_read_stay_unchecked(cluster: Cluster, tmp_path: Path) -> None:
    """Of one ledger all bookies are down, of the other there is no entry."""
    ledger_id = int(await asyncio.to_thread(write, cluster, 9, 3))
    uri, down = parse_metadata_uri(cluster.metadata_uri), ["gone-1:3181", "gone-2:3181"]
    async with await ZooKeeperStore.connect(uri.servers) as store:
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        await ledgers.create(ledger({0: down}, 2, 2, last_entry_id=9, length=100), ledger_id=1000)
        await ledgers.create(ledger({0: down}, 2, 2, last_entry_id=-1), ledger_id=1001)
    file = tmp_path / "checked.json"

    for options in (("--inventory",), READ_ALL):
        file.unlink(missing_ok=True)
        report = await asyncio.to_thread(
            cluster.run, "audit", *options, "--for", "1m", "--checked-file", str(file), "--fail-on", "lost_entries"
        )

        assert (report.exit_code, report.json()["unknown_copies"], report.json()["left_out_ledgers"]) == (OK, 20, 0)
        assert set(remembered(file)) == ids_of(report.json()) == {ledger_id, 1001}


def test_a_terminal_shows_how_much_is_read_and_what_that_waits_for(cluster: Cluster) -> None:
    succeed(cluster, "ledger", "write-test", "--ledgers", "4", "--entries", "80", "-E", "3", "-W", "3")
    exit_code, shown = run_bkctl_on_terminal(
        *("audit", *READ_ALL, "--copy-rate", "400KiB/s"), BKCTL_METADATA_URI=cluster.metadata_uri
    )
    assert exit_code == OK, shown
    reading = r"\d KiB of about \d+\.\d KiB, .*/s; oldest: ledger \d+, for .*waits for the copy rate"
    assert re.search(reading, shown), shown


def test_a_file_that_cannot_be_written_is_refused_before_the_work(cluster: Cluster, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = cluster.run("audit", "--inventory", "--for", "1m", "--checked-file", str(tmp_path / "pipe"))
    assert (refused.exit_code, "is not a regular file" in refused.stderr) == (2, True), refused
    refused = cluster.run("audit", "--inventory", "--for", "1m", "--checked-file", "/proc/checked")

    assert (refused.exit_code, refused.stdout) == (USAGE, "")
    assert "--checked-file /proc/checked cannot be written: No such file or directory" in refused.stderr


@pytest.mark.parametrize(
    ("becomes", "problem"),
    [("/proc", "cannot be written: No such file or directory"), ("/proc/gone", "there is no directory")],
)
def test_a_file_that_cannot_be_written_at_the_end_costs_no_result(
    becomes: str, problem: str, cluster: Cluster, tmp_path: Path
) -> None:
    for _ in range(3):
        write(cluster, 9, 3)
    state, out = tmp_path / "state", tmp_path / "report"
    state.symlink_to(tmp_path)
    options = ("--for", "1m", "--checked-file", str(state / "checked"), "--out", str(out))
    with ThreadPoolExecutor() as threads:
        running = threads.submit(cluster.run, "audit", "--inventory", "--copy-rate-per-bookie", "1KiB/s", *options)
        wait_until(out.exists, "the audit begins its report")
        state.unlink()
        state.symlink_to(becomes)
        done = running.result()

    assert (done.exit_code, done.json()["listed_copies"]) == (1, 81)
    assert (out / "report.json").exists()
    assert f"--checked-file {state / 'checked'}" in done.stderr
    assert problem in done.stderr
    assert "the report is complete" in done.stderr


def test_a_killed_audit_does_not_refuse_its_directory_to_the_next(cluster: Cluster, tmp_path: Path) -> None:
    for _ in range(3):
        write(cluster, 9, 3)
    out = tmp_path / "run=2026-11-30"
    slow = ("audit", "--inventory", "--copy-rate-per-bookie", "1KiB/s", "--out", str(out))
    killed = start_bkctl(*slow, variables={"BKCTL_METADATA_URI": cluster.metadata_uri})
    wait_until(lambda: [*out.glob("write_sets/_unfinished-*")], "the audit writes", process=killed)
    killed.kill()
    killed.wait()
    assert [path.name for path in out.iterdir()] == ["write_sets"]

    assert succeed(cluster, "audit", "--out", str(out)).json()["ledgers"] == 3
    assert not [*out.glob("write_sets/_unfinished-*")]
    assert cluster.run("audit", "--out", str(out)).exit_code == REFUSED
    for name in ("part-0.parquet", "_unfinished-part-0.parquet.host-1"):
        other = tmp_path / "other" / "write_sets" / name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.touch()
        (tmp_path / "other" / "notes").touch()
        assert cluster.run("audit", "--out", str(tmp_path / "other")).exit_code == REFUSED
        assert other.exists()


def test_a_link_to_a_file_that_does_not_exist_yet_is_followed(cluster: Cluster, tmp_path: Path) -> None:
    write(cluster, 9, 3)
    (tmp_path / "link").symlink_to(tmp_path / "checked")

    succeed(cluster, "audit", "--inventory", "--for", "1m", "--checked-file", str(tmp_path / "link"))

    assert (tmp_path / "link").is_symlink()
    assert len(remembered(tmp_path / "checked")) == 1


@pytest.mark.parametrize("has_report", [True, False])
def test_a_reader_that_goes_away_costs_no_ledger_its_turn(has_report: bool, cluster: Cluster, tmp_path: Path) -> None:
    """What is in a report is known; what was only printed is not."""
    write(cluster, 9, 3)
    checked = tmp_path / "checked"
    options = ["--for", "1m", "--checked-file", str(checked), *(("--out", str(tmp_path / "r")) if has_report else ())]
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        variables = {"BKCTL_METADATA_URI": cluster.metadata_uri}
        process = start_bkctl("audit", "--inventory", *options, stdout=gone, variables=variables)
        assert process.wait(60) == 141
    assert checked.exists() is has_report


async def test_a_file_of_another_cluster_or_way_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "checked.json"
    options = ("--for", "1m", "--checked-file", str(file))
    await asyncio.to_thread(succeed, cluster, "audit", "--inventory", *options)
    other_way = await asyncio.to_thread(cluster.run, "audit", *READ_ALL, *options)
    text = file.read_text()
    file.write_text(text.replace(json.loads(text)["instance_id"], "another-id"))
    elsewhere = await asyncio.to_thread(cluster.run, "audit", "--inventory", *options)

    assert (other_way.exit_code, elsewhere.exit_code) == (CONFLICT, CONFLICT)
    assert "is of inventories with --inventory alone, not with --inventory --read --all-entries" in other_way.stderr
    assert "is of another cluster (" in elsewhere.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"kind": "AuditReport"}', "was not written by bkctl audit --checked-file"),
        ('{"kind": "CheckedLedgers", "format": 2}', "it has format 2, and this bkctl reads format 1"),
        ("not JSON", "it is damaged, or was not written by bkctl audit --checked-file"),
    ],
)
def test_no_file_that_may_be_something_else_is_to_be_deleted(
    cluster: Cluster, tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)

    refused = cluster.run("audit", "--inventory", "--for", "1m", "--checked-file", str(file))

    assert (refused.exit_code, file.read_text()) == (USAGE, text)
    assert reason in refused.stderr
    assert "delete" not in refused.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--for", "1m"), "--for needs --inventory"),
        (("--all-bookies",), "--all-bookies needs --inventory"),
        ((*READ_ALL, "--all-bookies"), "leave out one of them"),
        (("--inventory", "--for", "1m"), "--for needs --checked-file FILE"),
        (("--inventory", "--checked-file", "checked.json"), "--checked-file needs --for DURATION"),
        (("--inventory", "--for", "1x", "--checked-file", "checked.json"), "is not a duration"),
        (("--read",), "--read needs --inventory"),
        (("--inventory", "--all-entries"), "--all-entries needs --inventory --read"),
        (("--inventory", "--sample", "1%"), "--sample needs --inventory --read"),
        ((*READ_ALL, "--sample", "1%"), "leave out --sample"),
        ((*READ_ALL, "--seed", "1"), "--seed needs --inventory --read"),
        (("--copy-rate", "1MiB/s"), "--copy-rate needs --inventory"),
        (("--inventory", "--from", "snapshot.0"), "--inventory asks the bookies of now"),
        (("--fail-on", "bad_copies"), "--fail-on bad_copies needs an audit with --inventory"),
    ],
)
def test_options_without_effect_are_refused(options: tuple[str, ...], reason: str) -> None:
    refused = run_bkctl("audit", *options, "--metadata-uri", "zk+hierarchical://127.0.0.1:1/ledgers")

    assert (refused.exit_code, refused.stdout) == (USAGE, "")
    assert reason in refused.stderr
