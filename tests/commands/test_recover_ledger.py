"""``bkctl ledger verify --out`` and ``bkctl recover ledger`` against real bookies that lost entries."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import plyvel
import pytest
from kazoo.client import KazooClient

from bkctl.commands.recover_ledger import plan_of_unfinished, work_of_repair
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.ledger.metadata import Segment
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, encode_ledger_metadata
from bkctl.runtime.metadata.bookies.service_info import BookieServiceInfo, decode_service_info, encode_service_info
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.replication.judge.bad_copies import BadCopies, InPlacePlan, LedgerInPlace, left_copies
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.plan.store import JobFile
from bkctl.storage.adapters.sqlite import SqliteDatabase, memory_database
from bkctl.storage.words import counted
from tests.commands.test_cluster_walk import HEADER_AND_DIGEST_BYTES, succeed
from tests.commands.test_recovery_job import count_of
from tests.processes import BookieProcess, Cluster, run_bkctl, start_bkctl
from tests.runtime.replication.test_job_file import START, done
from tests.until import wait_until

pytestmark = pytest.mark.cluster

ENTRY_COUNT = 9


DAMAGE = ((4, -HEADER_AND_DIGEST_BYTES), (6, 0))
"""Spoils the record of entry 4, which becomes unreadable, and the payload of entry 6."""


def write_whole(cluster: Cluster, entries: int = ENTRY_COUNT) -> str:
    """A ledger with three copies of each entry, by its id."""
    written = succeed(cluster, "ledger", "write-test", "--entries", str(entries), "-E", "3", "-W", "3")
    ledger_id: str = written.json()["items"][0]["ledger_id"]
    return ledger_id


def damage(bookie: BookieProcess, places: Sequence[tuple[int, int]] = DAMAGE) -> None:
    """Change one byte for each entry, at an offset from its payload."""
    logs = Path(bookie.directory, "ledgers", "current").glob("*.log")
    log = max(logs, key=lambda each: each.stat().st_size)
    data = bytearray(log.read_bytes())
    for entry_id, offset in places:
        data[data.index(b"bkctl write-test, entry %d " % entry_id) + offset] ^= 0x55
    log.write_bytes(data)


def forget(bookie: BookieProcess, ledger_id: int, *entry_ids: int) -> None:
    """Delete entries from the index of a stopped bookie."""
    index = plyvel.DB(f"{bookie.directory}/ledgers/current/ldb-locations")
    for entry_id in entry_ids:
        key = struct.pack(">qq", ledger_id, entry_id)
        assert index.get(key) is not None
        index.delete(key, sync=True)
    index.close()


@pytest.mark.battery
def test_lost_and_damaged_copies_are_written_again_on_the_same_bookies(cluster: Cluster, tmp_path: Path) -> None:
    ledger_id = int(write_whole(cluster))
    before = succeed(cluster, "ledger", "show", str(ledger_id)).json()
    cluster.down()
    damaged, forgetful = cluster.bookies[0], cluster.bookies[1]
    damage(damaged)
    forget(forgetful, ledger_id, 3, 4, 5)
    cluster.up(3)
    findings = str(tmp_path / "bad.jsonl")

    verified = cluster.run("ledger", "verify", "--all", "--copy-rate", "100MiB/s", "--out", findings)
    assert verified.exit_code == 10
    header, *found, end = (json.loads(line) for line in Path(findings).read_text().splitlines())
    assert (header["kind"], header["instance_id"] is not None, end["findings"]) == ("LedgerFindings", True, 3)
    assert sorted(
        (each["bookie_id"], each["state"], each["first_entry_id"], each["copies"]) for each in found
    ) == sorted([(damaged.id, "failed", "4", 1), (damaged.id, "corrupt", "6", 1), (forgetful.id, "missing", "3", 3)])
    again = cluster.run("ledger", "verify", "--all", "--out", findings)
    assert (again.exit_code, "already exists" in again.stderr) == (5, True)

    saved = str(tmp_path / "plan.json")
    planned = succeed(cluster, "recover", "ledger", "--from-file", findings, "--plan-out", saved).json()
    assert (planned["ledgers"], planned["copies"], planned["copies_left"]) == (1, 5, 0)
    assert [(each["bookie_id"], each["entries"]) for each in planned["items"] if each["state"] == "missing"] == [
        (forgetful.id, "3-5")
    ]
    report = succeed(cluster, "recover", "ledger", "--from-file", findings, "--apply", saved, "--yes").json()
    assert [report[f"copies_{name}"] for name in ("planned", "written", "not_needed", "left")] == [5, 5, 0, 0]
    repeated = succeed(cluster, "recover", "ledger", str(ledger_id), "--yes").json()
    assert (repeated["copies_planned"], repeated["left"]) == (0, [])

    cluster.down()
    cluster.up(3)
    healthy = str(tmp_path / "none.jsonl")
    assert succeed(cluster, "ledger", "verify", "--all", "--out", healthy).json()["copies_good"] == 3 * ENTRY_COUNT
    idle = succeed(cluster, "recover", "ledger", "--from-file", healthy)
    assert "nothing to write: the findings name no ledger" in idle.stderr
    sample = succeed(cluster, "ledger", "verify", "--all", "--sample", "1%", "--seed", "7")
    assert (sample.json()["entries"] in {2, 3}, sample.json()["entries_total"]) == (True, ENTRY_COUNT)
    assert "this was a sample" in sample.stderr
    assert sample.json()["sample"] == {"share": 0.01, "seed": 7}
    beyond = cluster.run("ledger", "verify", str(ledger_id), "--range", "1000-2000")
    assert (beyond.exit_code, beyond.stdout) == (4, "")
    assert f"no entry of ledger {ledger_id} is in 1000-2000" in beyond.stderr
    part = succeed(cluster, "ledger", "verify", str(ledger_id), "--range", "2-4").json()
    assert (part["entries"], part["copies_good"]) == (3, 9)
    assert succeed(cluster, "ledger", "show", str(ledger_id)).json() == before


def test_what_cannot_be_recovered_in_place_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    ledger_id = int(write_whole(cluster, 4))
    cluster.down()
    for bookie in cluster.bookies:
        forget(bookie, ledger_id, 2)
    forget(cluster.bookies[0], ledger_id, 1)
    cluster.up(3)

    result = cluster.run("recover", "ledger", str(ledger_id), "--yes")

    assert result.exit_code == 9
    report = result.json()
    assert (report["copies_written"], report["copies_left"]) == (1, 3)
    assert {(each["entries"], each["reason"]) for each in report["left"]} == {("2", "no good copy is left")}
    assert "find the disks or logs that had them: bkctl help lost-entries" in result.stderr
    assert cluster.run("recover", "ledger", str(ledger_id), "--yes").exit_code == 1, "nothing was written"

    findings = tmp_path / "bad.jsonl"
    for arguments, code, sentence in (
        ((), 2, "specify ledger IDs, --from-file FILE, or --resume FILE"),
        (("--resume", "no-file"), 4, "there is no job file no-file"),
        (("--resume", "no-file", "--from-file", "bad"), 2, "leave out --from-file"),
        (("4711",), 4, "no such ledger"),
        (("--from-file", str(findings)), 4, "cannot read the findings"),
    ):
        refused = cluster.run("recover", "ledger", *arguments)
        assert (refused.exit_code, sentence in refused.stderr) == (code, True), refused.stderr
    assert cluster.run("ledger", "verify", "--all", "--out", str(findings)).exit_code == 10
    other = cluster.run("recover", "ledger", "4711", "--from-file", str(findings))
    assert (other.exit_code, "has no findings about ledger 4711" in other.stderr) == (2, True)
    findings.write_text(findings.read_text().replace('"root":"', '"root":"/other'))
    other = cluster.run("recover", "ledger", "--from-file", str(findings))
    assert (other.exit_code, "is about another cluster" in other.stderr) == (2, True)


async def test_an_open_last_segment_is_not_called_free_of_bad_copies(cluster: Cluster) -> None:
    client = await LedgerClient.connect(cluster.metadata_uri)
    try:
        async with await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3) as writer:
            await writer.append(b"an entry")
            ledger_id = str(writer.ledger_id)
            report = await asyncio.to_thread(succeed, cluster, "recover", "ledger", ledger_id)
    finally:
        await client.close()
    assert f"not read: the open last segment of 1 ledger (bkctl ledger verify {ledger_id} reads it)" in report.stderr


def test_a_continued_repair_still_reports_what_its_plan_had_left() -> None:
    def planned(ledger_id: int, *, has_changes: bool) -> LedgerInPlace:
        bad = BadCopies(
            bookie_id="b1",
            states=(CopyState.MISSING,),
            copies=1,
            entries=(EntryRange(0, 0),),
            sources=("b2",),
            bytes_to_copy=10,
        )
        left = left_copies(ledger_id, FailureReason.LOST, "b2", 1, (EntryRange(1, 1),), "entry 1")
        return LedgerInPlace(ledger_id=ledger_id, changes=(bad,) if has_changes else (), left=(left,))

    clean = LedgerInPlace(ledger_id=6)
    found = InPlacePlan((clean, *(planned(each, has_changes=each != 7) for each in (7, 8, 9))))
    job_file = JobFile.create(memory_database(), START, work_of_repair(found))
    job_file.append(done(8))
    job_file.write()

    again = plan_of_unfinished(job_file.unfinished)

    assert [ledger.ledger_id for ledger in again.to_repair] == [9]
    assert [left.ledger_id for left in again.left] == [7, 8, 9]
    job_file.close()


@pytest.mark.battery
def test_a_killed_repair_goes_on_with_resume_and_verifies_nothing_twice(cluster: Cluster, tmp_path: Path) -> None:
    sizes = ("-E", "3", "-W", "3", "--entry-size", "1024", "--no-read-back")
    written = succeed(cluster, "ledger", "write-test", "--ledgers", "12", "--entries", "200", *sizes)
    ledger_ids = [each["ledger_id"] for each in written.json()["items"]]
    cluster.down()
    for ledger_id in ledger_ids:
        forget(cluster.bookies[0], int(ledger_id), *range(200))
    cluster.up(3)
    state, jobs, log = str(tmp_path / "state"), tmp_path / "state" / "jobs", tmp_path / "command.log"
    config = tmp_path / "bkctl.toml"
    config.write_text("[replication]\nledgers_in_parallel = 2\n")  # not all are done at once, at the end
    variables = {"BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_STATE_DIR": state, "BKCTL_CONFIG": str(config)}
    with open(log, "wb") as output:
        killed = start_bkctl(
            "recover",
            "ledger",
            *ledger_ids,
            "--yes",
            "--copy-rate",
            "500KiB/s",
            stdout=output,
            stderr=output,
            variables=variables,
        )
    wait_until(
        lambda: any(count_of("done", str(path)) for path in jobs.glob("*.sqlite")), process=killed, tell=log.read_text
    )
    killed.kill()
    killed.wait()
    (job_file,) = jobs.glob("*.sqlite")
    for arguments, code, sentence in (
        ((ledger_ids[0], "--resume", str(job_file)), 5, "is a job of 12 ledgers, which are not all among these"),
        (("--resume", str(job_file), "--from-file", "bad"), 2, "leave out --from-file"),
    ):
        refused = cluster.run("recover", "ledger", *arguments, "--yes")
        assert (refused.exit_code, sentence in refused.stderr) == (code, True), refused.stderr
    with closing(JobFile(SqliteDatabase(str(job_file)))) as job:
        recorded = job.done_before[0]
    dead = cluster.run("recover", "failed-bookie", cluster.bookies[0].id, "--resume", str(job_file), "--yes")
    assert "is a job of bkctl recover ledger" in dead.stderr
    Path(f"{job_file}.rates").write_text("copy-rate = none\n")

    continued = run_bkctl(
        "recover",
        "ledger",
        "--resume",
        str(job_file),
        "--yes",
        BKCTL_METADATA_URI=cluster.metadata_uri,
        BKCTL_STATE_DIR=state,
    )

    assert continued.exit_code == 0, continued.stderr
    assert f"continues a job with {counted(recorded, 'ledger')} done before" in continued.stderr
    report = continued.json()
    assert report["ledgers"] < 12
    assert report["copies_written"] + report["copies_not_needed"] == 200 * report["ledgers"]
    assert list(jobs.iterdir()) == [], "a finished job leaves no file"
    assert succeed(cluster, "ledger", "verify", "--all").json()["copies_good"] == 12 * 200 * 3


def test_a_corrupt_or_unreadable_copy_is_written_over_on_a_bookie_of_bkctl_and_moves_from_any_other(
    start_cluster: Callable[[int], Cluster],
) -> None:
    cluster = start_cluster(3)
    ledger_id = write_whole(cluster)
    cluster.down()
    first, second = cluster.bookies[:2]
    damage(first)
    damage(second)
    cluster.up(4)
    uri = parse_metadata_uri(cluster.metadata_uri)
    with closing(KazooClient(uri.servers)) as client:
        client.start()
        try:
            path = f"{uri.root}/available/{first.id}"
            published, _ = client.get(path)
            info = decode_service_info(first.id, published)
            assert info.is_bkctl
            client.set(path, encode_service_info(BookieServiceInfo(info.endpoints)))  # as a Java bookie
        finally:
            client.stop()

    planned = succeed(cluster, "recover", "ledger", ledger_id, "--dry-run", "-o", "json")
    assert sorted(
        (each["bookie_id"], each["action"], each["state"], each["entries"]) for each in planned.json()["items"]
    ) == sorted(
        [
            (first.id, "move stripe", "corrupt, failed", "4, 6"),
            (second.id, "write copies", "failed", "4"),
            (second.id, "write copies", "corrupt", "6"),
        ]
    )
    assert planned.json()["stripes_to_move"] == 1
    (sentence,) = [each for each in planned.json()["summary"] if "stripe" in each]
    assert sentence.startswith("will move 1 stripe (about 9.3 KiB) from " + first.id)
    report = succeed(cluster, "recover", "ledger", ledger_id, "--yes").json()

    assert [report[f"copies_{name}"] for name in ("written", "moved", "not_needed", "left")] == [2, 2, 0, 0]
    (segment,) = succeed(cluster, "ledger", "show", ledger_id).json()["ensembles"]
    assert sorted(segment["ensemble"]) == sorted(each.id for each in cluster.bookies if each.id != first.id)
    assert succeed(cluster, "ledger", "verify", ledger_id).json()["copies_good"] == 3 * ENTRY_COUNT


def test_the_report_of_a_recovery_names_bad_copies_that_stay(start_cluster: Callable[[int], Cluster]) -> None:
    cluster = start_cluster(3)
    ledger_id = write_whole(cluster)
    cluster.down()
    dead, *survivors = cluster.bookies
    for first, bookie in enumerate(survivors):  # whichever of them is read, some of its copies are bad
        damage(bookie, [(entry_id, 0) for entry_id in range(first, ENTRY_COUNT, 2)])
    cluster.up(4)
    cluster.stop_bookie(dead.id)

    report = succeed(cluster, "recover", dead.id, "--yes", "-o", "json").json()

    assert report["bad_copies_found"] == len(report["bad_copies"]) > 0
    for row in report["bad_copies"]:
        first = [each.id for each in survivors].index(row["bookie_id"])
        assert (row["ledger_id"], row["state"]) == (ledger_id, "corrupt")
        entries = [int(each) for each in row["entries"]]
        assert entries == [each for each in range(first, ENTRY_COUNT, 2) if each in entries]


def test_the_second_place_of_a_bookie_in_an_ensemble_is_found_and_moves(
    start_cluster: Callable[[int], Cluster],
) -> None:
    """As Java's recovery leaves it next to another one, because it writes metadata that was changed meanwhile."""
    cluster = start_cluster(4)
    ledger_id = write_whole(cluster)
    uri = parse_metadata_uri(cluster.metadata_uri)
    path = f"{uri.root}/{LedgerTree.HIERARCHICAL.ledger_path(int(ledger_id))}"
    with closing(KazooClient(uri.servers)) as client:
        client.start()
        try:
            metadata = decode_ledger_metadata(client.get(path)[0])
            first, second, _ = metadata.segments[0].ensemble
            twice = msgspec.structs.replace(metadata, segments=(Segment(0, (first, second, second)),))
            client.set(path, encode_ledger_metadata(twice))
        finally:
            client.stop()

    verified = cluster.run("ledger", "verify", ledger_id, "-o", "json")
    assert verified.exit_code == 10, verified.stderr
    (check,) = verified.json()["items"]
    assert (check["copies_expected"], check["copies_missing"]) == (3 * ENTRY_COUNT, ENTRY_COUNT)
    explained = cluster.run("ledger", "explain", ledger_id)
    assert f"bkctl recover ledger {ledger_id} moves the second place of {second}" in explained.stdout
    doctor = cluster.run("metadata", "doctor").stdout
    assert "duplicate-bookie-in-ensemble" in doctor
    assert f"bkctl recover ledger {ledger_id} moves" in doctor

    repaired = succeed(cluster, "recover", "ledger", ledger_id, "--yes", "-o", "json")
    assert "an ensemble names a bookie twice" in repaired.stderr
    assert repaired.json()["stripes_moved"] == 1
    succeed(cluster, "ledger", "verify", ledger_id)
    assert "duplicate-bookie-in-ensemble" not in cluster.run("metadata", "doctor").stdout
