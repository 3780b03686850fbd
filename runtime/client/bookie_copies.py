"""Reads the copies of a ledger on one bookie, whatever the metadata says about its ensembles and its end.

So an operator sees what exactly this bookie has: a copy that differs from others, or entries beyond the end of a closed
ledger on a bookie that has returned.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.client.read_ahead import ReadAhead
from bkctl.runtime.client.reader import Entry, NoGoodCopy
from bkctl.runtime.errors import (
    BookieError,
    BookieIOError,
    EntryDigestError,
    NoSuchEntryError,
    UnknownLedgerStateError,
)
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.storage.ids import INVALID_ENTRY_ID


class BookieCopies:
    """Reads one bookie. Fences nothing, and does not look whether the bookie is registered before it is asked."""

    def __init__(self, ports: ClientPorts, credentials: LedgerCredentials, bookie_id: str) -> None:
        self.ledger_id = credentials.ledger_id
        self.bookie_id = bookie_id
        self._ports = ports
        self._codec = credentials.codec

    async def last_entry_id(self) -> tuple[int, bool]:
        """The last entry that the bookie has, -1: none; and whether it may have more.

        Its list of entries names the last one, but Java's DbLedgerStorage sends none, and may name a lower last entry
        than it has (protocol section 6.5). BookieError, EntryDigestError: unknown.
        """
        told, failure = INVALID_ENTRY_ID, None
        try:
            reply = await self._ports.bookies.read(self.bookie_id, self.ledger_id, INVALID_ENTRY_ID)
            told = self._codec.decode(None, reply.body).entry_id
        except NoSuchEntryError:
            return INVALID_ENTRY_ID, False
        except (BookieIOError, UnknownLedgerStateError, EntryDigestError) as error:
            failure = error
        try:
            listed = await self._ports.bookies.list_entries(self.bookie_id, self.ledger_id)
        except BookieError:
            if failure is not None:
                raise failure from None
            return told, True
        if failure is None and listed.last_entry_id > told:
            return told, True  # a list has no digest: what it claims beyond is looked for, not believed
        return max(told, listed.last_entry_id), False

    async def entries(self, first: int, last: int) -> AsyncGenerator[Entry | NoGoodCopy, None]:
        """The entries ``first`` to ``last`` in order, each with a correct digest, or why there is none:
        NoSuchEntryError, BookieIOError, UnknownLedgerStateError or EntryDigestError.

        Raises other BookieErrors, which concern all entries: NoSuchLedgerError, no answer, no permission, overload.
        """

        def bytes_of(found: DecodedEntry | NoGoodCopy) -> int:
            return len(found.payload) if isinstance(found, DecodedEntry) else 0

        reads = ReadAhead(self._read, self._ports.config, bytes_of).entries(first, last)
        async with contextlib.aclosing(reads):
            async for found in reads:
                yield found if isinstance(found, NoGoodCopy) else Entry(found.entry_id, found.payload)

    async def _read(self, entry_ids: range) -> Sequence[DecodedEntry | NoGoodCopy]:
        entry_id = entry_ids[0]
        try:
            reply = await self._ports.bookies.read(self.bookie_id, self.ledger_id, entry_id)
            return [self._codec.decode(entry_id, reply.body)]
        except (NoSuchEntryError, BookieIOError, UnknownLedgerStateError, EntryDigestError) as error:
            return [NoGoodCopy(entry_id, error)]
