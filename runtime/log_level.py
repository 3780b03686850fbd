"""The log level of this process, which the settings, SIGHUP and the admin interface can change."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


_followers: list[Callable[[], None]] = []
"""As global as the level itself."""


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
        for follower in _followers:
            follower()


@contextlib.contextmanager
def following_log_level(on_change: Callable[[], None]) -> Iterator[None]:
    """Call ``on_change`` after each change in this block."""
    _followers.append(on_change)
    try:
        yield
    finally:
        _followers.remove(on_change)
