"""Errors of the Spark layer."""

from __future__ import annotations

from bkctl.storage.errors import BkctlError


class SparkReportError(BkctlError):
    """Spark did not start, a task failed, or the report could not be written."""
