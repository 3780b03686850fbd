"""Progress of an audit: ledgers read of how many. The bar itself adds the rate and the time left."""

from __future__ import annotations

from bkctl.commands.progress import Progress


class LedgerProgress:
    """``total``: about how many ledgers there are; None: unknown."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._progress = progress
        self._total = total

    def show(self, done: int) -> None:
        """Ledgers read so far."""
        of_total = "" if self._total is None else f" of about {max(self._total, done):,}"
        self._progress.update(done, self._total, count=f"{done:,}{of_total} ledgers")

    def show_parts(self, done: int, parts: int) -> None:
        """Parts read so far; they have about the same number of ledgers."""
        if self._total is None:
            self._progress.update(done, parts, count=f"{done} of {parts} parts, number of ledgers unknown")
        else:
            self.show(self._total * done // parts)
