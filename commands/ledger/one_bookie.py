"""Copies of a ledger on one bookie, for ``bkctl ledger read --from-bookie``, and sentences about what is left."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from bkctl.commands.errors import NotFoundError
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.bookie_copies import BookieCopies
from bkctl.runtime.client.reader import ENTRIES_WITHOUT_END_MAX, Entry, NoGoodCopy
from bkctl.runtime.errors import (
    BookieError,
    BookieIOError,
    EntryDigestError,
    LedgerNotFoundError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnknownLedgerStateError,
)
from bkctl.runtime.replication.close.accepted_loss import READ_AHEAD_ENTRIES
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, format_ranges
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import ENTRY_ID_MAX


async def open_copies(client: LedgerClient, ledger_id: int, bookie_id: str, password: bytes | None) -> BookieCopies:
    """The copies of this bookie; the default password is the one in the metadata. LedgerNotFoundError."""
    try:
        if password is None:
            password = (await client.ports.ledgers.read(ledger_id)).value.password or b""
        return await client.open_copies(ledger_id, bookie_id, password=password)
    except LedgerNotFoundError:
        sentence = (
            "its metadata does not exist, so the digests of its copies cannot be checked: bring the metadata back "
            "with bkctl ledger import, then repeat"
        )
        raise LedgerNotFoundError(ledger_id, sentence) from None


class FoundCopies:
    """Entries ``first`` to ``last`` on one bookie; ``last`` None: up to the last entry that it says it has."""

    def __init__(self, copies: BookieCopies, first: int, last: int | None) -> None:
        self._copies = copies
        self._first = first
        self._last = last
        self._left: dict[type[BkctlError], tuple[EntryRangeSet, BkctlError]] = {}
        """Entries without a good copy by kind of error, with the first error of each."""

    @property
    def is_partial(self) -> bool:
        """Whether something is left. Without LAST, what the bookie does not have was not asked for: other bookies may
        store these entries alone."""
        return bool(self._left.keys() - (set() if self._last is not None else {NoSuchEntryError}))

    def left(self) -> list[str]:
        """A sentence for each kind of entries that are left."""
        return [str(self._error_of(kind)) for kind in self._left]

    async def entries(self) -> AsyncGenerator[Entry, None]:
        """The good copies. If there is none, raises the error of those that are left, damage before absence.

        NotFoundError, BookieError, EntryDigestError.
        """
        found_any = False
        async with contextlib.aclosing(self._read()) as copies:
            async for each in copies:
                if isinstance(each, Entry):
                    found_any = True
                    yield each
                else:
                    self._note(EntryRange(each.entry_id, each.entry_id), each.error)
        if self._left and not found_any:
            raise self._error_of(min(self._left, key=lambda kind: kind is NoSuchEntryError))

    async def _read(self) -> AsyncGenerator[Entry | NoGoodCopy, None]:
        copies = self._copies
        try:
            last, may_have_more = await self._end()
            async with contextlib.aclosing(copies.entries(self._first, last)) as found:
                async for each in found:
                    yield each
            if may_have_more:
                async with contextlib.aclosing(self._after(last)) as found:
                    async for each in found:
                        yield each
        except NoSuchLedgerError as error:
            raise NoSuchLedgerError(copies.bookie_id, f"it does not have ledger {copies.ledger_id}") from error

    async def _after(self, end: int) -> AsyncGenerator[Entry | NoGoodCopy, None]:
        """What the bookie has after the entry that it names as its last one, until many in a row do not exist, or, if
        no end was given, cannot be read."""
        first, last = max(end + 1, self._first), ENTRY_ID_MAX if self._last is None else self._last
        known, absent = first - 1, None
        good = known
        async with contextlib.aclosing(self._copies.entries(first, last)) as found:
            async for each in found:
                if isinstance(each, Entry) or not isinstance(each.error, NoSuchEntryError):
                    if absent is not None:
                        self._note(EntryRange(absent.entry_id, each.entry_id - 1), absent.error)
                    known, absent = each.entry_id, None
                    good = known if isinstance(each, Entry) else good
                    yield each
                    if self._last is None and known - good >= READ_AHEAD_ENTRIES:
                        break
                    continue
                absent = absent or each
                if each.entry_id - known >= READ_AHEAD_ENTRIES:
                    break
        if absent is not None and self._last is not None:
            self._note(EntryRange(absent.entry_id, last), absent.error)
        elif known < self._first:
            raise self._has_none(end)

    def _has_none(self, end: int) -> NotFoundError:
        where = f"no entry from {self._first} on: its last one is {end}" if end >= 0 else "no last entry"
        remedy = "" if end >= 0 else "; specify FIRST-LAST to ask for these entries"
        return NotFoundError(
            f"bookie {self._copies.bookie_id}: of ledger {self._copies.ledger_id}, it has {where}{remedy}"
        )

    async def _end(self) -> tuple[int, bool]:
        """The last entry to ask for, and whether the bookie may have more that are wanted. The bookie's own end bounds
        a range that is too long to ask for each entry."""
        first, last, copies = self._first, self._last, self._copies
        if last is not None and last - first < ENTRIES_WITHOUT_END_MAX:
            return last, False
        try:
            end, may_have_more = await copies.last_entry_id()
        except (BookieIOError, UnknownLedgerStateError, EntryDigestError) as error:
            reason = str(error).removeprefix(f"bookie {copies.bookie_id}: ")
            raise BookieIOError(
                copies.bookie_id,
                f"its last entry of ledger {copies.ledger_id} cannot be read ({reason}): specify FIRST-LAST with at "
                f"most {ENTRIES_WITHOUT_END_MAX} entries",
            ) from error
        if may_have_more:
            return end if last is None else min(last, end), last is None or last > end
        if first > end:
            raise self._has_none(end)
        if last is not None and last > end:
            self._note(EntryRange(end + 1, last), NoSuchEntryError(copies.bookie_id, f"its last entry is {end}"))
        return end if last is None else min(last, end), False

    def _note(self, entries: EntryRange, error: BkctlError) -> None:
        left, _ = self._left.setdefault(type(error), (EntryRangeSet(), error))
        left.add_range(entries)

    def _error_of(self, kind: type[BkctlError]) -> BkctlError:
        entries, first_error = self._left[kind]
        bookie_id = self._copies.bookie_id
        which = f"entry {format_ranges(entries.ranges())} of ledger {self._copies.ledger_id}"
        if kind is NoSuchEntryError:
            return NotFoundError(f"bookie {bookie_id}: it does not have {which}")
        if not isinstance(first_error, BookieError):
            return EntryDigestError(f"bookie {bookie_id}: its copy of {which} is damaged: {first_error}")
        if isinstance(first_error, UnknownLedgerStateError):
            sentence = f"it may have lost entries of the ledger, so it does not say whether it has {which}"
        else:
            sentence = f"it cannot read {which} from its disk (input/output error)"
        return type(first_error)(bookie_id, sentence)
