"""``bkctl storage index show``: contents of the indexes of a stopped bookie, for all ledgers or one."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Annotated, Any

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.errors import NotFoundError
from bkctl.commands.parse import all_ledger_ids
from bkctl.commands.rendering import Column, Lines, Table
from bkctl.commands.several import in_turn
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.own_storage import OwnStorage, open_own_storage
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.errors import IndexMissingError
from bkctl.storage.filenames import (
    DATABASES,
    LEDGERS_DATABASE,
    LOCATIONS_DATABASE,
    current_directory,
    entry_log_file_name,
    seal_file_name,
)
from bkctl.storage.index.adoption_note import advise_on_lost_index
from bkctl.storage.index.ledger_index import LedgerIndex, is_placeholder_key
from bkctl.storage.index.location_index import LocationIndex
from bkctl.storage.index.opening import IndexCondition, IndexState, inspect_index, open_or_view_index
from bkctl.storage.index.seal import SealedIndex, decode_seal_record, is_sealed_index_present
from bkctl.storage.index.swap import finish_swap
from bkctl.storage.words import size

_TABLE = Table(
    "Indexes",
    Column("path", "INDEX"),
    Column("condition", "CONDITION"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("limbo", "IN LIMBO", is_right=True, priority=1),
    Column("size_bytes", "SIZE", size, is_right=True, priority=2),
    Column("sealed_batches", "SEALED", is_right=True, priority=3),
    Column("detail", "DETAIL"),
)
_LOG_TABLE = Table(
    "Entry logs",
    Column("log", "ENTRY LOG"),
    Column("entries", "ENTRIES", is_right=True),
)


@command("show", example="storage index show --ledger 17", is_cut=True, is_local=True, is_configured_by_files=True)
@takes_storage_options
def show(
    context: CommandContext,
    flags: BookieFlags,
    ledger: Annotated[
        list[str] | None, typer.Option("--ledger", metavar="LEDGER", help="Show the rows of this ledger; repeatable")
    ] = None,
) -> None:
    """Show the indexes of a stopped bookie, or with --ledger their rows for it, without keys.

    Missing or damaged indexes are listed too; the exit code is then 12. "sealed" is the number of batches that must be
    present. "needs integrity check" means that the bookie compares itself with its peers at the next start.
    """
    with open_own_storage(context, flags, is_locked=True) as own:
        if not ledger:
            _show_all(context, own)
            return
        ledger_ids = all_ledger_ids(ledger)
        with in_turn(context, list(map(str, ledger_ids))) as turns:
            for ledger_id in ledger_ids:
                with turns.turn():
                    _show_ledger(context, own, ledger_id)


def _show_all(context: CommandContext, own: OwnStorage) -> None:
    rows: list[dict[str, Any]] = []
    lost: list[IndexState] = []
    flags = 0
    for position, directories in enumerate(own.config.engine_directories):
        found, own_flags = _describe(own, *directories, lost)
        rows += found
        flags = own_flags if position == 0 else flags
    body = {"needs_integrity_check": bool(flags & 1)}
    details, lines = context.console.cut({"indexes": rows}), Lines(_TABLE, rows)
    context.console.record("StorageIndex", body, name="needs_integrity_check", details=details, lines=lines)
    context.console.table(_TABLE, rows)
    if lost:
        raise lost[0].as_error(advise_on_lost_index(own.file_system, own.config))


def _describe(
    own: OwnStorage, ledger_directory: str, index_directory: str, lost: list[IndexState]
) -> tuple[list[dict[str, Any]], int]:
    """Both databases of a directory, and its storage flags; adds a missing or damaged database to ``lost``."""
    rows, flags = [], 0
    for name in DATABASES:
        path = os.path.join(index_directory, name)
        state = inspect_index(own.file_system, open_plyvel, ledger_directory, index_directory, name)
        row: dict[str, Any] = {"path": path, "condition": state.condition.value, "detail": state.detail or None}
        row |= dict.fromkeys(("ledgers", "limbo", "size_bytes", "sealed_batches"))
        if state.is_lost:
            lost.append(state)
        if state.condition is IndexCondition.SOUND:
            names = own.file_system.list_directory(path)
            row["size_bytes"] = sum(os.path.getsize(os.path.join(path, each)) for each in names)
            record = decode_seal_record(own.file_system.read_file(seal_file_name(path)))
            row["sealed_batches"] = None if record is None else record.number
        if state.condition is IndexCondition.SOUND and name == LEDGERS_DATABASE:
            row["ledgers"], row["limbo"], flags = _count_ledgers(own, path)
        rows.append(row)
    return rows, flags


def _count_ledgers(own: OwnStorage, path: str) -> tuple[int, int, int]:
    with contextlib.closing(_open(own, path)) as opened:
        ledgers = LedgerIndex.load(opened)
        rows = map(ledgers.find, ledgers)
        return len(ledgers), sum(row is not None and row.is_limbo for row in rows), ledgers.read_flags()


def _show_ledger(context: CommandContext, own: OwnStorage, ledger_id: int) -> None:
    position = ledger_id % len(own.config.ledger_directories)
    directory = current_directory(own.config.effective_index_directories[position])
    with contextlib.closing(_open(own, os.path.join(directory, LEDGERS_DATABASE))) as opened:
        row = LedgerIndex.load(opened).find(ledger_id)
    if row is None:
        raise NotFoundError(f"ledger {ledger_id} has no row in {os.path.join(directory, LEDGERS_DATABASE)}")
    with contextlib.closing(_open(own, os.path.join(directory, LOCATIONS_DATABASE))) as opened:
        index = LocationIndex(opened)
        entry_ids = list(index.list_entries(ledger_id))
        found = (index.find(ledger_id, entry_id) for entry_id in entry_ids)
        logs = Counter(location.log_id for location in found if location is not None)
    body = {
        "ledger_id": str(ledger_id),
        "ledger_directory": own.config.ledger_directories[position],
        "is_fenced": row.is_fenced,
        "is_limbo": row.is_limbo,
        "has_key": not is_placeholder_key(row.master_key),
        "explicit_lac": None if row.explicit_lac is None else str(int.from_bytes(row.explicit_lac[8:16], signed=True)),
        "entries": len(entry_ids),
        "first_entry": str(entry_ids[0]) if entry_ids else None,
        "last_entry": str(entry_ids[-1]) if entry_ids else None,
    }
    rows = [{"log": entry_log_file_name(log_id), "entries": count} for log_id, count in sorted(logs.items())]
    context.console.record("StorageIndexLedger", body, name="ledger_id", details={"logs": rows})
    context.console.table(_LOG_TABLE, rows)


def _open(own: OwnStorage, path: str) -> SealedIndex:
    """Open a database as a boot does; IndexMissingError and IndexDamagedError contain the fix."""
    finish_swap(own.file_system, path)
    if not is_sealed_index_present(own.file_system, path):
        raise IndexMissingError(f"{path}: no index database; {advise_on_lost_index(own.file_system, own.config)}")
    return open_or_view_index(own.file_system, open_plyvel, path)
