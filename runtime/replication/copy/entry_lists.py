"""Whether bookies list all entries of a ledger that they should have. A list is read from the index, not the entries.

Java's DbLedgerStorage never answers a request for a list (wire section 5.9). So a bookie is asked for one list at a
time, and no more after one that it did not answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable

from bkctl.runtime.errors import SILENCE, BookieError, NoSuchLedgerError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ports import Bookies, Clock
from bkctl.runtime.protocol.entry_list import ENTRY_GROUP_BYTES, EntryList
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import REQUEST_COST_BYTES, RequestTimes
from bkctl.runtime.replication.judge.copies import ListedCopies
from bkctl.runtime.replication.judge.fragments import EntryRangeSet, is_stored, stored_count, stored_entries
from bkctl.storage.ids import INVALID_ENTRY_ID

_ENTRIES_AT_ONCE = 20_000
"""Entries that are compared before other tasks run: some milliseconds."""

ENTRIES_MAX = 100_000_000
"""Entries of one ledger that are compared: about a minute. Metadata may claim any number, for example 2**62."""


class EntryLists:
    """Lists of some bookies; use it for one piece of work, so that a bookie which is better later is asked again."""

    def __init__(
        self,
        bookies: Bookies,
        clock: Clock,
        pacer: SharedPacer | None = None,
        silent: Iterable[str] = (),
        times: RequestTimes | None = None,
    ) -> None:
        """``pacer``: what limits the bytes of requests and lists; None: no limit. ``silent``: bookies that are known to
        give no lists. ``times`` gets the time of each request."""
        self._bookies = bookies
        self._clock = clock
        self._pacer = pacer or SharedPacer(clock)
        self._silent = set(silent)
        self._times = times or RequestTimes(clock)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def silent(self) -> frozenset[str]:
        """Bookies that did not answer, and are not asked again."""
        return frozenset(self._silent)

    async def compared(
        self, bookie_id: str, ledger_id: int, metadata: LedgerMetadata, last_add_confirmed: int = INVALID_ENTRY_ID
    ) -> ListedCopies | None:
        """The list of the bookie; of a ledger that is not closed, up to ``last_add_confirmed``.

        None if it gives no list, or if the entries that it should store are more than ``ENTRIES_MAX``.
        """
        count = stored_count(metadata, bookie_id, last_add_confirmed)
        if count > ENTRIES_MAX:
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
        if not count - missing.count < len(listed) <= ENTRIES_MAX:
            return ListedCopies(missing.ranges())
        last_entry_id = metadata.last_entry_id if metadata.is_closed else last_add_confirmed
        elsewhere, after_end = EntryRangeSet(), EntryRangeSet()
        entry_ids = iter(listed)
        while some := list(itertools.islice(entry_ids, _ENTRIES_AT_ONCE)):
            for entry_id in some:
                if entry_id > last_entry_id:
                    after_end.add(entry_id)
                elif not is_stored(metadata, bookie_id, entry_id):
                    elsewhere.add(entry_id)
            await self._clock.sleep(0)
        # What a writer has added since belongs to no end yet.
        return ListedCopies(missing.ranges(), elsewhere.ranges(), after_end.ranges() if metadata.is_closed else ())

    async def _list(self, bookie_id: str, ledger_id: int) -> EntryList | None:
        async with self._turns[bookie_id]:
            if bookie_id in self._silent:
                return None
            await self._pacer.take_reads({bookie_id: REQUEST_COST_BYTES})
            try:
                listed = await self._times.of(bookie_id, self._bookies.list_entries(bookie_id, ledger_id))
            except SILENCE:
                self._silent.add(bookie_id)
                return None
            except NoSuchLedgerError:
                return EntryList()
            except BookieError:
                return None
            self._pacer.correct_reads({bookie_id: 0}, {bookie_id: len(listed.groups) * ENTRY_GROUP_BYTES})
            return listed
