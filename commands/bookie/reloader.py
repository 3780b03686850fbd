"""SIGHUP of a bookie: its log file is opened again, and its settings are read again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from bkctl.commands.bookie.java_notes import ignored_key_notes, ignored_keys_summary, java_warnings
from bkctl.commands.context import BookieSettings, JavaComparison
from bkctl.commands.server_log import ServerLog
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.ports import ServiceManager
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)


class Reloader:
    """Effect of SIGHUP: the log file is opened again, and changed settings are applied."""

    def __init__(
        self,
        settings: BookieSettings,
        load: Callable[[], BookieSettings],
        log: ServerLog,
        manager: ServiceManager,
    ) -> None:
        """``settings``: those of the start. ``manager`` is notified when a reload begins and ends."""
        self._settings = settings
        self._manager = manager
        self._load = load
        self._log = log
        self._apply_settings: Callable[[BookieConfig | None], None] | None = None
        self._is_due = False

    def note_serving(self, apply_settings: Callable[[BookieConfig | None], None]) -> None:
        """The bookie can apply settings from now on. ``apply_settings`` gets None if they cannot be read."""
        self._apply_settings = apply_settings
        log_comparison(self._settings.comparison)
        if self._is_due:
            self._reload_settings(apply_settings)

    def reload(self) -> None:
        """Open the log file again and read the settings again. If either cannot be read, nothing changes."""
        self._log.reopen()
        if self._apply_settings is None:
            self._is_due = True
            logger.info("settings will be reloaded when the bookie has started")
            return
        self._manager.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        self._reload_settings(self._apply_settings)
        self._manager.notify(READY=1)

    def _reload_settings(self, apply_settings: Callable[[BookieConfig | None], None]) -> None:
        try:
            settings = self._load()
        except BkctlError as error:
            logger.error("settings were not reloaded: %s", error)
            apply_settings(None)
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
        apply_settings(settings.config)


def log_comparison(comparison: JavaComparison) -> None:
    """Log what a Java bookie does otherwise: as warnings what may break, in one short line keys without effect."""
    for warning in java_warnings(comparison):
        logger.warning("%s", warning)
    if summary := ignored_keys_summary(comparison):
        logger.info("%s", summary, extra={"attributes": {"ignored_keys": ignored_key_notes(comparison)}})
