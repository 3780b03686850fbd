"""``bkctl audit --from`` as a process: files of a real ZooKeeper, and the same result as from the live one."""

from __future__ import annotations

import asyncio
import glob
import gzip
import io
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.uri import MetadataUri, parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import bkctl_command, bkctl_environment, run_bkctl
from tests.runtime.replication.samples import random_ledger
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot
from tests.until import wait_until

pytestmark = pytest.mark.cluster

BOOKIES = [f"bookie-{number}:3181" for number in range(7)]
ROOT = "/tenant/ledgers"
GARBAGE_ID = 20_000
OF_FILE = {"file_written", "as_of_file", "replicated_as_of_file", "empty_as_of_file"}
OF_THE_RUN = {"seconds", "out", "judged_at", "metadata_uri", "ledgers_from", "bookies_from"} | OF_FILE


async def fill(store: ZooKeeperStore, uri: MetadataUri, of_bookie: bytes) -> None:
    """60 ledgers of both kinds of ids, one more that cannot be read, and five of seven bookies."""
    source, paths = random.Random(3), Paths(uri.root)
    await init_cluster(store, uri.root, uri.tree, source)
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    for ledger_id in [*range(30), *range(10_000, 10_020), *range(2**40, 2**40 + 10)]:
        await ledgers.create(random_ledger(source, BOOKIES), ledger_id=ledger_id)
    await store.create(ledgers.path(GARBAGE_ID), b"not metadata", make_parents=True)
    for bookie_id in BOOKIES[:4]:
        await store.create(paths.writable_bookie(bookie_id), of_bookie, is_ephemeral=True)
    await store.create(paths.read_only_bookie(BOOKIES[4]), of_bookie, is_ephemeral=True)
    await AuditorElection(store, uri.root, BOOKIES[0], lambda _: None).campaign()


@asynccontextmanager
async def zookeeper_with_a_snapshot(directory: Path, of_bookie: bytes) -> AsyncIterator[tuple[str, Path]]:
    """The metadata URI of a cluster, and the file that its ZooKeeper wrote when it started with all of it."""
    async with await EmbeddedZooKeeper.start(str(directory)) as first:
        uri = f"zk+hierarchical://{first.connect_string}{ROOT}"
        outlasting = ZooKeeperConfig(session_timeout_ms=60_000)  # the restart of ZooKeeper on a busy machine
        both = f"{first.connect_string},{first.connect_string}"  # one that starts may leave a connection unanswered
        async with await ZooKeeperStore.connect(both, outlasting) as store:
            await fill(store, parse_metadata_uri(uri), of_bookie)
            await first.stop()
            async with await EmbeddedZooKeeper.start(str(directory), port=first.port):
                assert (await RegistrationClient(store, ROOT).snapshot()).read_only == (BOOKIES[4],)
                written = directory.glob("data/version-2/snapshot.*")
                yield uri, max(written, key=lambda path: int(path.suffix[1:], 16))


def report_of(*arguments: str, uri: str = "") -> dict[str, Any]:
    """The printed commands are the same in all reports: ``uri`` is no option, which they would carry."""
    done = run_bkctl("audit", *arguments, "-o", "json", BKCTL_METADATA_URI=uri)
    assert done.exit_code == 10, done
    report: dict[str, Any] = done.json()
    for row in report["bookies"]:
        del row["disk_free_bytes"]  # of this machine: it changes meanwhile
    return {key: value for key, value in report.items() if key not in OF_THE_RUN}


def without_lookups(report: dict[str, Any]) -> dict[str, Any]:
    """The report of a cluster that has not changed since, as if no ledger had been looked up."""
    assert report["looked_up"] >= len(report["under_replicated_ledgers"]) + len(report["unreadable_ledgers"])
    return report | {"looked_up": 0}


async def test_a_snapshot_gives_the_report_of_the_live_cluster(tmp_path: Path, of_bookie: bytes) -> None:
    async with zookeeper_with_a_snapshot(tmp_path / "zookeeper", of_bookie) as (uri, path):
        live = await asyncio.to_thread(report_of, uri=uri)
        with_uri = await asyncio.to_thread(report_of, "--from", str(path), uri=uri)
        backup = str(tmp_path / "backup.jsonl.gz")
        done = await asyncio.to_thread(run_bkctl, "cluster", "backup", backup, "--metadata-uri", uri)
        assert done.exit_code == 0, done
        from_backup = await asyncio.to_thread(report_of, "--from", backup, uri=uri)
        by_spark = await asyncio.to_thread(report_of, "--spark", "--cores", "1", "--from", f"file://{path}", uri=uri)
    offline = await asyncio.to_thread(report_of, "--from", str(path), "--ledgers-root", ROOT)
    directory = await asyncio.to_thread(report_of, "--from", str(path.parent.parent), "--ledgers-root", ROOT)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    unpacked = await asyncio.to_thread(report_of, "--from", str(packed), "--ledgers-root", ROOT)
    refused = await asyncio.to_thread(run_bkctl, "audit", "--from", backup)

    assert live["ledgers"] == 61
    assert [row["ledger_id"] for row in live["unreadable_ledgers"]] == [str(GARBAGE_ID)]
    assert live["under_replicated"] > 5
    assert live["auditor"] == BOOKIES[0]
    assert (live["bookies_writable"], live["bookies_read_only"], live["bookies_named_unregistered"]) == (4, 1, 2)
    assert without_lookups(with_uri) == live
    assert without_lookups(from_backup) == live
    assert by_spark == with_uri
    assert all(row["disk_total_bytes"] for row in live["bookies"] if row["mode"] != "unregistered")
    rows = [row | {"disk_total_bytes": None} for row in live["bookies"]]
    not_asked = live | {"bookies": rows}
    assert offline == not_asked
    assert directory == not_asked
    assert unpacked == not_asked
    assert refused.exit_code == 13
    assert "is a backup, which has no registrations of bookies: use --metadata-uri" in refused.stderr


async def test_the_file_of_another_cluster_is_refused(tmp_path: Path, metadata_uri: str) -> None:
    """Otherwise all its findings would count as deleted."""
    sample, path = SampleCluster(ledgers=10, tree=LedgerTree.HIERARCHICAL), tmp_path / "snapshot.1"
    with path.open("wb") as output:
        write_snapshot(output, cluster_nodes(sample), sample.sessions)
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
    arguments = ("audit", "--from", str(path), "--ledgers-root", sample.root, "--metadata-uri", metadata_uri)
    done = await asyncio.to_thread(run_bkctl, *arguments)
    assert (done.exit_code, done.stdout) == (5, ""), done
    assert f"{path} is of the cluster with the instance id 7f3a0c1e-0b3d-4d2a-9a51-3a1f0c9d2b11, but the" in done.stderr


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a ZooKeeper that was killed while it wrote a snapshot."""
    directory = tmp_path / "version-2"
    directory.mkdir()
    with (directory / "snapshot.1").open("wb") as output:
        write_snapshot(output, cluster_nodes(SampleCluster(ledgers=10, lost_bookies=0, has_auditor=True)))
    (directory / "snapshot.2").write_bytes((directory / "snapshot.1").read_bytes()[:-1])
    return directory


def test_an_older_snapshot_is_never_read_silently(directory: Path, tmp_path: Path) -> None:
    """The exit code, the report and its page say so. All bookies are up: the older snapshot itself has no finding."""
    whole = gzip.compress((directory / "snapshot.1").read_bytes())
    (directory / "snapshot.3.gz").write_bytes(whole[:-20])
    out = str(tmp_path / "report")
    done = run_bkctl("audit", "--from", str(directory.parent), "--out", out, "-o", "json")
    assert done.exit_code == 10, done
    assert (done.json()["ledgers_from"], done.json()["skipped_snapshots"]) == (
        f"snapshot {directory / 'snapshot.1'}",
        2,
    )
    first, second, third = done.stderr.splitlines()
    assert first.startswith(f"warning: {directory / 'snapshot.3.gz'} is damaged after ")
    assert first.endswith(": reading an older snapshot")
    assert second == f"warning: {directory / 'snapshot.2'} is not complete: reading an older snapshot"
    assert third == (
        f"warning: 2 newer snapshots could not be read, and the report is of snapshot {directory / 'snapshot.1'}: so "
        "the exit code is that of a finding"
    )
    assert run_bkctl("audit", "show", out).exit_code == 10
    assert "Newer snapshots that are damaged or incomplete: 2." in Path(out, "report.html").read_text()
    assert done.json()["verdict"].startswith("2 newer snapshots could not be read, so this is of snapshot ")

    (directory / "snapshot.3.gz").write_bytes(whole)
    newest = run_bkctl("audit", "--from", str(directory.parent), "-o", "json")
    assert (newest.exit_code, newest.stderr) == (0, ""), newest
    (directory / "snapshot.3.gz").write_bytes(whole[:-20])
    refused = run_bkctl("audit", "--from", str(directory / "snapshot.3.gz"))
    assert (refused.exit_code, refused.stdout) == (12, ""), refused


@pytest.mark.parametrize("copied_s_ago", [0, 30 * 86_400])
def test_every_output_has_the_age_of_what_is_in_the_file(tmp_path: Path, copied_s_ago: int) -> None:
    """The time of a copy says nothing."""
    file, out = tmp_path / "snapshot.1", str(tmp_path / "report")
    written_s = int(time.time()) - 2 * 3600
    nodes = list(cluster_nodes(SampleCluster(ledgers=10, lost_bookies=0)))
    nodes[len(nodes) // 2] = msgspec.structs.replace(nodes[len(nodes) // 2], time_ms=written_s * 1000)
    with file.open("wb") as output:
        write_snapshot(output, nodes)
    os.utime(file, (time.time() - copied_s_ago, time.time() - copied_s_ago))
    written = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(written_s))
    report = run_bkctl("audit", "--from", str(file), "-o", "json").json()
    assert report["file_written"].startswith(written)
    assert (report["as_of_file"], report["replicated_as_of_file"]) == (10, report["replicated"])
    shown = run_bkctl("audit", "--from", str(file), "--out", out, "-o", "table")
    assert f"snapshot {file} is of {written}" in shown.stderr
    assert "before the audit: of the 10 ledgers, 10 are as of that time" in shown.stderr
    page = Path(out, "report.html").read_text()
    assert f"ledgers are of a file of {written[:16].replace('T', ' ')} UTC" in page
    assert "2 h before: 10 ledgers are as of that time" in page


async def test_ledgers_of_the_file_and_those_of_now_are_counted_separately(tmp_path: Path, of_bookie: bytes) -> None:
    async with zookeeper_with_a_snapshot(tmp_path / "zookeeper", of_bookie) as (uri, path):

        async def audit(*arguments: str) -> dict[str, Any]:
            found = await asyncio.to_thread(run_bkctl, "audit", *arguments, "-o", "json")
            report: dict[str, Any] = found.json()
            return report

        old = await audit("--from", str(path), "--ledgers-root", ROOT)
        under = [each["ledger_id"] for each in old["under_replicated_ledgers"] if each["ledger_state"] == "closed"]
        async with await ZooKeeperStore.connect(parse_metadata_uri(uri).servers) as store:
            ledgers = await open_ledger_store(store, ROOT, LedgerTree.HIERARCHICAL)
            stored = await ledgers.read(int(under[0]))
            segments = tuple(
                msgspec.structs.replace(each, ensemble=tuple(BOOKIES[: len(each.ensemble)]))
                for each in stored.value.segments
            )
            repaired = msgspec.structs.replace(stored.value, segments=segments)
            await ledgers.write(int(under[0]), repaired, stored.version)
        mixed = await audit("--from", str(path), "--metadata-uri", uri)
        live = await audit("--metadata-uri", uri)
        backup = str(tmp_path / "backup.jsonl.gz")
        began_s = int(time.time())
        done = await asyncio.to_thread(run_bkctl, "cluster", "backup", backup, "--metadata-uri", uri)
        assert done.exit_code == 0, done
        os.utime(backup, (began_s + 3600, began_s + 3600))
        from_backup = await audit("--from", backup, "--metadata-uri", uri)

    assert (old["as_of_file"], old["replicated_as_of_file"]) == (old["ledgers"], old["replicated"])
    assert mixed["as_of_file"] == mixed["ledgers"] - mixed["looked_up"]
    assert mixed["replicated"] == live["replicated"] == old["replicated"] + 1
    assert mixed["replicated_as_of_file"] + mixed["empty_as_of_file"] == mixed["as_of_file"]
    assert mixed["replicated_as_of_file"] < mixed["replicated"]
    assert {live[each] for each in OF_FILE - {"file_written"}} == {0}
    times = [time.strftime("%Y-%m-%dT%H:%M", time.gmtime(began_s + later)) for later in (0, 60)]
    assert from_backup["file_written"][:16] in times, "a backup has the time at which it was made"


def test_a_wrong_root_is_refused_by_the_name_of_the_file(directory: Path) -> None:
    packed = directory / "snapshot.3.gz"
    packed.write_bytes(gzip.compress((directory / "snapshot.1").read_bytes()))
    done = run_bkctl("audit", "--from", str(directory), "--ledgers-root", "/other")
    assert done.exit_code == 4, done
    assert f"there is no BookKeeper cluster at /other in {packed}: use" in done.stderr


def test_a_killed_audit_leaves_its_unpacked_copy_only_until_the_next_one(directory: Path, tmp_path: Path) -> None:
    """The copy of an audit that is still running stays."""
    large, temporary = tmp_path / "large", tmp_path / "temporary"
    temporary.mkdir()
    plain = io.BytesIO()
    write_snapshot(plain, cluster_nodes(SampleCluster(ledgers=100_000)))
    large.write_bytes(gzip.compress(plain.getvalue(), compresslevel=1))
    command = bkctl_command("audit", "--from", str(large))
    environment = bkctl_environment(TMPDIR=str(temporary))

    def copies() -> set[str]:
        return set(glob.glob(f"{temporary}/*/*.snapshot"))  # Path.glob fails when a directory is deleted meanwhile

    def begin() -> subprocess.Popen[bytes]:
        known = copies()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: copies() - known, "its copy is there", process=process)
        return process

    killed = begin()
    killed.kill()
    killed.wait()
    (left,) = temporary.iterdir()
    running = begin()
    try:
        os.kill(running.pid, signal.SIGSTOP)
        (kept,) = temporary.iterdir()
        assert kept != left
        assert run_bkctl("audit", "--from", str(directory), TMPDIR=str(temporary)).exit_code == 10
        assert list(temporary.iterdir()) == [kept]
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot.7"
    path.write_bytes(b"ZKSN\0\0\0\x02" + bytes(8))
    return path


def test_a_file_that_is_not_whole_is_refused_by_name(damaged: Path) -> None:
    done = run_bkctl("audit", "--from", str(damaged))
    assert done.exit_code == 12
    assert done.stdout == ""
    assert f"snapshot {damaged} is damaged at byte 16: it is truncated" in done.stderr


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    missing = run_bkctl("audit", "--from", str(tmp_path / "nothing"))
    assert (missing.exit_code, missing.stderr.count("\n")) == (4, 1), missing
    assert run_bkctl("audit", "--ledgers-root", "/x").exit_code == 2
    without_spark = run_bkctl("audit", "--from", "hdfs://namenode/snapshot.1")
    assert without_spark.exit_code == 2
    assert "needs --spark" in without_spark.stderr
