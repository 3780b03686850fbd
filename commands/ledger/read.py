"""``bkctl ledger read``: read entries of a ledger, from any bookie that has them, without changing it."""

from __future__ import annotations

import base64
import contextlib
import enum
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Protocol, TypeVar

import typer

from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, NotFoundError, Outcome
from bkctl.commands.ledger.one_bookie import FoundCopies, open_copies
from bkctl.commands.ledger.rows import bytes_text
from bkctl.commands.parse import parse_bookie_id, parse_entry_range, parse_ledger_id, read_password
from bkctl.commands.rendering import Column, Row, Table, plain
from bkctl.commands.session import open_session
from bkctl.runtime.client import LedgerClient, LedgerReader
from bkctl.runtime.client.reader import ENTRIES_WITHOUT_END_MAX, Entry, NoGoodCopy
from bkctl.runtime.errors import (
    AuthenticationRequiredError,
    BookieError,
    DigestMismatchError,
    LedgerReadError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkctl.runtime.replication.judge.fragments import EntryRangeSet, format_ranges
from bkctl.storage.errors import BkctlError

_CELL_CHARACTERS_MAX = 100
_CUT = f"payloads of more than {_CELL_CHARACTERS_MAX} characters are cut; -o jsonl writes them whole"


class _Entry(Protocol):
    @property
    def payload(self) -> bytes:
        """What was appended."""


EntryT = TypeVar("EntryT", bound=_Entry)


def payload_cell(value: object) -> str:
    """A payload in a table: cut if it is long."""
    text = plain(value)
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 3] + "..."


_TABLE = Table(
    "EntryList",
    Column("entry_id", "ENTRY", is_right=True),
    Column("size_bytes", "BYTES", is_right=True),
    Column("payload", "PAYLOAD", payload_cell),
    name="entry_id",
)


class Form(enum.StrEnum):
    """Encoding of payloads."""

    AUTO = "auto"
    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"
    RAW = "raw"


@command("read", example="ledger read 17 0-9", is_listing=True)
async def read(
    context: CommandContext,
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="Ledger id: decimal, 0x... or UUID")],
    entries: Annotated[
        str | None, typer.Argument(metavar="[FIRST[-LAST]]", help="Range of entries, inclusive (default: all)")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Encoding; raw: just bytes")] = Form.AUTO,
    from_bookie: Annotated[
        str | None,
        typer.Option("--from-bookie", metavar="ID", help="Read from it alone, even past the end"),
    ] = None,
    is_keeping_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on past entries that cannot be read")
    ] = False,
    is_following: Annotated[bool, typer.Option("--follow", help="Wait for entries until the ledger is closed")] = False,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file", metavar="FILE", help="Its password (default: $BKCTL_LEDGER_PASSWORD, else from metadata)"
        ),
    ] = None,
) -> Outcome:
    """Read entries, without fencing or closing the ledger.

    Ends at an entry that is missing (1), needs a bookie that is silent (7) or is damaged (12). With --keep-going or
    --from-bookie, exits with 9 if entries are left. Of an open ledger, only LAST reads past the last confirmed entry.
    Payloads that are not text are shown as base64:...
    """
    ledger_id = parse_ledger_id(ledger)
    span = parse_entry_range(entries)
    bookie_id = None if from_bookie is None else parse_bookie_id(from_bookie)
    _check_ways(from_bookie, span, is_keeping_going=is_keeping_going, is_following=is_following)
    if is_following:
        check_following(context, form)
    password = read_password(password_file)
    async with open_session(context, must_exist=False) as session:
        client = await session.client()
        if is_following:
            reader, _ = await _open(client, ledger_id, password, None)
            await _print(context, reader.follow(span[0]), form, is_live=True)
            return Outcome.OK
        if bookie_id is None:
            reader, end = await _open(client, ledger_id, password, span[1])
            if is_keeping_going:
                return await _print_readable(context, reader, span, end, form)
            await _print(context, ledger_entries(reader, end, span, context.console.warn), form)
            return Outcome.OK
        found = FoundCopies(await open_copies(client, ledger_id, bookie_id, password), *span)
        await _print(context, found.entries(), form)
        note = context.console.warn if found.is_partial else context.console.say
        for sentence in found.left():
            note(sentence)
    return Outcome.PARTIAL if found.is_partial else Outcome.OK


def _check_ways(
    from_bookie: str | None, span: tuple[int, int | None], *, is_keeping_going: bool, is_following: bool
) -> None:
    if is_keeping_going and (is_following or from_bookie is not None):
        raise InvalidArgumentError("--keep-going asks all bookies once: use it without --follow and --from-bookie")
    if is_following and from_bookie is not None:
        raise InvalidArgumentError("--follow asks all bookies of the ledger: omit --from-bookie")
    if is_following and span[1] is not None:
        raise InvalidArgumentError("--follow ends with the ledger: omit LAST, as in 10-")


def check_following(context: CommandContext, form: Form) -> None:
    """InvalidArgumentError for the shared options that need the end of what is followed."""
    settings = context.settings
    if settings.sort is not None:
        raise InvalidArgumentError("--follow writes entries as they come: omit --sort")
    if form is not Form.RAW and settings.output in {OutputForm.JSON, OutputForm.YAML}:
        raise InvalidArgumentError(
            f"--follow writes a line per entry, and {settings.output} is one document: use -o jsonl, csv, name or table"
        )


def _row(entry: Entry) -> Row:
    return {"entry_id": str(entry.entry_id)}


async def _print(
    context: CommandContext, entries: AsyncGenerator[Entry, None], form: Form, *, is_live: bool = False
) -> None:
    await print_payloads(context, _TABLE, entries, form, _row, is_live=is_live)


async def print_payloads(
    context: CommandContext,
    table: Table,
    entries: AsyncGenerator[EntryT, None],
    form: Form,
    row_of: Callable[[EntryT], Row],
    *,
    is_live: bool = False,
) -> None:
    """Print entries as they come; the raw form writes nothing but their payloads. ``row_of``: what else is shown.

    A table that may be kept in a file comes with a warning if payloads are cut: it is no copy of them.
    """
    async with contextlib.aclosing(entries):
        if form is Form.RAW:
            async for entry in entries:
                context.console.raw(entry.payload)
            return
        with context.console.listing(table, is_live=is_live) as listing:
            may_cut = context.console.is_for_people and not sys.stdout.isatty()
            async for entry in entries:
                if listing.end_if_full():
                    break
                payload = entry.payload
                text = _payload_text(payload, form)
                if may_cut and len(text) > _CELL_CHARACTERS_MAX:
                    may_cut = False
                    context.console.warn(_CUT)
                listing.add({**row_of(entry), "size_bytes": len(payload), "payload": text})


def _payload_text(payload: bytes, form: Form) -> str:
    match form:
        case Form.HEX:
            return payload.hex()
        case Form.BASE64:
            return base64.b64encode(payload).decode()
        case Form.UTF8:
            return payload.decode("utf-8", "backslashreplace")
        case _:
            return bytes_text(payload)


async def _print_readable(
    context: CommandContext, reader: LedgerReader, span: tuple[int, int | None], end: str, form: Form
) -> Outcome:
    """Print what can be read of the span. InvalidArgumentError if it is endless; otherwise as ``ReadableEntries``."""
    first, last = span
    is_beyond = _is_beyond(reader, span, end, context.console.warn)
    last = reader.last_add_confirmed if last is None else last
    if is_beyond and last - max(first, reader.last_add_confirmed) > ENTRIES_WITHOUT_END_MAX:
        raise InvalidArgumentError(
            f"ledger {reader.ledger_id}: {end}: specify FIRST-LAST with at most {ENTRIES_WITHOUT_END_MAX} entries"
        )
    if first > last:
        await _print(context, reader.entries(first), form)
        return Outcome.OK
    found = ReadableEntries(reader, first, last)
    await _print(context, found.entries(), form)
    for error in found.errors():
        context.console.warn(str(error))
    return Outcome.PARTIAL if found.errors() else Outcome.OK


def _is_beyond(reader: LedgerReader, span: tuple[int, int | None], end: str, warn: Callable[[str], None]) -> bool:
    """Whether the last entry is beyond the last confirmed one, with a warning if it may exist; NotFoundError."""
    first, last = span
    highest = first if last is None else last
    is_beyond = highest > reader.last_add_confirmed
    if is_beyond and (reader.is_closed or (last is None and first > 0)):
        raise NotFoundError(f"ledger {reader.ledger_id} has no entry {highest}: {end}")
    if is_beyond and last is not None:
        warn(f"ledger {reader.ledger_id}: {end}; entries that are not confirmed may never become part of it")
    return is_beyond


async def ledger_entries(
    reader: LedgerReader, end: str, span: tuple[int, int | None], warn: Callable[[str], None]
) -> AsyncGenerator[Entry, None]:
    """The entries of ``span``, of which the last may be None: up to the last confirmed one.

    Others of an open ledger are read from the bookies that answer, and ``warn`` gets a sentence about them. Whether
    such an entry exists is only certain if a bookie has it, or if all of its write set answer that they do not.

    NotFoundError; otherwise as ``LedgerReader.entries``, and BookieError if it is not certain that an entry exists.
    """
    first, last = span
    is_beyond = _is_beyond(reader, span, end, warn)
    found = reader.entries(first, last) if not is_beyond or last is None else _unconfirmed(reader, first, last, end)
    async with contextlib.aclosing(found):
        async for entry in found:
            yield entry


async def _open(
    client: LedgerClient, ledger_id: int, password: bytes | None, last: int | None
) -> tuple[LedgerReader, str]:
    metadata = (await client.ports.ledgers.read(ledger_id)).value
    password = metadata.password or b"" if password is None else password
    # Earlier segments are complete, whatever the end of the last one is.
    asks_end = last is None or last >= metadata.last_segment.first_entry_id
    try:
        reader = await client.open(ledger_id, password=password, asks_end=asks_end)
    except (LedgerReadError, DigestMismatchError) as error:
        if last is None and isinstance(error.__cause__, AuthenticationRequiredError):
            raise  # its entries need the same login
        reason = str(error).removeprefix(f"ledger {ledger_id}: ")
        if last is None:
            remedy = "specify FIRST-LAST to read these entries from the bookies that answer"
            raise type(error)(ledger_id, f"{reason}; {remedy}") from error
        reader = await client.open(ledger_id, password=password, asks_end=False)
        return reader, f"it is open, and its end is unknown ({reason})"
    state = "its last entry is" if reader.is_closed else "it is open, and its last confirmed entry is"
    return reader, f"{state} {reader.last_add_confirmed}"


async def _unconfirmed(reader: LedgerReader, first: int, last: int, end: str) -> AsyncGenerator[Entry, None]:
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
