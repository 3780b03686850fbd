"""The folder that ``--out`` names."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.errors import RefusedError

WRITE_SETS = "write_sets"
"""Folder of one row per write set: ``spark_reports.rows.REPLICATION_SCHEMA``."""

DATASETS = (WRITE_SETS, "bookies", "under_replicated", "unreadable", "summary")
"""All that a report consists of: folders of Parquet files."""


@contextmanager
def new_report(directory: str | None) -> Iterator[None]:
    """The folder for one report, if one is wanted; when the report fails nothing of it stays.

    RefusedError when it has anything in it: a report never overwrites another one.
    """
    if directory is None:
        yield
        return
    made = _missing_directories(directory)
    _prepare(directory)
    try:
        yield
    except BaseException:
        for name in DATASETS:
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody may have put something in
            for path in made:
                os.rmdir(path)
        raise


def _missing_directories(directory: str) -> list[str]:
    """The folder and those above it that do not exist, the innermost first."""
    path, missing = os.path.abspath(directory), []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _prepare(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
        is_used = bool(os.listdir(directory))
    except OSError as error:
        raise RefusedError(f"{directory} cannot take the report: {error.strerror}") from error
    if is_used:
        raise RefusedError(f"{directory} is not empty: name a new folder for the report")
