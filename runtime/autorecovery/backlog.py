"""How many ledgers of the cluster are marked now, whichever process marked them."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from runtime.autorecovery.lane import Lane, Turn
from runtime.metadata.replication.directories import ForeignNames
from runtime.metadata.replication.marks import list_marked_ids
from runtime.metadata.store import MetadataStore
from runtime.ports import Clock

INTERVAL_S: Final = 30.0


class Backlog:
    """Counts the marks again and again. It reads their directories, not the marks (``list_marked_ids``)."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock) -> None:
        self.ledgers: int | None = None
        """At the last count; None before the first one."""
        self._store = store
        self._root = root
        self._foreign = ForeignNames()
        self.lane = Lane("backlog", self._count, clock, interval_s=INTERVAL_S)

    async def _count(self, turn: Turn) -> str:
        count = 0
        async with aclosing(list_marked_ids(self._store, self._root, self._foreign)) as ids:
            async for _ in ids:
                count += 1
                turn.beat()
        self.ledgers = count
        return f"{count} ledgers are marked"
