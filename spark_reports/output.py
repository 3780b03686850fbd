"""The folder that ``--out`` names."""

from __future__ import annotations

import os

from runtime.errors import RefusedError

WRITE_SETS = "write_sets"
"""Folder of one row per write set: ``spark_reports.rows.REPLICATION_SCHEMA``."""


def prepare_directory(directory: str) -> None:
    """Make the folder; RefusedError when it has anything in it: a report never overwrites another one."""
    try:
        os.makedirs(directory, exist_ok=True)
        is_used = bool(os.listdir(directory))
    except OSError as error:
        raise RefusedError(f"{directory} cannot take the report: {error.strerror}") from error
    if is_used:
        raise RefusedError(f"{directory} is not empty: name a new folder for the report")
