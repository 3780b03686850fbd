"""Where log lines go while a command runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from commands.config import Settings
from commands.rendering import clean

if TYPE_CHECKING:
    import logging

_FORM = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_ABOUT_BAD_NODES = (
    "runtime.metadata.foreign_names",
    "runtime.metadata.ledger_listing",
    "runtime.metadata.registration",
)
"""What these say is about nodes of the cluster that are passed over, and is told whatever command meets them."""


def configure_logging(settings: Settings, *, is_server: bool) -> Callable[[], None]:
    """Servers log to stderr; other commands are silent unless ``--debug``, for they say what matters themselves.

    But for bad nodes of the cluster that reading comes across: each is warned about once.
    Returns what puts everything back: a process that calls ``main`` itself has logging of its own, and may take away
    the stderr of this moment.
    """
    import logging

    root = logging.getLogger()
    levels: dict[logging.Logger, int] = {}
    if settings.is_debug or is_server:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_clean_formatter(_FORM))
        levels[root] = logging.DEBUG if settings.is_debug else logging.INFO
        levels[logging.getLogger("asyncio")] = logging.INFO
        levels[logging.getLogger("py4j")] = logging.WARNING  # logs every call between Python and Spark's JVM
        if not settings.is_debug:
            levels[logging.getLogger("runtime.metadata.zookeeper.kazoo")] = logging.ERROR  # every try to connect
    else:
        handler = logging.NullHandler()  # without any handler Python would print warnings
    tellers = [] if levels else [logging.getLogger(name) for name in _ABOUT_BAD_NODES]
    warner = _warner(sys.stderr)
    for teller in tellers:
        teller.addHandler(warner)
    handlers_before, levels_before = list(root.handlers), {logger: logger.level for logger in levels}
    root.handlers[:] = [handler] if levels else [*handlers_before, handler]
    _set_levels(levels)

    def restore() -> None:
        root.handlers[:] = handlers_before
        _set_levels(levels_before)
        for teller in tellers:
            teller.removeHandler(warner)

    return restore


def _warner(stream: TextIO) -> logging.Handler:
    """Writes each warning once, as a command tells its own."""
    import logging

    told: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_told = message in told
        told.add(message)
        return not is_told

    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_clean_formatter("warning: %(message)s"))
    handler.addFilter(is_new)
    return handler


def _clean_formatter(form: str) -> logging.Formatter:
    """Messages quote names and values that others wrote into the metadata; a terminal would obey what is in them."""
    import logging

    class CleanFormatter(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's spelling
            return clean(super().formatMessage(record), "\n")

    return CleanFormatter(form)


def _set_levels(levels: dict[logging.Logger, int]) -> None:
    for logger, level in levels.items():
        logger.setLevel(level)
