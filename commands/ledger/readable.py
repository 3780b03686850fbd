"""What is left of a ledger, for ``bkctl ledger read --keep-going``, and sentences about what is not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from bkctl.commands.errors import NotFoundError
from bkctl.runtime.client import LedgerReader
from bkctl.runtime.client.reader import Entry, NoGoodCopy
from bkctl.runtime.errors import (
    BookieError,
    DigestMismatchError,
    LedgerReadError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkctl.runtime.replication.judge.fragments import EntryRangeSet, format_ranges
from bkctl.storage.errors import BkctlError

_RANGES_SHOWN_MAX = 20


class ReadableEntries:
    """Entries ``first`` to ``last`` that a bookie returns, and why others are left."""

    def __init__(self, reader: LedgerReader, first: int, last: int) -> None:
        self._reader = reader
        self._span = first, last
        self._left: dict[tuple[type[BkctlError], str | None], tuple[EntryRangeSet, BkctlError]] = {}
        """By kind of error and bookie, with the first error of each."""

    async def entries(self) -> AsyncGenerator[Entry, None]:
        """The entries that are returned. If there is none, raises an error of those that are left, proven ones last.

        LedgerReadError, BookieError, DigestMismatchError, NotFoundError, LedgerNotFoundError.
        """
        found_any = False
        async with contextlib.aclosing(self._reader.readable_entries(*self._span)) as found:
            async for each in found:
                if isinstance(each, Entry):
                    found_any = True
                    yield each
                else:
                    self._note(each)
        errors = self.errors()
        if errors and not found_any:
            raise min(errors, key=lambda error: isinstance(error, NotFoundError))

    def _note(self, found: NoGoodCopy) -> None:
        error = found.error
        is_proof = isinstance(error, NoSuchEntryError | NoSuchLedgerError)
        kind = NoSuchEntryError if is_proof else type(error)
        bookie_id = error.bookie_id if isinstance(error, BookieError) and not is_proof else None
        self._left.setdefault((kind, bookie_id), (EntryRangeSet(), error))[0].add(found.entry_id)

    def errors(self) -> list[BkctlError]:
        """An error for each kind of entries that are left. Only an answer of all that should have one proves a loss."""
        errors: list[BkctlError] = []
        for (kind, _), (entries, error) in self._left.items():
            which = f"entry {format_ranges(entries.ranges(), _RANGES_SHOWN_MAX)}"
            ledger = f"ledger {self._reader.ledger_id}"
            if kind is NoSuchEntryError:
                errors.append(NotFoundError(f"{ledger}: no bookie that should have it has {which}"))
            elif isinstance(error, DigestMismatchError):
                reason = str(error).removeprefix(f"{ledger}: ")
                errors.append(DigestMismatchError(self._reader.ledger_id, f"{which} is damaged: {reason}"))
            else:
                told = LedgerReadError(self._reader.ledger_id, f"{which} cannot be read, and may exist: {error}")
                told.__cause__ = error
                errors.append(told)
        return errors
