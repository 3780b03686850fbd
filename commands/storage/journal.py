"""``bkctl storage journal``: the records of journal files, and applying them again."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.listing import Listing
from bkctl.commands.parse import all_ledger_ids
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.offline import (
    JOURNAL,
    NumberedFile,
    find_by_path,
    find_file,
    is_path,
    require_journal_start,
)
from bkctl.commands.storage.own_storage import OwnStorage, make_plan, open_own_storage, require_agreeing_directories
from bkctl.commands.storage.working import work_beside_loop
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.advice import without_path
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.replay import ReplayReport
from bkctl.storage.entry import decode_header
from bkctl.storage.errors import CorruptFileError, StorageError
from bkctl.storage.filenames import current_directory
from bkctl.storage.ids import LogMark
from bkctl.storage.index.ledger_index import EXPLICIT_LAC_BYTES_MIN, explicit_lac_of
from bkctl.storage.journal.catalog import NO_CATALOG, JournalCatalog, read_catalog
from bkctl.storage.journal.format import JournalRecord, JournalRecordKind
from bkctl.storage.journal.reader import JournalScan, list_journals
from bkctl.storage.words import counted, size

_TABLE = Table(
    "JournalRecordList",
    Column("file", "FILE", priority=1),
    Column("offset", "OFFSET", is_right=True),
    Column("type", "TYPE"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("entry_id", "ENTRY", is_right=True),
    Column("size_bytes", "BYTES", is_right=True, priority=3),
    Column("last_add_confirmed", "LAC", is_right=True, priority=2),
    Column("note", "NOTE"),
    Column("path", "PATH", is_wide=True),
    name="offset",
)

_PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("path", "PATH"),
    Column("bytes", "SIZE", size, is_right=True),
)


class _Wanted(NamedTuple):
    start: int
    ledger_ids: frozenset[int]
    is_entries_only: bool

    def takes(self, record: JournalRecord) -> bool:
        is_entry = record.entry_id >= 0
        is_of_ledger = not self.ledger_ids or record.ledger_id in self.ledger_ids
        return is_of_ledger and (is_entry or not self.is_entries_only)


@command(
    "scan",
    example="storage journal scan 1f.txn --ledger 17",
    is_listing=True,
    is_local=True,
    is_configured_by_files=True,
)
@takes_storage_options
def scan(
    context: CommandContext,
    flags: BookieFlags,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOURNAL]",
            help="Decimal id, 0x and hexadecimal digits, a name like 1f.txn, or a path (default: all)",
        ),
    ] = None,
    start: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="Start at this offset, where a record must start")
    ] = 0,
    ledger: Annotated[
        list[str] | None, typer.Option("--ledger", metavar="LEDGER", help="Only records of this ledger; repeatable")
    ] = None,
    entries: Annotated[bool, typer.Option("--entries-only", help="Only entries: no keys, fences and LACs")] = False,
) -> None:
    """List the records of journal files from the start of each file, regardless of marks.

    The end of a file has its own line if bytes were dropped ("dropped": they were never synced and never acknowledged),
    if its contents cannot come from a crash ("damaged", exit code 12), or if the disk cannot read it ("unreadable",
    exit code 1). Master keys are not shown.
    """
    wanted = _Wanted(start, frozenset(all_ledger_ids(ledger)), entries)
    if start and file is None:
        raise InvalidArgumentError("--from needs a journal file")
    files = list(_files(context, flags, file))
    for each in files:
        require_journal_start(OsFileSystem(), each.path, start)
    with context.console.listing(_TABLE) as listing:
        trouble = _list_files(listing, files, wanted)
    if trouble is not None:
        raise trouble


@command(
    "replay",
    example="storage journal replay --from 1f.txn --dry-run",
    effect=Effect.HARMFUL,
    is_configured_by_files=True,
)
@takes_storage_options
async def replay(
    context: CommandContext,
    flags: BookieFlags,
    first: Annotated[
        str,
        typer.Option("--from", metavar="JOURNAL", help="First file: decimal id, 0x..., a name like 1f.txn, or a path"),
    ],
) -> None:
    """Replay a stopped bookie's journals from a file before the mark up to the newest.

    Use this if the mark is ahead of what ledger storage contains. Existing entries stay as they are, and no mark moves
    back. A deleted ledger whose key is in these files comes back until the garbage collector deletes it again. Other
    journals are replayed from their marks, as at a start. If a file is damaged, nothing is changed.
    """
    with open_own_storage(context, flags, is_locked=True) as own:
        own.config.require_paired_indexes()
        require_agreeing_directories(own)
        file = find_file(own.file_system, JOURNAL, first, own.config.journal_directories)
        plan = _replay_plan(own, file)
        async with open_change(context, plan, table=_PLAN_TABLE) as change:
            own.locks.claim()
            with context.console.progress("applying journals"):
                report = await work_beside_loop(lambda _: _replay(own, file))
            change.details["entries"] = report.entry_count
    body: dict[str, object] = {
        "files": report.file_count,
        "entries": report.entry_count,
        "ledger_keys": report.ledger_key_count,
        "fences": report.fence_count,
        "explicit_lacs": report.explicit_lac_count,
        "skipped": report.skipped_count,
        "dropped_bytes": sum(tail.dropped_bytes for tail in report.dropped_tails),
    }
    context.console.record("JournalReplayed", body, name="entries")
    for tail in report.dropped_tails:
        context.console.warn(
            f"{tail.path}: {tail.dropped_bytes} bytes from offset {tail.offset} on were never synced ({tail.reason})"
        )


def _replay_plan(own: OwnStorage, file: NumberedFile) -> Plan:
    numbers = [number for number in list_journals(own.file_system, file.directory) if number >= file.number]
    paths = [os.path.join(file.directory, JOURNAL.file_name(number)) for number in numbers]
    items = [{"action": "apply", "path": path, "bytes": os.path.getsize(path)} for path in paths]
    summary = [f"will apply {counted(len(items), 'journal file')} to the ledger storage, from {items[0]['path']} on"]
    return make_plan(own, summary=summary, items=items)


def _replay(own: OwnStorage, file: NumberedFile) -> ReplayReport:
    directories = [current_directory(each) for each in own.config.journal_directories]
    start = LogMark(file.number, 0)
    now_ms = time.time_ns() // 1_000_000
    with contextlib.closing(LedgerStorage.open(own.file_system, open_plyvel, own.config, now_ms, locks=())) as storage:
        return storage.replay({directories.index(file.directory): start})


def _files(context: CommandContext, flags: BookieFlags, file: str | None) -> Iterator[NumberedFile]:
    if file is not None and is_path(file):
        yield find_by_path(OsFileSystem(), JOURNAL, file)
        return
    with open_own_storage(context, flags, is_locked=False) as own:
        if file is not None:
            yield find_file(own.file_system, JOURNAL, file, own.config.journal_directories)
            return
        for current in map(current_directory, own.config.journal_directories):
            for journal_id in list_journals(own.file_system, current):
                name = JOURNAL.file_name(journal_id)
                yield NumberedFile(current, journal_id, f"{current}/{name}")


def _list_files(listing: Listing, files: Sequence[NumberedFile], wanted: _Wanted) -> Exception | None:
    """Add the records of all files; returns the first error, to be raised after everything else was listed."""
    disk = OsFileSystem()
    trouble: Exception | None = None
    for file in files:
        if listing.end_if_full():
            break
        catalog, error = _catalog(disk, file.directory)
        trouble = trouble or error
        try:
            _list_file(listing, file, catalog, wanted)
        except CorruptFileError as error:
            trouble = trouble or error
            listing.add(_line(file, "damaged", error.offset, error.reason))
        except OSError as error:
            if disk.exists(file.path):  # otherwise the running bookie has deleted it meanwhile
                trouble = trouble or error
                listing.add(_line(file, "unreadable", None, without_path(error)))
    return trouble


def _catalog(disk: OsFileSystem, directory: str) -> tuple[JournalCatalog, Exception | None]:
    """The catalog of a directory. The journals can still be listed if it is damaged."""
    try:
        return read_catalog(disk, directory), None
    except (StorageError, OSError) as error:
        return NO_CATALOG, error


def _list_file(listing: Listing, file: NumberedFile, catalog: JournalCatalog, wanted: _Wanted) -> None:
    records = open_scan(OsFileSystem(), file, catalog, wanted.start)
    for record in records:
        if not wanted.takes(record):
            continue
        if listing.end_if_full():
            return
        listing.add(_row(file, record))
    end = records.end
    if end.dropped_bytes:
        listing.add({**_line(file, "dropped", end.data_end_offset, end.reason.value), "size_bytes": end.dropped_bytes})


def open_scan(fs: OsFileSystem, file: NumberedFile, catalog: JournalCatalog, start: int) -> JournalScan:
    """The records of a file, judged as replay would: by the catalog, and by whether the file is the newest."""
    return JournalScan(
        fs,
        file.path,
        start,
        is_newest=file.number == max(list_journals(fs, file.directory), default=file.number),
        cataloged=catalog.find(file.number),
    )


def _row(file: NumberedFile, record: JournalRecord) -> dict[str, object]:
    last_add_confirmed: int | None = None
    if record.kind is JournalRecordKind.ENTRY:
        last_add_confirmed = decode_header(record.payload).last_add_confirmed
    elif record.kind is JournalRecordKind.EXPLICIT_LAC and len(record.payload) >= EXPLICIT_LAC_BYTES_MIN:
        last_add_confirmed = explicit_lac_of(record.payload)
    return {
        "file": JOURNAL.file_name(file.number),
        "offset": record.offset,
        "type": record.kind.value,
        "ledger_id": str(record.ledger_id),
        "entry_id": str(record.entry_id) if record.entry_id >= 0 else None,
        "size_bytes": len(record.payload),
        "last_add_confirmed": None if last_add_confirmed is None else str(last_add_confirmed),
        "note": None,
        "path": file.path,
    }


def _line(file: NumberedFile, kind: str, offset: int | None, note: str) -> dict[str, object]:
    return {"file": JOURNAL.file_name(file.number), "offset": offset, "type": kind, "note": note, "path": file.path}
