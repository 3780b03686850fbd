"""``bkctl audit --out``, ``audit show`` and ``--fail-on`` as processes, over a generated snapshot of ZooKeeper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import run_bkctl
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot

OK, USAGE, NOT_FOUND, FINDINGS, INTEGRITY = 0, 2, 4, 10, 12


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cluster with one lost bookie: ledgers lack one copy, none lacks two."""
    path = tmp_path_factory.mktemp("audit") / "snapshot"
    cluster = SampleCluster(ledgers=300)
    with open(path, "wb") as file:
        write_snapshot(file, cluster_nodes(cluster))
    return str(path)


@pytest.fixture(scope="module")
def report(snapshot: str) -> tuple[str, dict[str, object]]:
    """The directory of a report, and what the audit printed."""
    directory = f"{snapshot}-report"
    done = run_bkctl("audit", "--from", snapshot, "--out", directory, "-o", "json")
    assert done.exit_code == FINDINGS, done
    return directory, done.json()


def test_an_earlier_report_is_shown_as_it_was_printed(report: tuple[str, dict[str, object]]) -> None:
    directory, printed = report
    shown = run_bkctl("audit", "show", directory, "-o", "json")
    assert shown.exit_code == FINDINGS
    assert shown.json() == printed | {"seconds": None}
    assert "Replication by bookie" in run_bkctl("audit", "show", directory, "-o", "wide").stdout
    assert (Path(directory) / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("kinds", "exit_code"),
    [
        ("unavailable,at-risk", OK),
        ("warning", FINDINGS),
        ("unavailable,under_replicated", FINDINGS),
        ("unwritable,lost", OK),
        ("misplaced", OK),
        ("everything", USAGE),
        ("", USAGE),
    ],
)
def test_the_exit_code_follows_fail_on(
    report: tuple[str, dict[str, object]], snapshot: str, kinds: str, exit_code: int
) -> None:
    assert run_bkctl("audit", "show", report[0], "--fail-on", kinds).exit_code == exit_code
    assert run_bkctl("audit", "--from", snapshot, "--fail-on", kinds).exit_code == exit_code


@pytest.mark.parametrize(
    ("kinds", "name", "value"),
    [("lost", "unreadable", 1), ("misplaced", "misplaced", None)],
    ids=["unreadable", "unknown"],
)
def test_what_could_not_be_judged_is_a_finding(
    report: tuple[str, dict[str, object]], tmp_path: Path, kinds: str, name: str, value: int | None
) -> None:
    body = json.loads((Path(report[0]) / "report.json").read_text())
    body["summary"][name] = value
    (tmp_path / "report.json").write_text(json.dumps(body))
    assert run_bkctl("audit", "show", str(tmp_path), "--fail-on", kinds).exit_code == FINDINGS


def test_printed_output_is_no_report_to_compare_with(report: tuple[str, dict[str, object]], tmp_path: Path) -> None:
    printed = tmp_path / "printed.json"
    printed.write_text(run_bkctl("audit", "show", report[0], "-o", "json").stdout)
    result = run_bkctl("audit", "show", report[0], "--compare", str(printed))
    assert result.exit_code == 12
    assert result.stderr == (
        f"error: {printed} is what bkctl audit -o json prints, which has less than a report; a report is a directory "
        "that bkctl audit --out DIR wrote, or its report.json\n"
    )


def test_why_racks_could_not_be_judged_is_told(report: tuple[str, dict[str, object]], tmp_path: Path) -> None:
    body = json.loads((Path(report[0]) / "report.json").read_text())
    body["summary"]["one_rack"] = None
    (tmp_path / "report.json").write_text(json.dumps(body))
    done = run_bkctl("audit", "show", str(tmp_path), "--fail-on", "one_rack")
    assert "no rack is known, or all registered bookies are in one" in done.stderr


def test_a_report_of_an_older_bkctl_is_shown(report: tuple[str, dict[str, object]], tmp_path: Path) -> None:
    """It has no identity of the cluster, and does not say which bookies are to be started or whether any repairs."""
    body = json.loads((Path(report[0]) / "report.json").read_text())
    off = [name for name in body["summary"] if name.startswith("autorecovery_off_")]
    for name in ("metadata_uri", "instance_id", "is_repaired", "auditor", "is_auditor_elected", *off):
        del body["summary"][name]
    for row in body["under_replicated"]:
        del row["no_copy_bookies"], row["no_copy_sets"]
    for row in body["bookies"]:
        del row["maintenance_end_ms"], row["maintenance_user"], row["deadline_ms"], row["no_answer"], row["refusal"]
    (tmp_path / "report.json").write_text(json.dumps(body))
    shown = run_bkctl("audit", "show", str(tmp_path), "--compare", report[0], "-o", "table")
    assert shown.exit_code == FINDINGS, shown
    verdict, changes = shown.stdout.splitlines()[:2]
    assert verdict.startswith("warning: ")
    assert changes.endswith(": no ledger is better or worse")


def test_the_severity_of_the_verdict_is_coloured(report: tuple[str, dict[str, object]]) -> None:
    shown = run_bkctl("audit", "show", report[0], "-o", "table", "--color", "always").stdout
    assert shown.startswith("\x1b[1;31mcritical\x1b[0m: ")


def test_what_is_no_report(tmp_path: Path) -> None:
    done = run_bkctl("audit", "show", str(tmp_path))
    assert done.exit_code == NOT_FOUND
    assert f"cannot read {tmp_path}/report.json: No such file or directory" in done.stderr
    for run in ("run=1", "run=2"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "report.json").touch()
    series = run_bkctl("audit", "show", str(tmp_path))
    assert (series.exit_code, series.stdout) == (NOT_FOUND, "")
    assert f"{tmp_path} has 2 reports: name one of them, like {tmp_path}/run=2" in series.stderr
    (tmp_path / "report.json").write_text("{}")
    assert run_bkctl("audit", "show", str(tmp_path)).exit_code == INTEGRITY
