"""``bkctl storage entrylog``: the contents of one entry log, also of a running bookie or of a copy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.console import Console
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.ledger.rows import bytes_text
from bkctl.commands.parse import parse_stored_ledger_id
from bkctl.commands.rendering import Column, Table
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.offline import ENTRY_LOG, NumberedFile, find_by_path, find_file, is_path, require_log_range
from bkctl.commands.storage.own_storage import open_own_storage
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import ENTRY_LOG_SIZE_BYTES_MAX, EntryLogConfig
from bkctl.storage.entry import ENTRY_HEADER_BYTES, decode_header
from bkctl.storage.entry_log import format as log_format
from bkctl.storage.entry_log.format import HEADER_BYTES, is_stray
from bkctl.storage.entry_log.reader import EntryLogReader, ScannedEntry
from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.words import size

_LogArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="Decimal id, 0x and hexadecimal digits, a name like 1f.log, or a path")
]
_LedgerOption = Annotated[
    list[str] | None, typer.Option("--ledger", metavar="LEDGER", help="Only entries of this ledger; repeatable")
]
_EntryOption = Annotated[int | None, typer.Option("--entry", metavar="N", min=0, help="Only this entry of the ledger")]

_CELL_CHARACTERS_MAX = 100


def _cell(value: object) -> str:
    text = str(value)
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 3] + "..."


_SCAN_TABLE = Table(
    "EntryLogScan",
    Column("offset", "OFFSET", is_right=True),
    Column("type", "TYPE"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("entry_id", "ENTRY", is_right=True),
    Column("size_bytes", "BYTES", is_right=True),
    Column("location", "LOCATION", is_wide=True),
    name="offset",
)
_ENTRY_TABLE = Table(
    "EntryLogEntryList",
    Column("offset", "OFFSET", is_right=True),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("entry_id", "ENTRY", is_right=True),
    Column("last_add_confirmed", "LAC", is_right=True),
    Column("length", "LENGTH", is_right=True),
    Column("size_bytes", "BYTES", is_right=True),
    Column("digest_and_data", "DIGEST AND DATA", _cell),
    name="entry_id",
)
_LEDGER_TABLE = Table(
    "EntryLogLedgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bytes", "BYTES", is_right=True),
    name="ledger_id",
)


@command(
    "show",
    example="storage entrylog show 1f.log --ledger 17",
    is_listing=True,
    is_local=True,
    is_configured_by_files=True,
)
@takes_storage_options
def show(
    context: CommandContext,
    flags: BookieFlags,
    log: _LogArgument,
    ledger: _LedgerOption = None,
    entry: _EntryOption = None,
) -> None:
    """Show the header of an entry log, or with --ledger the entries of a ledger with their contents.

    An entry that was added again may be present more than once; the index shows which copy is used (bkctl storage index
    show). Digests are not checked, because a bookie does not have the ledger's password.
    """
    ledger_ids = frozenset(map(parse_stored_ledger_id, ledger or ()))
    if entry is not None and not ledger_ids:
        raise InvalidArgumentError("--entry needs --ledger")
    file = _find(context, flags, log)
    with contextlib.closing(_open_reader(file)) as reader:
        if not ledger_ids:
            context.console.record("EntryLog", _header(file), name="log_id", show={"size_bytes": size})
            return
        is_found = _show_entries(context.console, reader, file, ledger_ids, entry)
    if not is_found:
        names = ", ".join(map(str, sorted(ledger_ids)))
        which = f"entry {names}:{entry}" if entry is not None else f"entry of ledger {names}"
        raise NotFoundError(f"{file.path} has no {which}")


@command(
    "scan",
    example="storage entrylog scan 1f.log --ledger 17",
    is_listing=True,
    is_local=True,
    is_configured_by_files=True,
)
@takes_storage_options
def scan(
    context: CommandContext,
    flags: BookieFlags,
    log: _LogArgument,
    ledger: _LedgerOption = None,
    entry: _EntryOption = None,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="Only entries from this offset on")] = 0,
    stop: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", min=0, help="Only entries before this offset")
    ] = None,
) -> None:
    """List the entries of an entry log in file order, without their contents.

    OFFSET is the offset of an entry's size field. A line of type "dropped" shows an incomplete entry at the end: the
    log was not synced when its bookie died, or it is damaged (see bkctl storage check). A line of type "stray" shows a
    record with a negative ledger or entry id, which no reader can ask for.
    """
    ledger_ids = frozenset(map(parse_stored_ledger_id, ledger or ()))
    file = _find(context, flags, log)
    require_log_range(file.path, start, stop)
    with contextlib.closing(_open_reader(file)) as reader:
        found = reader.scan(file.number)
        with context.console.listing(_SCAN_TABLE) as listing:
            for each in _frames(found.with_strays(), ledger_ids, entry):
                if not start <= _frame_offset(each) < (2**63 if stop is None else stop):
                    continue
                listing.add(_scan_row(each))
                if listing.end_if_full():
                    return
            if found.dropped_bytes:
                listing.add({"type": "dropped", "size_bytes": found.dropped_bytes})
    if found.dropped_bytes:
        context.console.warn(f"{file.path}: {found.dropped_bytes} bytes at its end are an incomplete entry")


@command(
    "ledgers",
    example="storage entrylog ledgers 1f.log",
    is_listing=True,
    is_local=True,
    is_configured_by_files=True,
)
@takes_storage_options
def ledgers(context: CommandContext, flags: BookieFlags, log: _LogArgument) -> None:
    """List the bytes of each ledger in an entry log, from the map at its end or by reading all of it.

    All copies count, including those of deleted ledgers and of entries that were added again later.
    """
    file = _find(context, flags, log)
    with contextlib.closing(_open_reader(file)) as reader:
        found = reader.ledgers_map(file.number)
    with context.console.listing(_LEDGER_TABLE) as listing:
        for ledger_id in sorted(found):
            listing.add({"ledger_id": str(ledger_id), "bytes": found[ledger_id]})


def _find(context: CommandContext, flags: BookieFlags, log: str) -> NumberedFile:
    if is_path(log):
        return find_by_path(OsFileSystem(), ENTRY_LOG, log)
    with open_own_storage(context, flags, is_locked=False) as own:
        return find_file(own.file_system, ENTRY_LOG, log, own.config.ledger_directories)


def _open_reader(file: NumberedFile) -> EntryLogReader:
    # The bookie's current limit does not apply: the log may have been written before it was lowered.
    config = EntryLogConfig(entry_bytes_max=ENTRY_LOG_SIZE_BYTES_MAX)
    return EntryLogReader(OsFileSystem(), file.directory, config)


def _header(file: NumberedFile) -> dict[str, object]:
    with open(file.path, "rb") as stream:
        header = log_format.decode_header(stream.read(HEADER_BYTES))
    return {
        "log_id": str(file.number),
        "path": file.path,
        "size_bytes": os.path.getsize(file.path),
        "version": None if header is None else header.version,
        "is_rolled": header is not None and header.map_offset > 0,
        "map_offset": None if header is None else header.map_offset,
        "ledgers": header.ledger_count if header is not None and header.has_map else None,
    }


def _show_entries(
    console: Console, reader: EntryLogReader, file: NumberedFile, ledger_ids: frozenset[int], entry_id: int | None
) -> bool:
    is_found = False
    with console.listing(_ENTRY_TABLE) as listing:
        for each in _frames(reader.scan(file.number).with_strays(), ledger_ids, entry_id):
            is_found = True
            if listing.end_if_full():
                break
            body = reader.read(each.location, each.ledger_id, each.entry_id)
            header = decode_header(body)
            listing.add(
                {
                    **_scan_row(each),
                    "last_add_confirmed": str(header.last_add_confirmed),
                    "length": str(header.length),
                    "digest_and_data": bytes_text(body[ENTRY_HEADER_BYTES:]),
                }
            )
    return is_found


def _frames(found: Iterator[ScannedEntry], ledger_ids: frozenset[int], entry_id: int | None) -> Iterator[ScannedEntry]:
    for each in found:
        if (not ledger_ids or each.ledger_id in ledger_ids) and (entry_id is None or each.entry_id == entry_id):
            yield each


def _frame_offset(entry: ScannedEntry) -> int:
    return entry.location.offset - LENGTH_BYTES


def _scan_row(entry: ScannedEntry) -> dict[str, object]:
    return {
        "offset": _frame_offset(entry),
        "type": "stray" if is_stray(entry.ledger_id, entry.entry_id) else "entry",
        "ledger_id": str(entry.ledger_id),
        "entry_id": str(entry.entry_id),
        "size_bytes": entry.size_bytes,
        "location": str(entry.location.log_id << 32 | entry.location.offset),
    }
