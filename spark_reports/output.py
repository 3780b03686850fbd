"""The folder that ``--out`` names."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.errors import RefusedError
from spark_reports.errors import SparkReportError

WRITE_SETS = "write_sets"
"""Folder of one row per write set: ``spark_reports.rows.REPLICATION_SCHEMA``."""

DATASETS = (WRITE_SETS, "bookies", "under_replicated", "unreadable", "summary")
"""All that a report consists of: folders of Parquet files."""


@contextmanager
def new_report(directory: str | None) -> Iterator[None]:
    """The folder for one report, if one is wanted; when the report fails nothing of it stays.

    SparkReportError when the disk does not take it; RefusedError when the folder has anything in it, or when another
    report is being written there: a report never overwrites another one, and one that fails never takes another one's
    files away.
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
            with contextlib.suppress(OSError):  # somebody may have put something in
                for path in made:
                    os.rmdir(path)
            if isinstance(error, OSError) and error.errno:
                raise SparkReportError(f"{directory}: cannot write the report: {os.strerror(error.errno)}") from error
            raise


def _missing_directories(directory: str) -> list[str]:
    """The folder and those above it that do not exist, the innermost first."""
    path, missing = os.path.abspath(directory), []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


@contextmanager
def _prepared(directory: str) -> Iterator[None]:
    """The folder, made if need be, found empty, and locked against other reports until the end."""
    try:
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RefusedError(f"cannot write the report to {directory}: {error.strerror}") from error
    try:
        _lock(directory, descriptor)
        if os.listdir(descriptor):
            raise RefusedError(f"{directory} is not empty: choose a new directory for the report")
        yield
    finally:
        os.close(descriptor)


def _lock(directory: str, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RefusedError(f"another report is being written to {directory}: choose a different directory") from error
    except OSError:
        pass  # a file system without locks: what is found in the folder must do
