"""Watches from outside, with Java's client, that no entry loses a copy while bookies are recovered or drained."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent

from tests.interop.java import JavaClient, JavaError

PASSWORD: Final = "correct horse"
WRITE_QUORUM_SIZE: Final = 2
ENTRY_BYTES: Final = 500
NOT_CONNECTED: Final = ("BKBookieHandleNotAvailableException", "BKSecurityException")
_LEDGER: Final = {"digest_type": "CRC32C", "password": PASSWORD, "entry_bytes": ENTRY_BYTES}


class ClosedLedgers:
    """Closed ledgers, and which bookies their metadata names."""

    def __init__(self, ids: Sequence[int], znodes: KazooClient, root: str) -> None:
        self.ids = [*ids]
        self._znodes = znodes
        self._paths = {ledger_id: _path(root, ledger_id) for ledger_id in ids}

    def referencing(self, bookie_id: str) -> list[int]:
        """Ledgers whose metadata has the bookie in any segment."""
        return [each for each, path in self._paths.items() if bookie_id.encode() in self._znodes.get(path)[0]]


class WrittenLedgers(ClosedLedgers):
    """Closed ledgers that Java's client wrote: ensemble 3, write quorum 2, ack quorum 2."""

    def __init__(
        self, client: JavaClient, znodes: KazooClient, root: str, *, count: int, entries: int, attempts: int = 1
    ) -> None:
        """``attempts``: how often the client may try to write them, or to read all copies, if it could not connect."""
        self._client = client
        self._attempts = attempts
        sizes = {"ensemble_size": 3, "write_quorum_size": WRITE_QUORUM_SIZE, "ack_quorum_size": 2}
        for attempt in range(attempts):
            try:
                answer = client.call_and_wait("fill", count=count, entries=entries, **_LEDGER, **sizes)
            except JavaError:
                if attempt == attempts - 1:
                    raise
            else:
                break
        super().__init__(answer["ledger_ids"], znodes, root)

    def good_copies(self, ledger_ids: Sequence[int] | None = None) -> dict[int, list[int]]:
        """How many bookies of the write set of each entry have it, by ledger, each asked alone."""
        return {int(key): counts for key, counts in self._read(ledger_ids or self.ids)["good"].items()}

    def require_all_copies(self) -> None:
        """Every member of every write set has the entry that Java wrote."""
        for _ in range(self._attempts):
            answer = self._read(self.ids)
            if not any(name in bad for bad in answer["bad"] for name in NOT_CONNECTED):
                break
        assert not answer["bad"], answer["bad"][:3]
        counts = {count for counts in answer["good"].values() for count in counts}
        assert counts == {WRITE_QUORUM_SIZE}, counts

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While the block runs, no entry may have fewer good copies than at its start.

        A ledger is read whenever its metadata changes, and in turn with the others.
        """
        at_start = self.good_copies()
        changed: queue.SimpleQueue[int] = queue.SimpleQueue()
        is_over = threading.Event()
        losses: list[str] = []
        seen: set[int] = set()

        def watch(ledger_id: int) -> None:
            def notice(_: WatchedEvent) -> None:
                if not is_over.is_set():
                    watch(ledger_id)
                    seen.add(ledger_id)
                    changed.put(ledger_id)

            self._znodes.get_async(self._paths[ledger_id], watch=notice)

        def compare(ledger_ids: Sequence[int]) -> None:
            for ledger_id, now in self.good_copies(ledger_ids).items():
                losses.extend(
                    f"ledger {ledger_id} entry {entry_id}: {count} good copies, {before} at the start"
                    for entry_id, (before, count) in enumerate(zip(at_start[ledger_id], now, strict=True))
                    if count < before
                )

        def read_on() -> None:
            turn = 0
            while not is_over.is_set():
                try:
                    ledger_id = changed.get_nowait()
                except queue.Empty:
                    ledger_id = self.ids[turn % len(self.ids)]
                    turn += 1
                compare([ledger_id])
            compare(self.ids)

        for ledger_id in self.ids:
            watch(ledger_id)
        reader = threading.Thread(target=read_on)
        reader.start()
        try:
            yield
        finally:
            is_over.set()
            reader.join()
        assert not losses, f"{len(losses)} losses, the first: {losses[0]}"
        assert seen, "no ledger was changed while it was watched"

    def _read(self, ledger_ids: Sequence[int]) -> dict[str, Any]:
        return self._client.call_and_wait("read_each_copy", ledger_ids=list(ledger_ids), **_LEDGER)


def _path(root: str, ledger_id: int) -> str:
    digits = f"{ledger_id:010d}"
    return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
