"""Where log lines go while a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from commands.config import Settings

if TYPE_CHECKING:
    import logging

_FORM = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def configure_logging(settings: Settings, *, is_server: bool) -> Callable[[], None]:
    """Servers log to stderr; other commands are silent unless ``--debug``, for they say what matters themselves.

    Returns what puts everything back: a process that calls ``main`` itself has logging of its own, and may take away
    the stderr of this moment.
    """
    import logging

    root = logging.getLogger()
    levels: dict[logging.Logger, int] = {}
    if settings.is_debug or is_server:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORM))
        levels[root] = logging.DEBUG if settings.is_debug else logging.INFO
        levels[logging.getLogger("asyncio")] = logging.INFO
        if not settings.is_debug:
            levels[logging.getLogger("runtime.metadata.zookeeper.kazoo")] = logging.ERROR  # every try to connect
    else:
        handler = logging.NullHandler()  # without any handler Python would print warnings
    handlers_before, levels_before = list(root.handlers), {logger: logger.level for logger in levels}
    root.handlers[:] = [handler] if levels else [*handlers_before, handler]
    _set_levels(levels)

    def restore() -> None:
        root.handlers[:] = handlers_before
        _set_levels(levels_before)

    return restore


def _set_levels(levels: dict[logging.Logger, int]) -> None:
    for logger, level in levels.items():
        logger.setLevel(level)
