"""The log of a server: stderr, or a file that is reopened after rotation. SIGHUP also reloads settings."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable

import msgspec

from commands.bookie.java_notes import ignored_key_notes, ignored_keys_summary, java_warnings
from commands.bookie.json_log import JsonFormatter, log_what_python_prints
from commands.context import BookieSettings, JavaComparison, LogFormat, LogSettings
from runtime.config import BookieConfig
from runtime.errors import ConfigurationError
from runtime.log_level import change_log_level, log_level
from runtime.ports import ServiceManager
from storage.errors import BkctlError

logger = logging.getLogger(__name__)

_STDIN = 0


class ServerLog:
    """Log of this process. ``is_debug``: everything is logged, whatever level the settings have."""

    def __init__(self, settings: LogSettings, *, is_debug: bool) -> None:
        """ConfigurationError when the log file cannot be opened."""
        self._root = logging.getLogger()
        self._before = list(self._root.handlers), self._root.level
        self._is_debug = is_debug
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
        self._restore_python = log_what_python_prints() if is_json else None
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
        """Log why the bookie stopped, as the last line of a log file; on stderr the command prints it."""
        if self._file is not None:
            logger.error("bookie stopped by an error: %s", error)

    def close(self) -> None:
        """Restore the previous logging."""
        handlers, level = self._before
        self._root.handlers[:] = handlers
        self._root.setLevel(level)
        if self._restore_python is not None:
            self._restore_python()
        if self._file is not None:
            self._file.close()

    def _open(self, path: str) -> None:
        handler = logging.FileHandler(path, encoding="utf-8")
        handler.setFormatter(self._root.handlers[0].formatter)
        self._root.handlers[:] = [handler]
        self._file = handler


class Reloader:
    """Effect of SIGHUP: the log file is opened again, and changed settings are applied.

    A bookie in the foreground whose terminal was closed stops instead: its operator can no longer reach it.
    """

    def __init__(
        self,
        settings: BookieSettings,
        load: Callable[[], BookieSettings],
        log: ServerLog,
        stop: Callable[[], None],
        manager: ServiceManager,
    ) -> None:
        """``settings``: those of the start. ``manager`` is notified when a reload begins and ends."""
        self._settings = settings
        self._manager = manager
        self._load = load
        self._log = log
        self._stop = stop
        self._is_on_terminal = os.isatty(_STDIN)
        self._take_over: Callable[[BookieConfig | None], None] | None = None
        self._is_due = False

    def follow_signal(self) -> None:
        """From now on SIGHUP reloads, and no longer ends the process."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)

    def note_serving(self, take_over: Callable[[BookieConfig | None], None]) -> None:
        """The bookie can apply settings from now on. ``take_over`` gets None if they cannot be read."""
        self._take_over = take_over
        log_comparison(self._settings.comparison)
        if self._is_due:
            self._reload_settings(take_over)

    def reload(self) -> None:
        """Open the log file again and read the settings again. If either cannot be read, nothing changes."""
        if self._is_on_terminal and not os.isatty(_STDIN):
            logger.info("the terminal was closed: stopping the bookie")
            self._stop()
            return
        self._log.reopen()
        if self._take_over is None:
            self._is_due = True
            logger.info("settings will be reloaded when the bookie has started")
            return
        self._manager.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        self._reload_settings(self._take_over)
        self._manager.notify(READY=1)

    def _reload_settings(self, take_over: Callable[[BookieConfig | None], None]) -> None:
        try:
            settings = self._load()
        except BkctlError as error:
            logger.error("settings were not reloaded: %s", error)
            take_over(None)
            return
        before, self._settings = self._settings, settings
        for warning in settings.warnings:
            if warning not in before.warnings:
                logger.warning("%s", warning)
        # The admin port does not change before a restart.
        comparison = msgspec.structs.replace(settings.comparison, admin=before.comparison.admin)
        if comparison != before.comparison:
            log_comparison(msgspec.structs.replace(comparison, admin=()))
        self._log.reload(settings.log)
        take_over(settings.config)


def log_comparison(comparison: JavaComparison) -> None:
    """Log what a Java bookie does otherwise: as warnings what may break, in one short line keys without effect."""
    for warning in java_warnings(comparison):
        logger.warning("%s", warning)
    if summary := ignored_keys_summary(comparison):
        logger.info("%s", summary, extra={"attributes": {"ignored_keys": ignored_key_notes(comparison)}})
