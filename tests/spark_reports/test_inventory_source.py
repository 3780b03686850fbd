"""What bookies hold as Spark rows, from exports of the files of real bookies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from bkctl.runtime.errors import ConfigurationError
from bkctl.spark_reports.cluster_sources import register_sources
from bkctl.spark_reports.inventory_source import InventoryReader, InventorySource, exported_bookie
from tests.processes import BookieProcess, Cluster, bkctl_environment, run_bkctl
from tests.storage.golden import content
from tests.test_repository import read

pytestmark = pytest.mark.cluster

_, GUIDE = read("docs/guide/audit.md").split("### What bookies hold")
EXPORT, _ADDED = re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL)
(QUERIES,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
JAVA_LOGS = ("db-4.18.0/crash/ledgers/0.log.gz", "direct-io-4.18.0/replayed/ledgers/1.log.gz")


def inventory(spark: SparkSession, path: str) -> list[tuple[str, int, int]]:
    register_sources(spark)
    rows = spark.read.format("bookkeeper_inventory").load(path).collect()
    return sorted((row["bookie_id"], row["ledger_id"], row["stored_bytes"]) for row in rows)


def export(bookie: BookieProcess, directory: Path) -> None:
    """The line of the guide, for this bookie."""
    logs = f"{bookie.directory}/ledgers/current/*.log"
    line = EXPORT.replace("/disk1/ledgers/current/*.log /disk2/ledgers/current/*.log", logs)
    line = line.replace("bk1%3A3181", bookie.id.replace(":", "%3A"))
    line = f'bkctl() {{ "{sys.executable}" -P -m bkctl "$@"; }}\n{line}'
    subprocess.run(["sh", "-c", line], cwd=directory, env=bkctl_environment(), check=True)


def write_ledger(cluster: Cluster) -> int:
    size = ("--entries", "20", "--entry-size", "100", "-E", "2", "-W", "2", "-A", "2")
    written = cluster.run("ledger", "write-test", *size, "-o", "json")
    assert written.exit_code == 0, written.stderr
    listed = cluster.run("ledger", "list", "-o", "name")
    return max(map(int, listed.stdout.split()))


def test_lost_and_unnamed_ledgers_of_real_bookies(
    spark: SparkSession, start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """The code of the guide; a bookie loses its first log, and the metadata of the last ledger is deleted."""
    cluster = start_cluster(2)
    lost = write_ledger(cluster)
    cluster.down()
    cluster.up(2)
    kept, deleted = write_ledger(cluster), write_ledger(cluster)
    done = cluster.run("ledger", "delete", str(deleted), "--confirm", str(deleted))
    assert done.exit_code == 0, done.stderr
    cluster.down()
    one, other = cluster.bookies
    first_log = min(Path(one.directory, "ledgers", "current").glob("*.log"), key=lambda path: int(path.stem, 16))
    first_log.unlink()
    exports = tmp_path / "exports"
    exports.mkdir()
    export(other, exports)

    def compare() -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
        code = QUERIES.replace("zk+hierarchical://127.0.0.1:2181/ledgers", cluster.metadata_uri)
        code = code.replace('"/exports"', repr(str(exports)))
        code = code.replace("timestamp '2026-01-31 00:00:00'", f"timestamp_millis({time.time_ns() // 10**6 + 1})")
        found: dict[str, object] = {"spark": spark}
        exec(code, found)
        missing, unnamed = (
            {(row["bookie_id"], row["ledger_id"]) for row in found[name].collect()}  # type: ignore[attr-defined]
            for name in ("missing", "unnamed")
        )
        return missing, unnamed

    assert compare() == (set(), {(other.id, deleted)})
    assert [row[:2] for row in inventory(spark, str(exports))] == [
        (other.id, ledger_id) for ledger_id in (lost, kept, deleted)
    ]
    export(one, exports)
    assert compare() == ({(one.id, lost)}, {(one.id, deleted), (other.id, deleted)})


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    """Of one bookie, with two logs that Java wrote."""
    results = b""
    for name in JAVA_LOGS:
        log = tmp_path / "1f.log"
        log.write_bytes(content(name))
        results += run_bkctl("storage", "entrylog", "ledgers", str(log), "-o", "json").stdout.encode()
    directory = tmp_path / "exports"
    directory.mkdir()
    (directory / "bk1%3A3181.json").write_bytes(results)
    (directory / ".bk1.json.crc").write_bytes(b"of Hadoop")
    return directory


def expected_rows(tmp_path: Path) -> list[tuple[str, int, int]]:
    total: dict[int, int] = {}
    for name in JAVA_LOGS:
        log = tmp_path / "1f.log"
        log.write_bytes(content(name))
        for item in run_bkctl("storage", "entrylog", "ledgers", str(log), "-o", "json").json()["items"]:
            total[int(item["ledger_id"])] = total.get(int(item["ledger_id"]), 0) + item["bytes"]
    return sorted(("bk1:3181", ledger_id, stored) for ledger_id, stored in total.items())


def test_logs_of_a_bookie_are_summed_up_also_through_hadoop(spark: SparkSession, exports: Path, tmp_path: Path) -> None:
    expected = expected_rows(tmp_path)
    assert len(expected) > 3
    assert inventory(spark, str(exports)) == expected
    spark.sparkContext.addFile(exports.as_uri(), recursive=True)
    assert inventory(spark, "exports") == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: b"", "is empty"),
        (lambda whole: whole[:-2], "result 2 in .* is damaged or truncated"),
        (lambda whole: whole[: len(whole) // 3], "is damaged or truncated"),
        (lambda whole: os.urandom(1000), "result 1 in .* is damaged or truncated"),
        (lambda whole: whole + b"{}\n", "result 3 in .* is damaged or truncated"),
        (lambda whole: whole.replace(b"EntryLogLedgers", b"EntryLogScan"), "result 1 in .* is damaged or truncated"),
        (lambda whole: whole.replace(b'"1"', b'"-1"'), "result 1 in .* is damaged or truncated"),
        (lambda whole: whole.replace(b"false", b"true"), "result 1 in .* was cut by --limit"),
    ],
)
def test_a_damaged_export_fails_the_job_and_is_named(
    spark: SparkSession, exports: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    path = exports / "bk1%3A3181.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(PythonException) as failure:
        inventory(spark, str(exports))
    (sentence,) = re.findall(r"SparkReportError: (.*)", str(failure.value))
    assert re.search(said, sentence)
    assert str(path) in sentence
    assert sentence.endswith("export the bookie again with bkctl storage entrylog ledgers -o json")


def test_a_directory_that_is_no_inventory_is_refused(spark: SparkSession, exports: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (exports / "bk1:3181.json").write_bytes(b"")
    for path, said in (
        (empty, "has no exports: it needs a file BOOKIE_ID.json"),
        (tmp_path / "nowhere", "cannot read the directory of exports .*/nowhere: No such file"),
        (exports / "bk1:3181.json", "cannot read the directory of exports .*: Not a directory"),
        (exports, "bk1%3A3181.json and bk1:3181.json are of the same bookie"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            InventoryReader(str(path)).partitions()
    with pytest.raises((AnalysisException, PythonException), match="are of the same bookie"):
        inventory(spark, str(exports))


@pytest.mark.parametrize("name", ["bk1.part", "bk1", "readonly.json", ".json", "a b.json", "bk1%FF.json", "..json"])
def test_a_file_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"'{name}' is no export: name each file BOOKIE_ID.json")):
        exported_bookie(name)


@pytest.mark.parametrize("options", [{}, {"metadata_uri": "zk://localhost/ledgers"}, {"path": "/x", "rate": "1"}])
def test_options_that_it_does_not_have_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="needs the option path, and has no other one"):
        InventorySource(options)
