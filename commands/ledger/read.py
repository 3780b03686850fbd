"""``bkctl ledger read``: read entries of a ledger without changing it."""

from __future__ import annotations

import base64
import contextlib
import enum
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.ledger.one_bookie import FoundCopies, open_copies
from bkctl.commands.ledger.reading import ledger_entries
from bkctl.commands.ledger.rows import bytes_text
from bkctl.commands.parse import PASSWORD_HELP, parse_bookie_id, parse_entry_range, parse_ledger_id, read_password
from bkctl.commands.rendering import Column, Table, plain
from bkctl.commands.session import open_session

if TYPE_CHECKING:
    from bkctl.runtime.client.reader import Entry

_CELL_CHARACTERS_MAX = 100


def _cell(value: object) -> str:
    text = plain(value)
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 3] + "..."


_TABLE = Table(
    "EntryList",
    Column("entry_id", "ENTRY", is_right=True),
    Column("size_bytes", "BYTES", is_right=True),
    Column("payload", "PAYLOAD", _cell),
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
    form: Annotated[
        Form, typer.Option("--format", help="Payload encoding; raw writes only the payload bytes")
    ] = Form.AUTO,
    from_bookie: Annotated[
        str | None, typer.Option("--from-bookie", metavar="BOOKIE", help="Read what this bookie has, and ask no other")
    ] = None,
    password_file: Annotated[str | None, typer.Option("--password-file", metavar="FILE", help=PASSWORD_HELP)] = None,
) -> Outcome:
    """Read entries, without fencing or closing the ledger.

    Checks digests. Without LAST, an open ledger is read to the last confirmed entry; with it, also if the end is
    unknown. --from-bookie ignores the metadata's end; exits with 9 if entries are left. The default password is the
    one in the metadata. Payloads that are not text are shown as base64:...
    """
    ledger_id = parse_ledger_id(ledger)
    span = parse_entry_range(entries)
    bookie_id = None if from_bookie is None else parse_bookie_id(from_bookie)
    password = read_password(password_file)
    async with open_session(context, must_exist=False) as session:
        client = await session.client()
        if bookie_id is None:
            await _print(context, ledger_entries(client, ledger_id, password, span, context.console.warn), form)
            return Outcome.OK
        found = FoundCopies(await open_copies(client, ledger_id, bookie_id, password), *span)
        await _print(context, found.entries(), form)
        note = context.console.warn if found.is_partial else context.console.say
        for sentence in found.left():
            note(sentence)
    return Outcome.PARTIAL if found.is_partial else Outcome.OK


async def _print(context: CommandContext, entries: AsyncGenerator[Entry, None], form: Form) -> None:
    async with contextlib.aclosing(entries):
        if form is Form.RAW:
            async for entry in entries:
                context.console.raw(entry.payload)
            return
        with context.console.listing(_TABLE) as listing:
            async for entry in entries:
                if listing.is_full:
                    listing.truncate()
                    break
                listing.add(
                    {
                        "entry_id": str(entry.entry_id),
                        "size_bytes": len(entry.payload),
                        "payload": _payload_text(entry.payload, form),
                    }
                )


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
