"""Errors of the Spark floor.

BkctlError
├── MissingColumnsError   a transformation was given a frame of another shape
└── SparkReportError      Spark could not run, a task of it failed, or the report could not be written
"""

from __future__ import annotations

from collections.abc import Iterable

from storage.errors import BkctlError


class MissingColumnsError(BkctlError):
    """A frame lacks columns that a transformation needs."""

    def __init__(self, function: str, missing: Iterable[str], present: Iterable[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(f"{function} needs the columns {', '.join(self.missing)}; there are {', '.join(present)}")


class SparkReportError(BkctlError):
    """Spark could not be started, a task failed, or the folder of the report takes no more."""
