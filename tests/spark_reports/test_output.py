"""The directory of a report: never another report's, and whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.runtime.errors import RefusedError
from bkctl.spark_reports.errors import SparkReportError
from bkctl.spark_reports.output import DATASETS, new_report


def fail_in(directory: Path) -> None:
    with new_report(str(directory)):
        for name in DATASETS[:2]:
            (directory / name).mkdir()
            (directory / name / "part-0.parquet").write_bytes(b"half")
        raise RuntimeError


def test_a_report_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail_in(tmp_path / "audits" / "monday")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "report"
    with (
        pytest.raises(SparkReportError, match="report: cannot write the report: No space left on device"),
        new_report(str(directory)),
        open("/dev/full", "wb", buffering=0) as disk,
    ):
        disk.write(b"rows")
    assert not directory.exists()


def test_a_directory_that_was_there_stays(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail_in(tmp_path)
    assert tmp_path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / DATASETS[0]).mkdir()
    with pytest.raises(RefusedError, match="is not empty"), new_report(str(tmp_path)):
        pass
    assert (tmp_path / DATASETS[0]).exists()


def test_two_reports_in_one_directory_do_not_mix(tmp_path: Path) -> None:
    with new_report(str(tmp_path)):
        with pytest.raises(RefusedError, match="another report is being written"), new_report(str(tmp_path)):
            pass
        (tmp_path / DATASETS[0]).mkdir()
    assert (tmp_path / DATASETS[0]).exists()


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(RefusedError, match="Not a directory"),
        new_report(f"{tmp_path}/file/x"),
    ):
        pass
