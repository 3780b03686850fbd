"""Whether bookies list all entries of a ledger that they should have. A list is read from the index, not the entries.

Java's DbLedgerStorage never answers a request for a list (wire section 5.9). So a bookie is asked for one list at a
time, and no more after one that it did not answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict

from bkctl.runtime.errors import SILENCE, BookieError, NoSuchLedgerError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ports import Bookies, Clock
from bkctl.runtime.protocol.entry_list import ENTRY_GROUP_BYTES, EntryList
from bkctl.runtime.replication.copy.rate import SharedPacer
from bkctl.runtime.replication.copy.reader import REQUEST_COST_BYTES
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, stored_count, stored_entries
from bkctl.storage.ids import INVALID_ENTRY_ID

_ENTRIES_AT_ONCE = 20_000
"""Entries that are compared before other tasks run: some milliseconds."""

ENTRIES_MAX = 100_000_000
"""Entries of one ledger that are compared: about a minute. Metadata may claim any number, for example 2**62."""


class EntryLists:
    """Lists of some bookies; use it for one piece of work, so that a bookie which is better later is asked again."""

    def __init__(self, bookies: Bookies, clock: Clock, pacer: SharedPacer | None = None) -> None:
        """``pacer``: what limits the bytes of requests and lists; None: no limit."""
        self._bookies = bookies
        self._clock = clock
        self._pacer = pacer or SharedPacer(clock)
        self._silent: set[str] = set()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def has_all(self, bookie_id: str, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Whether the bookie lists all entries that it should store of a closed ledger.

        False if it gives no list, or if these entries are more than ``ENTRIES_MAX``.
        """
        return await self.missing(bookie_id, ledger_id, metadata) == ()

    async def missing(
        self, bookie_id: str, ledger_id: int, metadata: LedgerMetadata, last_add_confirmed: int = INVALID_ENTRY_ID
    ) -> tuple[EntryRange, ...] | None:
        """The entries that the bookie should store and does not list; of a ledger that is not closed, those up to
        ``last_add_confirmed``.

        None if it gives no list, or if the entries that it should store are more than ``ENTRIES_MAX``.
        """
        if stored_count(metadata, bookie_id, last_add_confirmed) > ENTRIES_MAX:
            return None
        listed = await self._list(bookie_id, ledger_id)
        if listed is None:
            return None
        wanted = stored_entries(metadata, bookie_id, last_add_confirmed)
        missing = EntryRangeSet(ENTRIES_MAX)
        while some := list(itertools.islice(wanted, _ENTRIES_AT_ONCE)):
            for entry_id in some:
                if entry_id not in listed:
                    missing.add(entry_id)
            await self._clock.sleep(0)
        return missing.ranges()

    async def _list(self, bookie_id: str, ledger_id: int) -> EntryList | None:
        async with self._turns[bookie_id]:
            if bookie_id in self._silent:
                return None
            await self._pacer.take_reads({bookie_id: REQUEST_COST_BYTES})
            try:
                listed = await self._bookies.list_entries(bookie_id, ledger_id)
            except SILENCE:
                self._silent.add(bookie_id)
                return None
            except NoSuchLedgerError:
                return EntryList()
            except BookieError:
                return None
            self._pacer.correct_reads({bookie_id: 0}, {bookie_id: len(listed.groups) * ENTRY_GROUP_BYTES})
            return listed
