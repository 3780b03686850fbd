"""Entries of a ledger for ``bkctl ledger read``, from any bookie that has them; also if its end is unknown."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from bkctl.commands.errors import NotFoundError

if TYPE_CHECKING:
    from bkctl.runtime.client import LedgerClient, LedgerReader
    from bkctl.runtime.client.reader import Entry


async def ledger_entries(
    client: LedgerClient,
    ledger_id: int,
    password: bytes | None,
    span: tuple[int, int | None],
    warn: Callable[[str], None],
) -> AsyncGenerator[Entry, None]:
    """The entries of ``span``, of which the last may be None: up to the last confirmed one.

    Others of an open ledger are read from the bookies that answer, and ``warn`` gets a sentence about them. Whether
    such an entry exists is only certain if a bookie has it, or if all of its write set answer that they do not.

    NotFoundError; otherwise as ``LedgerReader.entries``, and BookieError if it is not certain that an entry exists.
    """
    first, last = span
    reader, end = await _open(client, ledger_id, password, last)
    highest = first if last is None else last
    is_beyond = highest > reader.last_add_confirmed
    if is_beyond and (reader.is_closed or (last is None and first > 0)):
        raise NotFoundError(f"ledger {ledger_id} has no entry {highest}: {end}")
    if not is_beyond or last is None:
        found = reader.entries(first, last)
    else:
        warn(f"ledger {ledger_id}: {end}; entries that are not confirmed may never become part of it")
        found = _unconfirmed(reader, first, last, end)
    async with contextlib.aclosing(found):
        async for entry in found:
            yield entry


async def _open(
    client: LedgerClient, ledger_id: int, password: bytes | None, last: int | None
) -> tuple[LedgerReader, str]:
    """A reader, and what is known about the end of the ledger."""
    from bkctl.runtime.errors import DigestMismatchError, LedgerReadError

    metadata = (await client.ports.ledgers.read(ledger_id)).value
    password = metadata.password or b"" if password is None else password
    # Earlier segments are complete, whatever the end of the last one is.
    asks_end = last is None or last >= metadata.last_segment.first_entry_id
    try:
        reader = await client.open(ledger_id, password=password, asks_end=asks_end)
    except (LedgerReadError, DigestMismatchError) as error:
        reason = str(error).removeprefix(f"ledger {ledger_id}: ")
        if last is None:
            remedy = "specify FIRST-LAST to read these entries from the bookies that answer"
            raise type(error)(ledger_id, f"{reason}; {remedy}") from error
        reader = await client.open(ledger_id, password=password, asks_end=False)
        return reader, f"it is open, and its end is unknown ({reason})"
    state = "its last entry is" if reader.is_closed else "it is open, and its last confirmed entry is"
    return reader, f"{state} {reader.last_add_confirmed}"


async def _unconfirmed(reader: LedgerReader, first: int, last: int, end: str) -> AsyncGenerator[Entry, None]:
    from bkctl.runtime.errors import BookieError, LedgerReadError, NoSuchEntryError, NoSuchLedgerError

    next_id = first
    try:
        async with contextlib.aclosing(reader.unconfirmed_entries(first, last)) as entries:
            async for entry in entries:
                next_id = entry.entry_id + 1
                yield entry
    except LedgerReadError as error:
        cause = error.__cause__
        if next_id <= reader.last_add_confirmed or not isinstance(cause, BookieError):
            raise
        if isinstance(cause, NoSuchEntryError | NoSuchLedgerError):
            sentence = f"ledger {reader.ledger_id} has no entry {next_id}: no bookie that should store it has it; {end}"
            raise NotFoundError(sentence) from error
        reason = str(cause).removeprefix(f"bookie {cause.bookie_id}: ")
        doubt = f"so it is not certain whether ledger {reader.ledger_id} has entry {next_id}: {end}"
        raise type(cause)(cause.bookie_id, f"{reason}, {doubt}") from error
