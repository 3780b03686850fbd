"""Live bookies outside of the ensemble of a segment: earlier members may still have its entries.

Each is asked once for its last entry of the ledger. Only "no such entry" and "no such ledger" mean that it has none;
one that does not answer may have any.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from bkctl.runtime.client.ports import LedgerCredentials
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.replication.copy.limits import for_each_bounded
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, in_and_out_of, merge_ranges
from bkctl.storage.ids import INVALID_ENTRY_ID

_READS_MAX = 32


@dataclasses.dataclass(eq=False)
class OutsideBookies:
    """What these bookies have of one ledger. ``read``: the copy of an entry on one of them, of its last one for -1."""

    copies: CopyReader
    ledger_id: int
    bookie_ids: Sequence[str]
    read: Callable[[str, int], Awaitable[Copy]]

    def __post_init__(self) -> None:
        self._last: dict[str, Copy] | None = None
        self._asking = asyncio.Lock()

    @classmethod
    def of(cls, copies: CopyReader, credentials: LedgerCredentials, bookie_ids: Collection[str]) -> OutsideBookies:
        """Read with this reader."""

        def read(bookie_id: str, entry_id: int) -> Awaitable[Copy]:
            return copies.read(bookie_id, credentials, entry_id)

        return cls(copies, credentials.ledger_id, sorted(bookie_ids), read)

    async def last_copies(self) -> dict[str, Copy]:
        """The last entry of the ledger on each of them."""
        async with self._asking:
            if self._last is None:
                last = await asyncio.gather(*(self.read(each, INVALID_ENTRY_ID) for each in self.bookie_ids))
                self._last = dict(zip(self.bookie_ids, last, strict=True))
            return self._last

    async def holders(self) -> list[str]:
        """Those that answered and do not deny the whole ledger."""
        await self.last_copies()
        return self.known_holders

    @property
    def known_holders(self) -> list[str]:
        """The same; none if no entry was needed from them yet."""
        unusable = {CopyState.MISSING, CopyState.UNREACHABLE}
        return [bookie_id for bookie_id, copy in (self._last or {}).items() if copy.state not in unusable]

    async def why_silent(self) -> str | None:
        """The first one that did not answer, so that it may have entries, in a sentence."""
        last = await self.last_copies()
        silent = (each for each in last.items() if each[1].state is CopyState.UNREACHABLE)
        return next((f"{outside(each)} may have entries: {copy.reason}" for each, copy in silent), None)

    async def find(self, entry_id: int) -> Copy | None:
        """A good copy of an entry, None if no holder has one."""
        for bookie_id in await self.holders():
            copy = await self.read(bookie_id, entry_id)
            if copy.state is CopyState.PRESENT:
                return copy
        return None

    async def list_of(self, bookie_id: str) -> EntryList | None:
        """The entries that the bookie lists, None if it gives no list."""
        return await self.copies.list_of(bookie_id, self.ledger_id)

    async def found(self, ranges: Sequence[EntryRange], entries_max: int) -> tuple[EntryRange, ...]:
        """The entries of the ascending ranges of which a holder has a good copy.

        Of one that gives no list, only the first ``entries_max`` are read: the metadata may claim any number.
        """
        found: tuple[EntryRange, ...] = ()
        for bookie_id in await self.holders():
            rest, good = in_and_out_of(ranges, found)[1], list[int]()
            check = partial(self._note_good, bookie_id, good)
            await for_each_bounded(each_of(await self._candidates(bookie_id, rest, entries_max)), check, _READS_MAX)
            found = merge_ranges((*found, *(EntryRange(each, each) for each in good)))
        return found

    async def _candidates(self, bookie_id: str, ranges: Sequence[EntryRange], entries_max: int) -> Iterator[int]:
        listed = await self.list_of(bookie_id)
        if listed is not None:
            return chain.from_iterable(listed_in(listed, each) for each in ranges)
        every = chain.from_iterable(range(each.first_entry_id, each.last_entry_id + 1) for each in ranges)
        return islice(every, entries_max)

    async def _note_good(self, bookie_id: str, good: list[int], entry_id: int) -> None:
        if (await self.read(bookie_id, entry_id)).state is CopyState.PRESENT:
            good.append(entry_id)


def outside(bookie_id: str) -> str:
    """Such a bookie at the beginning of a sentence."""
    return f"bookie {bookie_id}, outside of the ensemble,"


def listed_in(listed: EntryList, entries: EntryRange) -> Iterator[int]:
    """The entries of a range that a list has."""
    entry_id = listed.first_from(entries.first_entry_id)
    while entry_id is not None and entry_id <= entries.last_entry_id:
        yield entry_id
        entry_id = listed.first_from(entry_id + 1)
