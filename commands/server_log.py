"""The log of a server: stderr, or a file that is reopened after rotation."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from bkctl.commands.context import LogFormat, LogSettings
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.log_level import change_log_level, log_level

logger = logging.getLogger(__name__)

_SEVERITIES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
"""Levels whose names differ in Java."""


class ServerLog:
    """Log of this process. ``is_debug``: everything is logged, whatever level the settings have.

    ``server``: what it is the log of.
    """

    def __init__(self, settings: LogSettings, *, is_debug: bool, server: str = "bookie") -> None:
        """ConfigurationError when the log file cannot be opened."""
        self._root = logging.getLogger()
        self._before = list(self._root.handlers), self._root.level
        self._is_debug = is_debug
        self._server = server
        self._format = settings.log_format
        self._level = settings.log_level
        self._path = None if settings.log_file is None else os.path.abspath(settings.log_file)
        self._file: logging.FileHandler | None = None
        if settings.log_format is LogFormat.JSON:
            self._root.handlers[0].setFormatter(JsonFormatter())
        if self._path is not None:
            try:
                self._open(self._path)
            except OSError as error:
                raise ConfigurationError(
                    f"cannot open the log file {self._path} ({error.strerror}): choose another one with --log-file"
                ) from error
        is_json = settings.log_format is LogFormat.JSON
        self._restore_python = _log_what_python_prints() if is_json else None
        if not is_debug:
            self._root.setLevel(settings.log_level.upper())

    def reopen(self) -> None:
        """Switch to a new file if the old one was renamed; keep the old one if that fails."""
        if self._path is None:
            return
        old = self._file
        try:
            self._open(self._path)
        except OSError as error:
            logger.error("cannot reopen the log file %s: %s", self._path, error.strerror)
            return
        if old is not None:
            old.close()
        logger.info("log file reopened")

    def reload(self, settings: LogSettings) -> None:
        """Apply a new level. A level that was set at run time stays if the setting is the same as before."""
        level_before, self._level = self._level, settings.log_level
        path = None if settings.log_file is None else os.path.abspath(settings.log_file)
        if path != self._path:
            logger.warning("a changed setting needs a restart: the log file")
        if settings.log_format is not self._format:
            logger.warning("a changed setting needs a restart: the log format")
        if self._is_debug:
            return
        if settings.log_level is not level_before:
            change_log_level(settings.log_level, "setting changed")
        elif (level := log_level()) is not settings.log_level:
            logger.info("log level %s, set at run time, stays; the setting is %s", level, settings.log_level)

    def note_failure(self, error: BaseException) -> None:
        """Log why the server stopped, as the last line of a log file; on stderr the command prints it."""
        if self._file is not None:
            logger.error("%s stopped by an error: %s", self._server, error)

    def close(self) -> None:
        """Restore the previous logging."""
        handlers, level = self._before
        self._root.handlers[:] = handlers
        self._root.setLevel(level)
        if self._restore_python is not None:
            self._restore_python()
        if self._file is not None:
            with contextlib.suppress(OSError):  # lines that a full disk did not take: what ended the server counts
                self._file.close()

    def _open(self, path: str) -> None:
        handler = logging.FileHandler(path, encoding="utf-8")
        handler.setFormatter(self._root.handlers[0].formatter)
        handler.filters = self._root.handlers[0].filters
        self._root.handlers[:] = [handler]
        self._file = handler


class JsonFormatter(logging.Formatter):
    """Formats a record as one line: Timestamp, SeverityText, Body and Attributes, as Apache BookKeeper's JSON log.

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


def _log_what_python_prints() -> Callable[[], None]:
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
