"""Where a walk over the entries of a ledger goes on if no bookie has the next ones, and who else may have them.

Metadata may claim any last entry, for example 2**62, and a walk that asks for each entry would never end. So after some
entries without a good copy, the bookies are asked which entry they have next, and all before it are counted together.
Only a list of entries, or the answer that there is no entry at all, says so: Java's answer for the last entry may name
a lower one than it has (protocol section 6.5). Bookies that give no list (Java's DbLedgerStorage) are asked for a
limited number of entries.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import msgspec

from bkctl.runtime.client.ports import LedgerCredentials
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.replication.copy.limits import for_each_bounded
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.judge.copies import Copy, CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, in_and_out_of, merge_ranges
from bkctl.storage.ids import ENTRY_ID_MAX, INVALID_ENTRY_ID

PROBE_AFTER = 64
"""Entries in a row without a good copy after which the bookies are asked where to go on."""
_NONE = ENTRY_ID_MAX + 1
BatchT = TypeVar("BatchT", bound=Sequence[int])
_READS_MAX = 32


class CopyGap(msgspec.Struct, frozen=True):
    """``entries`` that need not be read, and what each bookie's copies of them are.

    ``is_guessed``: no bookie answered about them, and reading was given up.
    """

    entries: EntryRange
    copies: Mapping[str, Copy]
    is_guessed: bool = False


class BarrenRun:
    """Counts entries in a row without a good copy."""

    def __init__(self, entries_max: int) -> None:
        """``entries_max``: after so many the rest of a segment is not read."""
        self.entries_max = entries_max
        self._entries = 0
        self._probe_at = PROBE_AFTER
        self.read_to = INVALID_ENTRY_ID
        """Where the last walk ended (``until_probe``)."""

    def until_probe(self, found: Iterable[BatchT], last_entry_id: int) -> Iterator[BatchT]:
        """Batches of entries until a probe is due; ``last_entry_id`` is where they end if none is."""
        for batch in found:
            yield batch
            if self.is_probe_due:
                self.read_to = batch[-1]
                return
        self.read_to = last_entry_id

    def note(self, entry_count: int, *, has_good_copy: bool) -> None:
        """Count a batch. Batches may come in any order."""
        if has_good_copy:
            self._entries, self._probe_at = 0, PROBE_AFTER
        else:
            self._entries += entry_count

    @property
    def is_probe_due(self) -> bool:
        """Whether to ask the bookies where to go on."""
        return self._entries >= self._probe_at

    @property
    def is_hopeless(self) -> bool:
        """Whether to stop reading."""
        return self._entries >= self.entries_max

    def note_probe(self, gap: EntryRange) -> None:
        """After a probe that found no gap, the next one is due after twice as many entries."""
        self._probe_at = PROBE_AFTER if gap.count else self._entries * 2


class CopyGaps:
    """Finds the gaps of one ledger; asks each bookie for its list at most once."""

    def __init__(self, copies: CopyReader, credentials: LedgerCredentials) -> None:
        self._copies = copies
        self._credentials = credentials
        self._lists: dict[str, EntryList | None] = {}

    async def at(
        self, entries: EntryRange, bookie_ids: Sequence[str], earlier_copies: Mapping[str, Copy], run: BarrenRun
    ) -> CopyGap:
        """The gap at the start of ``entries``, maybe empty. ``earlier_copies``: of earlier entries of this run."""
        found = await asyncio.gather(*(self._next(bookie_id, entries.first_entry_id) for bookie_id in bookie_ids))
        copies = {copy.bookie_id: copy for _, copy in found}
        for bookie_id, copy in earlier_copies.items():
            # A bookie that may have lost entries denies none of them, whatever its last one is.
            if copy.state is CopyState.FAILED and copies[bookie_id].state is CopyState.MISSING:
                copies[bookie_id] = copy
        next_entry_id = min((entry_id for entry_id, _ in found), default=_NONE)
        is_guessed = next_entry_id <= entries.first_entry_id and run.is_hopeless
        if is_guessed:
            next_entry_id = _NONE
            reason = f"not read: no bookie has a good copy of the {run.entries_max} entries before"
            copies = {each: Copy(each, CopyState.FAILED, reason) for each in bookie_ids}
        gap = EntryRange(entries.first_entry_id, min(next_entry_id - 1, entries.last_entry_id))
        run.note_probe(gap)
        return CopyGap(gap, copies, is_guessed)

    async def _next(self, bookie_id: str, entry_id: int) -> tuple[int, Copy]:
        """The next entry, from ``entry_id`` on, that a bookie may have, and the copies before it."""
        last = await self._copies.read(bookie_id, self._credentials, INVALID_ENTRY_ID)
        if last.state in {CopyState.MISSING, CopyState.UNREACHABLE}:
            return _NONE, last
        missing = Copy(bookie_id, CopyState.MISSING, "no such entry")
        if bookie_id not in self._lists:
            self._lists[bookie_id] = await self._copies.list_of(bookie_id, self._credentials.ledger_id)
        listed = self._lists[bookie_id]
        if listed is None:
            return entry_id, missing
        found = listed.first_from(entry_id)
        return _NONE if found is None else found, missing


@dataclasses.dataclass(eq=False)
class OutsideBookies:
    """What live bookies outside of the ensemble have of one ledger: earlier members may still have its entries.

    Each is asked once for its last entry of the ledger. Only "no such entry" and "no such ledger" mean that it has
    none; one that does not answer may have any. ``read``: the copy of an entry on one of them, of its last one for -1.
    """

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
