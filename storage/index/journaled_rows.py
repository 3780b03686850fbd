"""The key, fence and explicit LAC of each ledger according to the journals that still exist.

All records are read from the oldest on, whatever the marks are. Java's index may know less: its Interleaved storage
restores a fence by replay and never writes it to the ``.idx`` file (seen with 4.18.0), a RocksDB cannot be read here,
and an index of ours may be lost.

Old records may contradict each other, as the id of a deleted ledger can be used again. All readers apply this rule:

- The last real key counts. A bookie journals no key that contradicts its row (storage section 5.2), so another key
  means that the ledger was deleted in between; a replay, which begins at the mark, never finds both.
- The last explicit LAC counts, as in a replay (storage section 3.11), and only if no key record follows it. A ledger
  that gets entries begins with a key record, so the LAC may be that of an earlier ledger with this id, even under the
  same key. One that is too high would make recovery close the ledger after its end; after one that is too low, or none,
  recovery reads on.
- A fence counts, however old it is. One too many stops a writer; one too few loses data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from bkctl.storage.config import StorageConfig
from bkctl.storage.errors import StorageError
from bkctl.storage.filenames import current_directory, journal_file_name
from bkctl.storage.ids import LedgerId
from bkctl.storage.index.ledger_index import EXPLICIT_LAC_BYTES_MIN, LedgerRow, is_placeholder_key
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.format import JournalRecord, JournalRecordKind
from bkctl.storage.journal.reader import JournalScan, list_journals
from bkctl.storage.ports import FileSystem


class Unreadable(msgspec.Struct, frozen=True):
    """A file that could not be read, or not to its end."""

    path: str
    reason: str


class JournaledLedger(msgspec.Struct, frozen=True):
    """State of a ledger according to its records, by the rule above."""

    master_key: bytes = b""
    """Empty or all zero if no record has a real key."""
    is_fenced: bool = False
    explicit_lac: bytes | None = None
    """Body of the request, ``EXPLICIT_LAC_BYTES_MIN`` or more."""
    has_key_record: bool = False
    """If True, nothing before these records determines the ledger's LAC."""


class JournaledLedgers(msgspec.Struct):
    """All ledgers that have a record in a journal."""

    ledgers: dict[LedgerId, JournaledLedger] = {}
    unreadable: list[Unreadable] = []
    """If there are any, a fence may be missing."""


def read_journaled_ledgers(fs: FileSystem, config: StorageConfig) -> JournaledLedgers:
    """Read all journal files from their start. The result lists unreadable files; OSError for a directory."""
    found = JournaledLedgers()
    for directory in map(current_directory, config.journal_directories):
        journal_ids = list_journals(fs, directory)
        catalog = read_catalog(fs, directory)
        for journal_id in journal_ids:
            path = os.path.join(directory, journal_file_name(journal_id))
            scan = JournalScan(
                fs,
                path,
                is_newest=journal_id == journal_ids[-1],
                cataloged=catalog.find(journal_id),
            )
            try:
                for record in scan:
                    note_record(found.ledgers, record)
            except (StorageError, OSError) as error:
                found.unreadable.append(Unreadable(path, str(error)))
    return found


def note_record(ledgers: dict[LedgerId, JournaledLedger], record: JournalRecord) -> None:
    """Apply a record to the state after the records before it."""
    said = _SAID_BY_OTHERS
    if record.kind is JournalRecordKind.LEDGER_KEY:
        said = JournaledLedger(master_key=record.payload, has_key_record=True)
    elif record.kind is JournalRecordKind.FENCE:
        said = JournaledLedger(is_fenced=True)
    elif record.kind is JournalRecordKind.EXPLICIT_LAC and len(record.payload) >= EXPLICIT_LAC_BYTES_MIN:
        said = JournaledLedger(explicit_lac=record.payload)
    elif record.ledger_id in ledgers:
        return
    note_later(ledgers, {record.ledger_id: said})


def note_later(ledgers: dict[LedgerId, JournaledLedger], later: Mapping[LedgerId, JournaledLedger]) -> None:
    """Apply the state of ``later`` records, for instance of the next file, to that of the records before them."""
    for ledger_id, said in later.items():
        earlier = ledgers.get(ledger_id)
        ledgers[ledger_id] = said if earlier is None else _followed(earlier, said)


def row_with_journals(row: LedgerRow, journaled: JournaledLedger) -> LedgerRow:
    """The row of a ledger from its index row and its journal records.

    The index describes the ledger that exists now. If a journal has another key, its LAC is of an earlier ledger, too.
    """
    is_nameless = is_placeholder_key(row.master_key)
    is_same = is_nameless or is_placeholder_key(journaled.master_key) or journaled.master_key == row.master_key
    return msgspec.structs.replace(
        row,
        master_key=journaled.master_key if is_nameless else row.master_key,
        is_fenced=row.is_fenced or journaled.is_fenced,
        explicit_lac=(journaled.explicit_lac if is_same else None) or row.explicit_lac,
    )


_SAID_BY_OTHERS = JournaledLedger()
"""State from a record of another kind: it only shows that the ledger exists."""


def _followed(earlier: JournaledLedger, later: JournaledLedger) -> JournaledLedger:
    is_lac_outdated = later.has_key_record or later.explicit_lac is not None
    return JournaledLedger(
        master_key=earlier.master_key if is_placeholder_key(later.master_key) else later.master_key,
        is_fenced=earlier.is_fenced or later.is_fenced,
        explicit_lac=later.explicit_lac if is_lac_outdated else earlier.explicit_lac,
        has_key_record=earlier.has_key_record or later.has_key_record,
    )
