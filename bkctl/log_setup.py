"""Destination of log lines while a command runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from bkctl.commands.config import Settings
from bkctl.commands.rendering import clean

if TYPE_CHECKING:
    import logging

_FORM = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_ABOUT_BAD_NODES = (
    "bkctl.runtime.metadata.replication.directories",
    "bkctl.runtime.metadata.ledgers.listing",
    "bkctl.runtime.metadata.bookies.registration",
)
"""These warn about nodes in the cluster that are skipped."""
_SHOWN = (*_ABOUT_BAD_NODES, "bkctl.runtime.security.secrets")
"""Every command shows these warnings: also of passwords that other users can read."""


def configure_logging(settings: Settings, stream: TextIO, *, is_server: bool) -> Callable[[], None]:
    """Servers log. Other commands log only with ``--debug``, because they print what matters themselves.

    ``stream`` is stderr. Some warnings (``_SHOWN``) are always shown, each once. Returns a function
    that restores the previous logging, because a process that calls ``main`` may have its own and may close the current
    stderr.
    """
    import logging

    root = logging.getLogger()
    levels: dict[logging.Logger, int] = {}
    if settings.is_debug or is_server:
        handler: logging.Handler = logging.StreamHandler(stream)
        handler.setFormatter(_clean_formatter(_FORM))
        levels[root] = logging.DEBUG if settings.is_debug else logging.INFO
        levels[logging.getLogger("asyncio")] = logging.INFO
        levels[logging.getLogger("py4j")] = logging.WARNING  # logs every call between Python and Spark's JVM
        if not settings.is_debug:
            handler.addFilter(_without_traceback_of_exhaustion())
            levels[logging.getLogger("bkctl.runtime.metadata.zookeeper.store.kazoo")] = logging.ERROR  # every attempt
    else:
        handler = logging.NullHandler()  # without any handler Python would print warnings
    tellers = [] if levels else [logging.getLogger(name) for name in _SHOWN]
    warner = _warner(stream)
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


def _without_traceback_of_exhaustion() -> Callable[[logging.LogRecord], bool]:
    """A filter: no traceback if there is no memory or thread, which ends the server with a sentence."""
    from bkctl.runtime.net.exhaustion import is_exhaustion

    def shorten(record: logging.LogRecord) -> bool:
        if record.exc_info and is_exhaustion(record.exc_info[1]):
            record.exc_info = record.exc_text = None
        return True

    return shorten


def _warner(stream: TextIO) -> logging.Handler:
    """Writes each warning once, in the form of a command's own warnings."""
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
    """Messages quote names and values from the metadata, which may contain control sequences for a terminal."""
    import logging

    class CleanFormatter(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's spelling
            return clean(super().formatMessage(record), "\n")

    return CleanFormatter(form)


def _set_levels(levels: dict[logging.Logger, int]) -> None:
    for logger, level in levels.items():
        logger.setLevel(level)
