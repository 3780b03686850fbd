"""Rebuilds a bookie's ledger rows from its entry logs and journals. Source: storage sections 11.2 and 11.6.

The rebuild assumes the worst: every ledger is fenced, because a fence may have been lost. Without a key record the
ledger's key is empty, and the next real key replaces it.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bkctl.storage.errors import IndexDamagedError, JournalError
from bkctl.storage.filenames import journal_file_name
from bkctl.storage.ids import LedgerId
from bkctl.storage.index.journaled_rows import JournaledLedger, note_later, row_with_journals
from bkctl.storage.index.ledger_index import LedgerRow, encode_row, flags_row
from bkctl.storage.journal.catalog import NO_CATALOG, read_catalog
from bkctl.storage.journal.reader import list_journals
from bkctl.storage.ports import ChildPool, FileSystem, OpenIndexStore
from bkctl.storage.rebuild.directory import RebuildWatch
from bkctl.storage.rebuild.limbo import DoubtedLedgers
from bkctl.storage.rebuild.tasks import JournalFindings, ReadJournal

_KEY = struct.Struct(">q")
_BATCH_ROW_COUNT_MAX = 4096


class ReadJournals(msgspec.Struct, frozen=True):
    """Ledger state from all journals of a bookie, starting at their oldest records."""

    ledgers: Mapping[LedgerId, JournaledLedger]
    damages: Sequence[str]
    """Errors of journals that could not be read to their end."""


def read_journals(
    filesystem: FileSystem, directories: Sequence[str], pool: ChildPool, watch: RebuildWatch
) -> ReadJournals:
    """Read every journal file in these directories (``current``) in child processes. StorageError, OSError.

    Records before damage count, and the damage is reported. Replay decides whether a boot can continue with it.
    """
    ledgers: dict[LedgerId, JournaledLedger] = {}
    damages: list[str] = []
    tasks: list[ReadJournal] = []
    for directory in directories:
        tasks += _tasks_of(filesystem, os.path.abspath(directory), damages)
    watch.begin("reading journals", sum(filesystem.size(task.path) for task in tasks))
    order = {task.path: position for position, task in enumerate(tasks)}
    answers = sorted(pool.run(tasks, JournalFindings, watch.advance), key=lambda answer: order[answer[0].path])
    for _, found in answers:
        note_later(ledgers, found.ledgers)
        if found.damage is not None:
            damages.append(found.damage)
    return ReadJournals(ledgers, damages)


def new_rows(
    ledger_ids: Iterable[LedgerId],
    journaled: Mapping[LedgerId, JournaledLedger],
    kept: Mapping[LedgerId, LedgerRow],
    doubted: DoubtedLedgers,
) -> dict[LedgerId, LedgerRow]:
    """Rows of these ledgers and of all in ``kept``. Kept rows only gain the flags from ``doubted``."""
    rows: dict[LedgerId, LedgerRow] = {}
    for ledger_id in sorted({*ledger_ids, *kept}):
        row = kept.get(ledger_id)
        if row is None:
            row = row_with_journals(LedgerRow(is_fenced=True), journaled.get(ledger_id, JournaledLedger()))
        rows[ledger_id] = row.raised(**doubted.flags(ledger_id))
    return rows


def write_ledgers(
    open_index: OpenIndexStore, directory: str, rows: Mapping[LedgerId, LedgerRow], flags: int, watch: RebuildWatch
) -> None:
    """Write these rows (ascending by id) to a new ledgers database in an empty directory, and verify it.

    Keys have 8 bytes; Java's rebuild writes 16, which its own updates do not find (H12). StorageError, OSError.
    """
    encoded = [(_KEY.pack(ledger_id), encode_row(row)) for ledger_id, row in rows.items()]
    if flags:
        encoded.append(flags_row(flags))
    watch.begin("writing ledger rows", len(encoded))
    store = open_index(directory, create=True, strict=True)
    try:
        items = iter(encoded)
        while batch := list(itertools.islice(items, _BATCH_ROW_COUNT_MAX)):
            store.write(batch)
            watch.advance(len(batch))
        if list(store.scan(b"", b"\xff" * 9)) != encoded:
            raise IndexDamagedError(f"{directory}: the new index differs from what was written; try again")
    finally:
        store.close()


def _tasks_of(filesystem: FileSystem, directory: str, damages: list[str]) -> list[ReadJournal]:
    try:
        catalog = read_catalog(filesystem, directory)
    except JournalError as error:
        damages.append(str(error))
        catalog = NO_CATALOG
    journal_ids = list_journals(filesystem, directory)
    return [
        ReadJournal(
            path=os.path.join(directory, journal_file_name(journal_id)),
            is_newest=journal_id == journal_ids[-1],
            cataloged=catalog.find(journal_id),
        )
        for journal_id in journal_ids
    ]
