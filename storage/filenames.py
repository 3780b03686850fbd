"""Every name on disk, in one file.

The names of journals, entry logs, marks and cookies are Java BookKeeper's; those of the LevelDB databases, their seals,
the lock, the catalog of journals and the mark records are ours, chosen so that a Java bookie neither opens nor counts
them. Source: storage sections 1, 3.1, 3.9, 4.1, 4.9, 5.9 and 9.1.
"""

from __future__ import annotations

import os

from storage.ids import LEDGER_ID_MAX, EntryLogId, JournalId, LedgerId

CURRENT = "current"
"""Folder inside every configured journal, ledger and index directory that holds all the files below."""

VERSION = "VERSION"
"""The cookie."""
LAST_ID = "lastId"
"""Hint at the newest entry log id: lower-case hexadecimal and a newline."""
DIRTY = "DIRTY"
"""Empty file, present while a bookie serves: found at boot, it means an unclean shutdown."""
BOOKIE_STATUS = "BOOKIE_STATUS"
"""The mode that survives a restart."""
LOCK = "bkctl.lock"
"""Held by ``flock`` while a bkctl process owns the folder; contains its process id."""
JOURNAL_CATALOG = "bkctl.journals"
"""Beside the journals of a directory: which of them bkctl wrote."""

QUARANTINE = "bkctl.quarantine"
"""Beside the entry logs of a directory: those that the collector leaves alone because they are damaged."""
COLLECTED = "bkctl.collected"
"""Next to the entry logs of a directory: the fences of ledgers that exist and whose copy was collected."""
PLACE = "bkctl.place"
"""Which of a bookie's directories a folder is: its positions in the lists that decide where a ledger lives."""
MIGRATION = "bkctl.migration"
"""Old and new bookie id, present while ``bkctl cookie migrate`` changes the one into the other."""

LOCATIONS_DATABASE = "ldb-locations"
"""LevelDB folder: (ledger, entry) -> location. Not "locations", which is Java's RocksDB folder."""
LEDGERS_DATABASE = "ldb-ledgers"
"""LevelDB folder: ledger -> row. Not "ledgers", which is Java's RocksDB folder."""

JAVA_DATABASES = ("ledgers", "locations")
"""RocksDB folders of a Java bookie with DbLedgerStorage: its two indexes."""
JAVA_INDEX_ASIDE = "bkctl.java-index"
"""Folder in an index directory that holds the Java index which adoption moved aside; numbered from the second on."""
OWN_INDEX_ASIDE = "bkctl.handed-back"
"""Folder that holds what ``bkctl storage hand-back`` moved aside; numbered likewise."""
MIXED_LOGS = "bkctl.mixed-logs"
"""Beside entry logs of Interleaved storage that were adopted: they may hold ledgers of other directories."""
ADOPTING_SUFFIX = ".adopting"
"""Ends the name of a database that adoption is still filling."""
ADOPTION = "bkctl.adoption"
"""Note in the first ledger directory while adoption puts its indexes in the place of Java's."""
HANDING_BACK = "bkctl.handing-back"
"""Note in the first ledger directory while the folders are handed back to Java."""

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of a file that is written before it takes the place of another."""

KEPT_SUFFIX = ".kept"
"""Ends the name of the folder that holds a database's files while it is opened."""

REBUILT_SUFFIX = ".rebuilt"
"""Ends the name of the folder in which an index is built anew, and of the record that says that it is whole."""

REPLACED_SUFFIX = ".replaced"
"""Ends the name of an index folder whose place another one has taken: to be deleted."""

ENTRY_LOG_ID_MAX: EntryLogId = 2**31 - 1
"""Largest entry log id; the one behind it is 0."""

_JOURNAL_SUFFIX = ".txn"
_ENTRY_LOG_SUFFIX = ".log"
_COMPACTING_SUFFIX = ".log.compacting"
_COMPACTED_SUFFIX = "compacted"
_IDX_SUFFIX = ".idx"
_LAST_MARK = "lastMark"
_MARK_RECORD = "bkctl.mark"
_JOURNAL_ID_MAX: JournalId = 2**63 - 1


def current_directory(directory: str) -> str:
    """Folder of the files of a configured directory."""
    return os.path.join(directory, CURRENT)


def journal_file_name(journal_id: JournalId) -> str:
    """``<hex id>.txn``: lower case, no zeros in front (storage section 3.1)."""
    return f"{journal_id:x}{_JOURNAL_SUFFIX}"


def parse_journal_file_name(name: str) -> JournalId | None:
    """Id of a journal file, or None for any name that a bookie does not give to a journal.

    Java counts ``123.x.txn`` as journal 0x123 and dies on ``foo.txn``; neither can hold records that were acknowledged.
    """
    journal_id = _parse_hexadecimal(name.removesuffix(_JOURNAL_SUFFIX), _JOURNAL_ID_MAX)
    if journal_id is None or journal_file_name(journal_id) != name:
        return None
    return journal_id


def entry_log_file_name(log_id: EntryLogId) -> str:
    """``<hex id>.log``: lower case, no zeros in front (storage section 4.1)."""
    return f"{log_id:x}{_ENTRY_LOG_SUFFIX}"


def parse_entry_log_file_name(name: str) -> EntryLogId | None:
    """Id of an entry log, or None for any other name, leftovers of a compaction included."""
    log_id = _parse_hexadecimal(name.removesuffix(_ENTRY_LOG_SUFFIX), ENTRY_LOG_ID_MAX)
    if log_id is None or entry_log_file_name(log_id) != name:
        return None
    return log_id


def compacting_file_name(log_id: EntryLogId) -> str:
    """Temporary name of a log that a compaction is filling (storage section 4.9)."""
    return f"{log_id:x}{_COMPACTING_SUFFIX}"


def compacted_file_name(log_id: EntryLogId, source_log_id: EntryLogId) -> str:
    """Name of a finished log that is to replace the log ``source_log_id`` (storage section 4.9)."""
    return f"{log_id:x}{_ENTRY_LOG_SUFFIX}.{source_log_id:x}.{_COMPACTED_SUFFIX}"


def parse_compacting_file_name(name: str) -> EntryLogId | None:
    """Id of the log that a compaction is filling, or None for any other name."""
    log_id = _parse_hexadecimal(name.removesuffix(_COMPACTING_SUFFIX), ENTRY_LOG_ID_MAX)
    return log_id if log_id is not None and compacting_file_name(log_id) == name else None


def parse_compacted_file_name(name: str) -> tuple[EntryLogId, EntryLogId] | None:
    """Ids of a finished log and of the one it is to replace, both in hexadecimal (H7); None for any other name."""
    parts = name.split(".")
    if len(parts) != 4:
        return None
    log_id, source_log_id = (_parse_hexadecimal(part, ENTRY_LOG_ID_MAX) for part in (parts[0], parts[2]))
    if log_id is None or source_log_id is None or compacted_file_name(log_id, source_log_id) != name:
        return None
    return log_id, source_log_id


def parse_claimed_entry_log_id(name: str) -> EntryLogId | None:
    """Entry log id that a name claims: of a log, of a log being filled, or of a finished replacement."""
    stem, separator, rest = name.partition(_ENTRY_LOG_SUFFIX)
    log_id = _parse_hexadecimal(stem, ENTRY_LOG_ID_MAX)
    if log_id is None or not separator:
        return None
    if name in {entry_log_file_name(log_id), compacting_file_name(log_id)}:
        return log_id
    source_log_id = _parse_hexadecimal(rest.removeprefix(".").removesuffix(f".{_COMPACTED_SUFFIX}"), ENTRY_LOG_ID_MAX)
    if source_log_id is None or compacted_file_name(log_id, source_log_id) != name:
        return None
    return log_id


def idx_path(ledger_id: LedgerId) -> str:
    """Index file of a ledger in Java's Interleaved and Sorted storage, below ``current`` (storage section 1)."""
    return os.path.join(f"{ledger_id >> 8 & 0xFF:x}", f"{ledger_id & 0xFF:x}", f"{ledger_id:x}{_IDX_SUFFIX}")


def parse_idx_file_name(name: str) -> LedgerId | None:
    """Ledger of an index file, or None for any other name: ``.idx.rloc`` is a copy under way."""
    ledger_id = _parse_hexadecimal(name.removesuffix(_IDX_SUFFIX), LEDGER_ID_MAX)
    return ledger_id if ledger_id is not None and name == f"{ledger_id:x}{_IDX_SUFFIX}" else None


def is_idx_folder(name: str) -> bool:
    """Whether a folder of this name may hold index files, or folders of such."""
    number = _parse_hexadecimal(name, 0xFF)
    return number is not None and name == f"{number:x}"


def last_mark_file_name(journal_index: int, journal_count: int) -> str:
    """``lastMark`` with exactly one journal directory, else ``lastMark.<index>`` (storage section 3.9)."""
    return _name_of_journal(_LAST_MARK, journal_index, journal_count)


def mark_record_file_name(journal_index: int, journal_count: int) -> str:
    """File beside a last mark that says the same under a checksum; numbered like it."""
    return _name_of_journal(_MARK_RECORD, journal_index, journal_count)


def seal_file_name(database: str) -> str:
    """File beside a database which records how many batches it must hold."""
    return f"{database}.seal"


def _name_of_journal(name: str, journal_index: int, journal_count: int) -> str:
    if not 0 <= journal_index < journal_count:
        raise ValueError(f"journal index {journal_index} is not among {journal_count} journals")
    return name if journal_count == 1 else f"{name}.{journal_index}"


def _parse_hexadecimal(text: str, maximum: int) -> int | None:
    try:
        number = int(text, 16)
    except ValueError:
        return None
    return number if 0 <= number <= maximum else None
