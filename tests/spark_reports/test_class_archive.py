"""Java's archive of Spark's classes: who has one, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.spark_reports.class_archive import class_archive

FIRST_BYTES = (0xF00BABA8).to_bytes(4, "little")
JAVA, SPARK = "/usr/lib/jvm/java/bin/java", "/opt/spark"


def path_of(environment: dict[str, str], java_version: int = 21, spark: str = SPARK) -> Path:
    archive = class_archive(JAVA, java_version, spark, environment)
    assert archive is not None
    (option,) = (each for each in archive.options if each.startswith("-XX:SharedArchiveFile="))
    return Path(option.partition("=")[2])


def test_each_pair_of_java_and_spark_has_a_file_in_a_private_directory(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    path = path_of(environment)
    assert path.parent == tmp_path / ".cache" / "bkctl"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path_of(environment, 22) == path
    assert path_of(environment, spark="/opt/other") != path
    assert path_of({"HOME": "/", "XDG_CACHE_HOME": str(tmp_path / "x")}).parent == tmp_path / "x" / "bkctl"


def test_older_java_has_none(tmp_path: Path) -> None:
    assert class_archive(JAVA, 17, SPARK, {"HOME": str(tmp_path)}) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["", "here", "/proc", "/dev/null"])
def test_without_a_cache_directory_there_is_none(home: str) -> None:
    assert class_archive(JAVA, 21, SPARK, {"HOME": home}) is None


def test_a_name_that_needs_quotes_is_not_used(tmp_path: Path) -> None:
    assert class_archive(JAVA, 21, SPARK, {"HOME": str(tmp_path / "my home")}) is None


def test_a_directory_of_others_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path / "bkctl"
    directory.mkdir()
    directory.chmod(0o777)
    assert class_archive(JAVA, 21, SPARK, {"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_an_unfinished_file_is_deleted(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = path_of(environment)
    path.write_bytes(bytes(5000))
    assert path_of(environment) == path
    assert not path.exists()


@pytest.mark.parametrize(
    ("printed", "is_kept"),
    [
        ("", True),
        ("[0.078s][error][cds] Disabling optimized module handling\n", True),
        ("[0.028s][error][cds] Loading dynamic archive failed.\n", False),
        ("[0.1s][warning][cds,dynamic] Unable to use shared archive. The top archive failed to load: x.jsa\n", False),
        ("[0.001s][error][cds] Not a valid shared archive file (x.jsa)\n", False),
    ],
)
def test_an_archive_that_java_refuses_is_deleted(tmp_path: Path, printed: str, is_kept: bool) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = path_of(environment)
    path.write_bytes(FIRST_BYTES)
    archive = class_archive(JAVA, 21, SPARK, environment)
    assert archive is not None
    archive.delete_if_refused(printed)
    assert path.exists() == is_kept


def test_an_archive_that_another_jvm_has_replaced_is_kept(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = path_of(environment)
    path.write_bytes(FIRST_BYTES)
    archive = class_archive(JAVA, 21, SPARK, environment)
    assert archive is not None
    (tmp_path / "new").write_bytes(FIRST_BYTES)
    (tmp_path / "new").replace(path)
    archive.delete_if_refused("Loading dynamic archive failed.")
    assert path.exists()
