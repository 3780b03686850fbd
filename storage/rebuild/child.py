"""Child process of an index rebuild: scans logs, reads journal files, writes tables."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np

from bkctl.storage.entry_log.damage import LogDamage
from bkctl.storage.entry_log.examination import count_bytes, judge_scan
from bkctl.storage.entry_log.scan import LogScan
from bkctl.storage.errors import CorruptFileError, EntryLogError
from bkctl.storage.ids import EntryLocation, LedgerId, pack_location
from bkctl.storage.index.journaled_rows import JournaledLedger, note_record
from bkctl.storage.index.manifest import table_name
from bkctl.storage.index.rows import Rows, Run, concatenate, newest_rows, read_run, write_run
from bkctl.storage.index.table import BLOCK_ROW_COUNT, TABLE_ROW_COUNT_MAX, encode_table
from bkctl.storage.journal.reader import JournalScan
from bkctl.storage.ports import ChildContext, ChildHandlers
from bkctl.storage.rebuild.tasks import (
    JournalFindings,
    LoadedRange,
    LoadRange,
    MadeTable,
    ReadJournal,
    ScanLog,
    ScannedLog,
    read_ids,
    write_checks,
    write_ids,
)


def scan_log(task: ScanLog, context: ChildContext) -> ScannedLog:
    """Write the entries of a log to sorted runs, and report its damage and its ledgers."""
    scan = LogScan(context.file_system, task.directory, task.log_id)
    found_bytes: Counter[LedgerId] = Counter()
    parts: list[Rows] = []
    runs: list[Run] = []
    first_packed = pack_location(EntryLocation(task.log_id, 0))
    entry_count = done_bytes = 0
    unreadable = None
    try:
        for found in scan:
            entry_count += len(found.offsets)
            count_bytes(found_bytes, found)
            parts.append(Rows(found.ledger_ids, found.entry_ids, found.offsets | first_packed))
            if sum(part.row_count for part in parts) >= task.run_row_count:
                runs += _write_runs(context, task, len(runs), parts)
                parts = []
            at_bytes = int(found.offsets[-1])
            context.report(at_bytes - done_bytes)
            done_bytes = at_bytes
    except EntryLogError as error:
        unreadable = LogDamage(str(error), None)
    damage = unreadable or judge_scan(
        context.file_system, task.directory, task.log_id, scan, found_bytes, task.entry_bytes_max
    )
    runs += _write_runs(context, task, len(runs), parts)
    context.report(scan.size_bytes - done_bytes)
    misplaced = [ledger_id for ledger_id in found_bytes if ledger_id % task.directory_count != task.position]
    ids_name = f"ledgers-{task.rank}"
    write_ids(context.file_system, os.path.join(context.directory, ids_name), found_bytes)
    return ScannedLog(runs, ids_name, entry_count, scan.dropped_bytes, damage, misplaced[0] if misplaced else None)


def _write_runs(context: ChildContext, task: ScanLog, done_count: int, parts: list[Rows]) -> list[Run]:
    rows = newest_rows(concatenate(parts))
    # After damage a scan can mistake other bytes for an entry. Keep only ledgers that belong in this directory.
    rows = rows if task.directory_count == 1 else rows.take(rows.ledger_ids % task.directory_count == task.position)
    if not task.keeps_rows or rows.row_count == 0:
        return []
    path = os.path.join(context.directory, f"run-{task.rank}-{done_count}")
    return [write_run(context.file_system, path, rows)]


def load_range(task: LoadRange, context: ChildContext) -> LoadedRange:
    """Write the newest row of each key in a range to tables."""
    parts = [read_run(context.file_system, context.directory, run, task.lower, task.upper) for run in task.runs]
    rows = newest_rows(concatenate(parts))
    if task.known_name is not None:
        known = read_ids(context.file_system, os.path.join(context.directory, task.known_name))
        rows = rows.take(np.isin(rows.ledger_ids, known)) if rows.row_count else rows
    tables = []
    for number, first in enumerate(range(0, rows.row_count, TABLE_ROW_COUNT_MAX), task.table_number_first):
        part = rows.take(slice(first, first + TABLE_ROW_COUNT_MAX))
        tables.append(_write_table(context, number, part))
        context.report(part.row_count)
    return LoadedRange(tables, rows.row_count)


def _write_table(context: ChildContext, number: int, rows: Rows) -> MadeTable:
    ids = np.empty((rows.row_count, 2), ">i8")
    ids[:, 0] = rows.ledger_ids
    ids[:, 1] = rows.entry_ids
    values = rows.locations.astype(">i8").view(np.uint8).reshape(-1, 8)
    table = encode_table(ids.view(np.uint8), values)
    file = context.file_system.create(os.path.join(context.directory, table_name(number)))
    try:
        file.pwrite(b"".join(table.parts), 0)
        file.sync()
    finally:
        file.close()
    write_checks(context.file_system, context.directory, number, table.block_first_keys, values[::BLOCK_ROW_COUNT])
    return MadeTable(number, table.size_bytes, table.first_key, table.last_key, rows.row_count)


def read_journal(task: ReadJournal, context: ChildContext) -> JournalFindings:
    """Ledger state recorded in a journal file, up to its end or its first damage."""
    scan = JournalScan(context.file_system, task.path, is_newest=task.is_newest, cataloged=task.cataloged)
    ledgers: dict[LedgerId, JournaledLedger] = {}
    damage = None
    try:
        for record in scan:
            note_record(ledgers, record)
    except CorruptFileError as error:
        damage = str(error)
    context.report(context.file_system.size(task.path))
    return JournalFindings(ledgers, damage)


HANDLERS: ChildHandlers = {ScanLog: scan_log, LoadRange: load_range, ReadJournal: read_journal}
