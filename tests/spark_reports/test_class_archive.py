"""Java's archive of Spark's classes: who has one, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.spark_reports.class_archive import class_archive_options

JAVA, SPARK = "/usr/lib/jvm/java/bin/java", "/opt/spark"


def archives_of(options: tuple[str, ...]) -> list[str]:
    return [each.partition("=")[2] for each in options if each.startswith("-XX:SharedArchiveFile=")]


def test_each_pair_of_java_and_spark_has_a_file_in_a_private_directory(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    (path,) = archives_of(class_archive_options(JAVA, 21, SPARK, environment))
    assert Path(path).parent == tmp_path / ".cache" / "bkctl"
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert archives_of(class_archive_options(JAVA, 22, SPARK, environment)) == [path]
    assert archives_of(class_archive_options(JAVA, 21, "/opt/other", environment)) != [path]
    elsewhere = class_archive_options(JAVA, 21, SPARK, {"HOME": "/", "XDG_CACHE_HOME": str(tmp_path / "x")})
    assert Path(archives_of(elsewhere)[0]).parent == tmp_path / "x" / "bkctl"


def test_older_java_has_none(tmp_path: Path) -> None:
    assert class_archive_options(JAVA, 17, SPARK, {"HOME": str(tmp_path)}) == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["", "here", "/proc", "/dev/null"])
def test_without_a_cache_directory_there_is_none(home: str) -> None:
    assert class_archive_options(JAVA, 21, SPARK, {"HOME": home}) == ()


def test_a_name_that_needs_quotes_is_not_used(tmp_path: Path) -> None:
    assert class_archive_options(JAVA, 21, SPARK, {"HOME": str(tmp_path / "my home")}) == ()


def test_a_directory_of_others_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path / "bkctl"
    directory.mkdir()
    directory.chmod(0o777)
    assert class_archive_options(JAVA, 21, SPARK, {"XDG_CACHE_HOME": str(tmp_path)}) == ()


def test_an_unfinished_file_is_deleted(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = Path(archives_of(class_archive_options(JAVA, 21, SPARK, environment))[0])
    path.write_bytes(bytes(5000))
    assert archives_of(class_archive_options(JAVA, 21, SPARK, environment)) == [str(path)]
    assert not path.exists()
