"""What a ledger in progress waits for, for progress reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class LedgerActivity:
    """One ledger in progress. Its batches wait for several things at once; the oldest wait is reported."""

    def __init__(self, ledger_id: int, since_ns: int, waits_for: str = "") -> None:
        self.ledger_id = ledger_id
        self.since_ns = since_ns
        """When the work on the ledger began, on the monotonic clock."""
        self._waits: dict[object, str] = {self: waits_for} if waits_for else {}

    @property
    def waits_for(self) -> str:
        """The oldest wait, for example "source b1:3181" or "ZooKeeper"; empty if there is none."""
        return next(iter(self._waits.values()), "")

    @contextlib.contextmanager
    def waiting(self, for_what: str) -> Iterator[None]:
        """Wait for something within this block."""
        wait = object()
        self._waits[wait] = for_what
        try:
            yield
        finally:
            del self._waits[wait]
