"""How the stages of a rebuild or check are shown, and where they end when the command must."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commands.progress import Progress


class StageWatch:
    """Shows the stages on a progress bar; every step raises once the command must end."""

    def __init__(self, progress: Progress, require_wanted: Callable[[], None]) -> None:
        self._progress = progress
        self._require_wanted = require_wanted
        self._stage = ""
        self._total = self._done = 0

    def begin(self, stage: str, total: int) -> None:
        """A stage begins."""
        self._require_wanted()
        self._stage, self._total, self._done = stage, total, 0
        self._progress.update(0, total, stage)

    def advance(self, amount: int) -> None:
        """So much more of it is done."""
        self._require_wanted()
        self._done += amount
        self._progress.update(self._done, self._total, self._stage)
