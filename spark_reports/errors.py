"""Errors of the Spark layer, and what a failed job says about its reason, which is somewhere in a long text. Pure."""

from __future__ import annotations

import re

from bkctl.runtime.errors import MetadataAuthError, MetadataFormatError, MetadataOutageError
from bkctl.storage.errors import BkctlError


class SparkReportError(BkctlError):
    """Spark did not start, a task failed, or the report could not be written."""


_RAISED = re.compile(r"(?:[A-Za-z_]+\.)*([A-Za-z_]*Error): (?:\[Errno \d+\] )?")
_KINDS: dict[str, type[BkctlError]] = {
    "MetadataUnavailableError": MetadataOutageError,
    "MetadataOutageError": MetadataOutageError,
    "MetadataAuthError": MetadataAuthError,
    "MetadataFormatError": MetadataFormatError,
}
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_CRASH = "Python worker exited unexpectedly"
_CAUSED = re.compile(r"(?:Caused by)?: [A-Za-z0-9_.$]+: ")


def failure_of(text: str, purpose: str) -> BkctlError:
    """The error of a failed job, of the kind that the same failure has without Spark: it decides the exit code."""
    raised = [found[1] for line in text.splitlines() if (found := _RAISED.match(line.strip()))]
    kind = _KINDS.get(raised[-1] if raised else "", SparkReportError)
    return kind(f"the Spark job failed: {reason_of(text)}{purpose}")


def reason_of(text: str) -> str:
    """The sentence of the Python error inside the report of a failed task, else of the innermost Java error, else the
    first line."""
    if found := _NO_MODULE.search(text):
        return (
            f"the Python of the executors has no library {found[1]}: install there what bkctl depends on, or set "
            "PYSPARK_PYTHON to a Python that has it"
        )
    if _CRASH in text:
        return "a Python process of an executor ended in the middle: it may have been killed, or had too little memory"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    if raised:
        return _RAISED.sub("", raised[-1])
    caused = [line for line in lines if _CAUSED.match(line)]
    return _CAUSED.sub("", caused[-1]) if caused else next(iter(lines), "no reason given")
