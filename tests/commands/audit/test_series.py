"""Reports of several runs in one directory: ``--compare`` of all of them, read without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.replication.cluster_audit.comparison import AuditRun, earlier_runs
from tests.processes import run_bkctl
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot

LOST_BOOKIES = (0, 1, 2)
"""In each run; every run has 50 ledgers more."""


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, each compared with those before: the first has none. A file and an unfinished report are no runs."""
    directory = tmp_path_factory.mktemp("series")
    reports = directory / "reports"
    (reports / "run=unfinished").mkdir(parents=True)
    (reports / "notes.txt").touch()
    for number, lost in enumerate(LOST_BOOKIES):
        path = directory / f"snapshot.{number}"
        cluster = SampleCluster(ledgers=50 * (number + 1), lost_bookies=lost, open_share=0)
        with open(path, "wb") as file:
            write_snapshot(file, cluster_nodes(cluster), cluster.sessions)
        out = str(reports / f"run={number}")
        done = run_bkctl(
            "audit", "--from", str(path), "--out", out, "--fail-on", "lost", "--compare", str(reports), "-o", "json"
        )
        assert done.exit_code == 0, done
        runs = None if number == 0 else [f"run={each}" for each in range(number + 1)]
        trend = done.json()["trend"]
        assert (trend and [row["run"] for row in trend]) == runs
    return reports


def test_the_trend_has_the_numbers_of_each_report(series: Path) -> None:
    shown = run_bkctl("audit", "show", str(series / "run=2"), "--compare", str(series), "-o", "json").json()
    assert shown["changes"]["before"] == json_of(series / "run=1")["judged_at"]
    for row in shown["trend"]:
        report = json_of(series / row["run"])
        assert row["ledgers"] == report["ledgers"]
        assert row["missing_copies"] == report["under_replicated"] + report["at_risk"] + report["unavailable"]
        assert row["copy_bytes"] == report["copy_bytes"]
        down = [each["entry_copies"] for each in report["bookies"] if each["mode"] == "unregistered"]
        assert row["copies"] == sum(each["entry_copies"] for each in report["bookies"])
        assert row["live_copies"] == row["copies"] - sum(down)
        assert bool(row["missing_copies"]) == (row["run"] != "run=0")
    table = run_bkctl("audit", "show", str(series / "run=2"), "--compare", str(series), "-o", "table").stdout
    (trend,) = (part for part in table.split("\n\n") if part.startswith("Trend"))
    assert [line.split()[0] for line in trend.splitlines()[3:]] == ["run=0", "run=1", "run=2"]


def json_of(directory: Path) -> Any:
    return run_bkctl("audit", "show", str(directory), "-o", "json").json()


def test_the_page_draws_the_trend(series: Path) -> None:
    first, last = ((series / f"run={number}" / "report.html").read_text() for number in (0, 2))
    assert 'id="trend"' not in first
    assert "3 of 3 runs" in last
    for title in (
        "Ledgers with missing copies",
        "Live copies of entries",
        "Bytes of owner tenant-",
        "Bytes of bookie ",
    ):
        assert f'aria-label="{title}' in last


def test_the_first_report_has_none_before_it(series: Path) -> None:
    done = run_bkctl("audit", "show", str(series / "run=0"), "--compare", str(series))
    assert done.exit_code == 4
    assert f"{series} has no earlier report: " in done.stderr


def test_a_damaged_report_is_named(series: Path, tmp_path: Path) -> None:
    copy = tmp_path / "reports"
    shutil.copytree(series, copy)
    (copy / "run=1" / "bookies" / "part-0.parquet").write_bytes(b"nothing")
    done = run_bkctl("audit", "show", str(copy / "run=2"), "--compare", str(copy))
    assert (done.exit_code, done.stdout) == (12, "")
    assert f"{copy}/run=1 has no Parquet that can be read (" in done.stderr
    assert done.stderr.endswith("make the report again, or move it out of the directory\n")


def test_a_directory_without_reports(tmp_path: Path) -> None:
    done = run_bkctl("audit", "--compare", str(tmp_path), "--metadata-uri", "zk://127.0.0.1:1/ledgers")
    assert (done.exit_code, done.stdout) == (4, "")
    assert f"{tmp_path} has no report: " in done.stderr


def run_at(run: str, time_ms: int, instance_id: str | None) -> AuditRun:
    zeros = dict.fromkeys(("ledgers", "missing_copies", "lost", "copies", "live_copies", "copy_bytes"), 0)
    return AuditRun(run=run, judged_at_ms=time_ms, instance_id=instance_id, owners={}, bookies={}, **zeros)


def test_runs_of_two_clusters_are_refused() -> None:
    runs = [run_at("b", 2, "one"), run_at("a", 1, None), run_at("c", 3, "two")]
    assert [each.run for each in earlier_runs(runs, 3)] == ["a", "b"]
    with pytest.raises(ConflictError, match="b is of the cluster with the instance id one, and c of two"):
        earlier_runs(runs, 4)
