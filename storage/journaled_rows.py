"""What the journals that are still there say about each ledger besides its entries: key, fence, explicit LAC.

A fence is for good and a LAC never falls, so what any journal says of them is true however old it is, and whatever the
marks say. Java's index may know less: its Interleaved storage brings a fence back by replay and never writes it to the
``.idx`` file (seen with 4.18.0), and a RocksDB cannot be read here at all.
"""

from __future__ import annotations

import os

import msgspec

from storage.config import StorageConfig
from storage.errors import StorageError
from storage.filenames import current_directory, journal_file_name
from storage.ids import LedgerId
from storage.journal_catalog import read_catalog
from storage.journal_format import JournalRecord, JournalRecordKind
from storage.journal_reader import list_journals, scan_journal
from storage.ledger_index import EXPLICIT_LAC_BYTES_MIN, LedgerRow, explicit_lac_of, is_placeholder_key
from storage.ports import FileSystem


class UnreadableJournal(msgspec.Struct, frozen=True):
    """A journal file that could not be read to its end."""

    path: str
    reason: str


class JournaledRows(msgspec.Struct):
    """Every ledger that a journal has a record of."""

    rows: dict[LedgerId, LedgerRow] = {}
    """What the records say; nothing is told of by an empty key, no fence, no explicit LAC. Never in limbo."""
    unreadable: list[UnreadableJournal] = []
    """Then a fence may be missing from the rows."""


def read_journaled_rows(fs: FileSystem, config: StorageConfig) -> JournaledRows:
    """Read all journal files from their start. What cannot be read is part of the result; OSError for a folder."""
    found = JournaledRows()
    for directory in map(current_directory, config.journal_directories):
        journal_ids = list_journals(fs, directory)
        catalog = read_catalog(fs, directory)
        for journal_id in journal_ids:
            path = os.path.join(directory, journal_file_name(journal_id))
            scan = scan_journal(
                fs,
                path,
                is_newest=journal_id == journal_ids[-1],
                cataloged=None if catalog is None else catalog.find(journal_id),
            )
            try:
                for record in scan:
                    _note(found.rows, record)
            except (StorageError, OSError) as error:
                found.unreadable.append(UnreadableJournal(path, str(error)))
    return found


def merged_rows(one: LedgerRow, other: LedgerRow) -> LedgerRow:
    """All that two sources know of a ledger; where their keys differ, that of ``one``."""
    lacs = [row.explicit_lac for row in (one, other) if row.explicit_lac is not None]
    return LedgerRow(
        master_key=other.master_key if is_placeholder_key(one.master_key) else one.master_key,
        is_fenced=one.is_fenced or other.is_fenced,
        is_limbo=one.is_limbo or other.is_limbo,
        explicit_lac=max(lacs, key=explicit_lac_of, default=None),
    )


def _note(rows: dict[LedgerId, LedgerRow], record: JournalRecord) -> None:
    row = rows.get(record.ledger_id)
    if row is None:
        row = rows[record.ledger_id] = LedgerRow()
    said = LedgerRow()
    if record.kind is JournalRecordKind.LEDGER_KEY:
        said = LedgerRow(master_key=record.payload)
    elif record.kind is JournalRecordKind.FENCE:
        said = LedgerRow(is_fenced=True)
    elif record.kind is JournalRecordKind.EXPLICIT_LAC and len(record.payload) >= EXPLICIT_LAC_BYTES_MIN:
        said = LedgerRow(explicit_lac=record.payload)
    else:
        return
    rows[record.ledger_id] = merged_rows(row, said)
