"""What a ledger in progress waits for, for progress reports."""

from __future__ import annotations

COPY_RATE = "the copy rate"
"""What a batch waits for that may not be copied yet, because a limit of bytes a second is reached."""


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

    def waiting(self, for_what: str) -> _Wait:
        """Wait for something within a ``with`` block."""
        return _Wait(self._waits, for_what)


class _Wait:
    """Half the cost of a generator, for every request to a bookie or to ZooKeeper."""

    __slots__ = ("_for_what", "_waits")

    def __init__(self, waits: dict[object, str], for_what: str) -> None:
        self._waits = waits
        self._for_what = for_what

    def __enter__(self) -> None:
        self._waits[self] = self._for_what

    def __exit__(self, *_: object) -> None:
        del self._waits[self]
