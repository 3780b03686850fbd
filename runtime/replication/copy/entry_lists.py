"""Whether bookies list all entries of a ledger that they should have. A list is read from the index, not the entries.

Java's DbLedgerStorage never answers a request for a list (wire section 5.9). So a bookie is asked for one list at a
time, and no more after one that it did not answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict

from bkctl.runtime.errors import SILENCE, BookieError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ports import Bookies, Clock
from bkctl.runtime.replication.judge.fragments import stored_count, stored_entries

_ENTRIES_AT_ONCE = 20_000
"""Entries that are compared before other tasks run: some milliseconds."""

ENTRIES_MAX = 100_000_000
"""Entries of one ledger that are compared: about a minute. Metadata may claim any number, for example 2**62."""


class EntryLists:
    """Lists of some bookies; use it for one piece of work, so that a bookie which is better later is asked again."""

    def __init__(self, bookies: Bookies, clock: Clock) -> None:
        self._bookies = bookies
        self._clock = clock
        self._silent: set[str] = set()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def has_all(self, bookie_id: str, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Whether the bookie lists all entries that it should store of a closed ledger.

        False if it gives no list, or if these entries are more than ``ENTRIES_MAX``.
        """
        if stored_count(metadata, bookie_id) > ENTRIES_MAX:
            return False
        async with self._turns[bookie_id]:
            if bookie_id in self._silent:
                return False
            try:
                listed = await self._bookies.list_entries(bookie_id, ledger_id)
            except SILENCE:
                self._silent.add(bookie_id)
                return False
            except BookieError:
                return False
        wanted = stored_entries(metadata, bookie_id)
        while some := list(itertools.islice(wanted, _ENTRIES_AT_ONCE)):
            if not all(entry_id in listed for entry_id in some):
                return False
            await self._clock.sleep(0)
        return True
