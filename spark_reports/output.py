"""The directory given with ``--out``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from bkctl.runtime.errors import RefusedError
from bkctl.runtime.replication.cluster_audit.tables import TABLES
from bkctl.spark_reports.errors import SparkReportError
from bkctl.storage.adapters.filesystem import OsFileSystem

WRITE_SETS = "write_sets"
"""Directory with one row per write set: ``bkctl.spark_reports.rows.REPLICATION_SCHEMA``."""

DATASETS = (WRITE_SETS, *TABLES)
"""A report has these directories of Parquet files."""

REPORT_JSON = "report.json"
REPORT_PAGE = "report.html"
BAD_COPIES_FILE = "bad_copies.jsonl"
"""What an inventory found, for ``bkctl recover ledger --from-file``; the command writes it."""


UNFINISHED_PREFIX = "_unfinished-"
"""Of files that are being written, or were when a process was killed. Spark does not read names that begin with "_"."""


def unfinished_path(path: str) -> str:
    """Where this process writes a file of a report until it is whole."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f"{UNFINISHED_PREFIX}{name}.{os.uname().nodename}-{os.getpid()}")


def finish_write_sets(directory: str, part_count: int) -> None:
    """Delete what tasks left that were repeated; SparkReportError unless every part is there."""
    parts_directory = os.path.join(directory, WRITE_SETS)
    names = os.listdir(parts_directory) if os.path.isdir(parts_directory) else []
    for name in names:
        if name.startswith(UNFINISHED_PREFIX):
            os.remove(os.path.join(parts_directory, name))
    found = sum(name.endswith(".parquet") for name in names)
    if found != part_count:
        raise SparkReportError(
            f"{parts_directory} has {found} of {part_count} parts of the report: all machines of the cluster must "
            "share the directory of the report"
        )


@contextmanager
def new_report(directory: str | None) -> Iterator[None]:
    """Create the directory for a report, if one is requested; remove it again when the report fails.

    SparkReportError when the disk rejects it. RefusedError when the directory is not empty or another report is being
    written there, so that a report never overwrites or removes the files of another one. What a killed audit left of an
    unfinished report is removed: the next run of a nightly job may have the same directory.
    """
    if directory is None:
        yield
        return
    made = _missing_directories(directory)
    with _prepared(directory):
        try:
            yield
        except BaseException as error:
            for name in DATASETS:
                shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
            for name in (REPORT_JSON, REPORT_PAGE):
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(directory, name))
            with contextlib.suppress(OSError):  # another process may have written into it
                for path in made:
                    os.rmdir(path)
            if isinstance(error, OSError) and error.errno:
                raise SparkReportError(f"{directory}: cannot write the report: {os.strerror(error.errno)}") from error
            raise


def _missing_directories(directory: str) -> list[str]:
    """The directory and its missing parents, the innermost first."""
    path, missing = os.path.abspath(directory), []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


@contextmanager
def _prepared(directory: str) -> Iterator[None]:
    """Create the directory if it is missing, check that it is empty, and lock it against other reports."""
    try:
        OsFileSystem().make_directories(directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RefusedError(f"cannot write the report to {directory}: {error.strerror}") from error
    try:
        _lock(directory, descriptor)
        if _is_of_killed_audit(directory):
            shutil.rmtree(os.path.join(directory, WRITE_SETS))
        if os.listdir(descriptor):
            raise RefusedError(f"{directory} is not empty: choose a new directory for the report")
        yield
    finally:
        os.close(descriptor)


def _is_of_killed_audit(directory: str) -> bool:
    """Whether it has only what a killed audit leaves: an unfinished file, and perhaps parts that are whole."""
    if os.listdir(directory) != [WRITE_SETS] or not os.path.isdir(path := os.path.join(directory, WRITE_SETS)):
        return False
    names = os.listdir(path)
    is_known = all(name.startswith((UNFINISHED_PREFIX, "part-")) for name in names)
    return is_known and any(name.startswith(UNFINISHED_PREFIX) for name in names)


def _lock(directory: str, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RefusedError(f"another report is being written to {directory}: choose a different directory") from error
    except OSError:
        pass  # a file system without locks: the check for files must suffice
