"""Progress of an audit: ledgers read of how many, and how many a second. The bar itself adds the time left."""

from __future__ import annotations

import time

from bkctl.commands.progress import Progress


class LedgerProgress:
    """``total``: about how many ledgers there are; None: unknown."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        self._progress = progress
        self._total = total
        self._first: tuple[int, float] | None = None
        """Ledgers read, and when, at the first report: what came before is the start of Spark."""

    def show(self, done: int) -> None:
        """Ledgers read so far."""
        now_s = time.monotonic()
        self._first = self._first or (done, now_s)
        first_done, first_s = self._first
        rate = "" if done == first_done else f", {(done - first_done) / max(now_s - first_s, 1e-3):,.0f}/s"
        of_total = "" if self._total is None else f" of about {max(self._total, done):,}"
        self._progress.update(done, self._total, count=f"{done:,}{of_total} ledgers{rate}")

    def show_parts(self, done: int, parts: int) -> None:
        """Parts read so far; they have about the same number of ledgers."""
        if self._total is None:
            self._progress.update(done, parts, count=f"{done} of {parts} parts, number of ledgers unknown")
        else:
            self.show(self._total * done // parts)
