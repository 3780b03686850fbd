"""The log level of this process, which the settings, SIGHUP and the admin interface can change."""

from __future__ import annotations

import enum
import logging

logger = logging.getLogger(__name__)


class LogLevel(enum.StrEnum):
    """Minimum level that a server logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_level() -> LogLevel:
    """The level in use."""
    return LogLevel(logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower())


def change_log_level(level: LogLevel, cause: str) -> None:
    """Use another level from now on. A change is logged at any level; ``cause`` begins that line.

    The level stays until the next call or a restart. SIGHUP calls this only when the setting itself has changed.
    """
    was = log_level()
    if level is not was:
        root = logging.getLogger()
        root.setLevel(logging.INFO)
        logger.info("%s: log level = %s (was %s)", cause, level, was)
        root.setLevel(level.upper())
