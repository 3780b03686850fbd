"""A log with one JSON object per line, with the field names of Apache BookKeeper's JSON log."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

logger = logging.getLogger(__name__)

_SEVERITIES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
"""Levels whose names differ in Java."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one line: Timestamp, SeverityText, Body and Attributes.

    ``extra={"attributes": {...}}`` of a log call adds values to Attributes. A traceback is there too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, in ASCII: other characters are escaped, so that no terminal executes control sequences."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        attributes: dict[str, object] = {"logger": record.name, "thread": record.threadName}
        attributes |= getattr(record, "attributes", {})
        if record.exc_info is not None and (error := record.exc_info[1]) is not None:
            attributes |= {
                "exception.type": type(error).__name__,
                "exception.message": str(error),
                "exception.stacktrace": "".join(traceback.format_exception(error)),
            }
        line = {
            "Timestamp": time.replace("+00:00", "Z"),
            "SeverityText": _SEVERITIES.get(record.levelname, record.levelname),
            "Body": record.getMessage(),
            "Attributes": attributes,
        }
        return json.dumps(line, separators=(",", ":"), default=str)


def log_what_python_prints() -> Callable[[], None]:
    """Log Python's warnings and the errors that no caller catches, which Python otherwise prints in several lines.

    Returns a function that restores the previous behavior.
    """
    before = threading.excepthook, sys.unraisablehook

    def log_thread_error(uncaught: threading.ExceptHookArgs) -> None:
        name = uncaught.thread.name if uncaught.thread is not None else "unknown"
        logger.error("thread %s ended with an error", name, exc_info=uncaught.exc_value)

    def log_ignored_error(ignored: Any) -> None:
        logger.error("%s: %r", ignored.err_msg or "error ignored in", ignored.object, exc_info=ignored.exc_value)

    threading.excepthook, sys.unraisablehook = log_thread_error, log_ignored_error
    logging.captureWarnings(True)

    def restore() -> None:
        threading.excepthook, sys.unraisablehook = before
        logging.captureWarnings(False)

    return restore
