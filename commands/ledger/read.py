"""``bkctl ledger read``: read entries of a ledger without changing it."""

from __future__ import annotations

import base64
import enum
from typing import TYPE_CHECKING, Annotated

import typer

from commands.command import command
from commands.context import CommandContext
from commands.errors import NotFoundError
from commands.ledger.rows import bytes_text
from commands.parse import PASSWORD_HELP, parse_entry_range, parse_ledger_id, read_password
from commands.rendering import Column, Table, plain
from commands.session import open_session

if TYPE_CHECKING:
    from runtime.client import LedgerClient, LedgerReader

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
    password_file: Annotated[str | None, typer.Option("--password-file", metavar="FILE", help=PASSWORD_HELP)] = None,
) -> None:
    """Read entries, without fencing or closing the ledger.

    Digests are checked. An open ledger is read up to the last confirmed entry. Without a password, the one in the
    metadata is used. Payloads that are not printable text are shown as base64:..., unless --format is given.
    """
    ledger_id = parse_ledger_id(ledger)
    first, last = parse_entry_range(entries)
    async with open_session(context, must_exist=False) as session:
        client = await session.client()
        reader = await _open(client, ledger_id, read_password(password_file))
        highest = first if last is None else last
        if entries is not None and highest > reader.last_add_confirmed:
            state = "its last entry is" if reader.is_closed else "it is open, and its last confirmed entry is"
            raise NotFoundError(f"ledger {ledger_id} has no entry {highest}: {state} {reader.last_add_confirmed}")
        if form is Form.RAW:
            async for entry in reader.entries(first, last):
                context.console.raw(entry.payload)
            return
        with context.console.listing(_TABLE) as listing:
            async for entry in reader.entries(first, last):
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


async def _open(client: LedgerClient, ledger_id: int, password: bytes | None) -> LedgerReader:
    if password is None:
        metadata = (await client.ports.ledgers.read(ledger_id)).value
        password = metadata.password or b""
    return await client.open(ledger_id, password=password)


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
