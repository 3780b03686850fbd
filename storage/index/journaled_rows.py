"""What the journals that are still there say about each ledger besides its entries: key, fence, explicit LAC.

They are read from their oldest records on, whatever the marks say. Java's index may know less: its Interleaved storage
brings a fence back by replay and never writes it to the ``.idx`` file (seen with 4.18.0), a RocksDB cannot be read here
at all, and an index of ours may be lost.

Old records may contradict each other, as the id of a deleted ledger can be used again. One rule, for all who read them:

- The last real key counts. A bookie journals no key that contradicts its row (storage section 5.2), so another key
  means that the ledger was deleted in between; a replay, which begins at the mark, never meets both.
- The last explicit LAC counts, as in a replay (storage section 3.11), and only if no key record comes after it. A
  ledger that gets entries begins with one, so the LAC may be that of a former ledger of this id, even under the same
  key. One that is too high would make a recovery close the ledger after its end; one that is too low, or none, makes
  it read on.
- A fence counts, however old it is. One too many stops a writer; one too few loses data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from storage.config import StorageConfig
from storage.errors import StorageError
from storage.filenames import current_directory, journal_file_name
from storage.ids import LedgerId
from storage.index.ledger_index import EXPLICIT_LAC_BYTES_MIN, LedgerRow, is_placeholder_key
from storage.journal.catalog import read_catalog
from storage.journal.format import JournalRecord, JournalRecordKind
from storage.journal.reader import JournalScan, list_journals
from storage.ports import FileSystem


class UnreadableJournal(msgspec.Struct, frozen=True):
    """A journal file that could not be read to its end."""

    path: str
    reason: str


class JournaledLedger(msgspec.Struct, frozen=True):
    """What records say of a ledger, by the rule above."""

    master_key: bytes = b""
    """Empty or all zero: no record has a real one."""
    is_fenced: bool = False
    explicit_lac: bytes | None = None
    """Body as it came, ``EXPLICIT_LAC_BYTES_MIN`` or more."""
    has_key_record: bool = False
    """Then nothing that stands before these records says which LAC is the ledger's."""


class JournaledLedgers(msgspec.Struct):
    """Every ledger that a journal has a record of."""

    ledgers: dict[LedgerId, JournaledLedger] = {}
    unreadable: list[UnreadableJournal] = []
    """Then a fence may be missing."""


def read_journaled_ledgers(fs: FileSystem, config: StorageConfig) -> JournaledLedgers:
    """Read all journal files from their start. What cannot be read is part of the result; OSError for a folder."""
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
                found.unreadable.append(UnreadableJournal(path, str(error)))
    return found


def note_record(ledgers: dict[LedgerId, JournaledLedger], record: JournalRecord) -> None:
    """Add a record to what those before it say."""
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
    """Add what ``later`` records say, of the next file for instance, to what those before them say."""
    for ledger_id, said in later.items():
        earlier = ledgers.get(ledger_id)
        ledgers[ledger_id] = said if earlier is None else _followed(earlier, said)


def row_with_journals(row: LedgerRow, journaled: JournaledLedger) -> LedgerRow:
    """What an index and the journals say of a ledger together.

    The index is that of the ledger which is there now. Where a journal names another key, its LAC, too, is another's.
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
"""What a record of another kind says: that there is such a ledger."""


def _followed(earlier: JournaledLedger, later: JournaledLedger) -> JournaledLedger:
    is_lac_outdated = later.has_key_record or later.explicit_lac is not None
    return JournaledLedger(
        master_key=earlier.master_key if is_placeholder_key(later.master_key) else later.master_key,
        is_fenced=earlier.is_fenced or later.is_fenced,
        explicit_lac=later.explicit_lac if is_lac_outdated else earlier.explicit_lac,
        has_key_record=earlier.has_key_record or later.has_key_record,
    )
