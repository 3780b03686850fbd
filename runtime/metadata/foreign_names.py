"""Names that no process of ours or Java's writes: survived, never touched, and told of once."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_TOLD_MAX = 100


class ForeignNames:
    """Tells of each path once, and after a hundred of them no more."""

    def __init__(self, report: Callable[[str], None] = logger.warning) -> None:
        self._report = report
        self._told: set[str] = set()

    def skip(self, path: str, what: str) -> None:
        """Tell that ``path`` is passed over because it is not ``what`` (with its article)."""
        if path in self._told or len(self._told) >= _TOLD_MAX:
            return
        self._told.add(path)
        ending = "; further ones are not told of" if len(self._told) == _TOLD_MAX else ""
        self._report(f"{path} is not {what}: it is passed over and left alone{ending}")
