"""All file names on disk.

Journals, entry logs, marks and cookies have the names that Java BookKeeper uses. The names of LevelDB databases, their
seals, the lock, the journal catalog and the mark records are ours. They are chosen so that a Java bookie ignores these
files. Source: storage sections 1, 3.1, 3.9, 4.1, 4.9, 5.9 and 9.1.
"""

from __future__ import annotations

import os

from bkctl.storage.ids import LEDGER_ID_MAX, EntryLogId, JournalId, LedgerId

CURRENT = "current"
"""Subdirectory of every configured journal, ledger and index directory; contains all files below."""

VERSION = "VERSION"
"""The cookie."""
LAST_ID = "lastId"
"""Hint of the newest entry log id: lower-case hexadecimal and a newline."""
DIRTY = "DIRTY"
"""File that exists while a bookie serves; at boot it indicates an unclean shutdown. See ``dirty_marks``."""
BOOKIE_STATUS = "BOOKIE_STATUS"
"""The mode that survives a restart."""
OPERATOR_MODE = "bkctl.mode"
"""The mode that an operator set while the bookie ran, and why. See ``operator_mode``."""
METADATA_SEEN = "bkctl.metadata"
"""How far the metadata store was when the bookie last looked. See ``metadata_seen``."""
LOCK = "bkctl.lock"
"""Locked with ``flock`` while a bkctl process uses the directory; contains its process id."""
JOURNAL_CATALOG = "bkctl.journals"
"""Next to the journals of a directory: the list of those that bkctl wrote."""

QUARANTINE = "bkctl.quarantine"
"""Next to the entry logs of a directory: the damaged logs, which the collector skips."""
COLLECTED = "bkctl.collected"
"""Next to the entry logs of a directory: the fences of existing ledgers whose copy was collected."""
PLACE = "bkctl.place"
"""Positions of this directory in the configured lists, which decide where a ledger is stored."""
MIGRATION = "bkctl.migration"
"""Old and new bookie id; exists while ``bkctl cookie migrate`` changes the id."""

ADMIN_SOCKET = "bkctl.admin.sock"
"""Unix socket of the admin interface; in the first ledger directory itself, while the bookie runs."""
FORMATTING = "bkctl.formatting"
"""The former VERSION file of a directory that ``bkctl bookie format`` is emptying; no bookie starts here."""

LOCATIONS_DATABASE = "ldb-locations"
"""LevelDB directory: (ledger, entry) -> location. Not "locations", which is Java's RocksDB directory."""
LEDGERS_DATABASE = "ldb-ledgers"
"""LevelDB directory: ledger -> row. Not "ledgers", which is Java's RocksDB directory."""
DATABASES = (LEDGERS_DATABASE, LOCATIONS_DATABASE)

JAVA_DATABASES = ("ledgers", "locations")
"""RocksDB directories of a Java bookie with DbLedgerStorage: its two indexes."""
JAVA_BLOCK = "run-bkctl-storage-hand-back-first.txn"
"""Next to the journals of a bookie of ours: every Java bookie fails to start, and names this file. It would find no
index, deny every entry, and delete the entry logs."""
JAVA_INDEX_ASIDE = "bkctl.java-index"
"""Directory for a Java index that adoption moved aside; numbered from the second on."""
OWN_INDEX_ASIDE = "bkctl.handed-back"
"""Directory for files that ``bkctl storage hand-back`` moved aside; numbered likewise."""
MIXED_LOGS = "bkctl.mixed-logs"
"""Next to adopted entry logs of Interleaved storage, which may have ledgers of other directories."""
ADOPTING_SUFFIX = ".adopting"
"""Suffix of a database that adoption is still filling."""
ADOPTION = "bkctl.adoption"
"""Note in the first ledger directory while adoption replaces Java's indexes."""
HANDING_BACK = "bkctl.handing-back"
"""Note in the first ledger directory during a hand-back to Java."""

TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that is written completely before it replaces another."""

KEPT_SUFFIX = ".kept"
"""Suffix of the directory that keeps a database's files while the database is being opened."""

REBUILT_SUFFIX = ".rebuilt"
"""Suffix of the directory where an index is rebuilt, and of the record that marks it complete."""

REPLACED_SUFFIX = ".replaced"
"""Suffix of an index directory that was replaced and is to be deleted."""

ENTRY_LOG_ID_MAX: EntryLogId = 2**31 - 1
"""Largest entry log id; the next one is 0."""

_JOURNAL_SUFFIX = ".txn"
_ENTRY_LOG_SUFFIX = ".log"
_COMPACTING_SUFFIX = ".log.compacting"
_COMPACTED_SUFFIX = "compacted"
_IDX_SUFFIX = ".idx"
_LAST_MARK = "lastMark"
_MARK_RECORD = "bkctl.mark"
_JOURNAL_ID_MAX: JournalId = 2**63 - 1


def current_directory(directory: str) -> str:
    """Subdirectory with the files of a configured directory."""
    return os.path.join(directory, CURRENT)


def journal_file_name(journal_id: JournalId) -> str:
    """``<hex id>.txn``: lower case, no leading zeros (storage section 3.1)."""
    return f"{journal_id:x}{_JOURNAL_SUFFIX}"


def parse_journal_file_name(name: str) -> JournalId | None:
    """Id of a journal file, or None for a name that no bookie gives to a journal.

    Java treats ``123.x.txn`` as journal 0x123 and crashes on ``foo.txn``. Neither can have acknowledged records.
    """
    journal_id = _parse_hexadecimal(name.removesuffix(_JOURNAL_SUFFIX), _JOURNAL_ID_MAX)
    if journal_id is None or journal_file_name(journal_id) != name:
        return None
    return journal_id


def entry_log_file_name(log_id: EntryLogId) -> str:
    """``<hex id>.log``: lower case, no leading zeros (storage section 4.1)."""
    return f"{log_id:x}{_ENTRY_LOG_SUFFIX}"


def parse_entry_log_file_name(name: str) -> EntryLogId | None:
    """Id of an entry log, or None for any other name, including leftovers of a compaction."""
    log_id = _parse_hexadecimal(name.removesuffix(_ENTRY_LOG_SUFFIX), ENTRY_LOG_ID_MAX)
    if log_id is None or entry_log_file_name(log_id) != name:
        return None
    return log_id


def compacting_file_name(log_id: EntryLogId) -> str:
    """Temporary name of a log that a compaction is filling (storage section 4.9)."""
    return f"{log_id:x}{_COMPACTING_SUFFIX}"


def compacted_file_name(log_id: EntryLogId, source_log_id: EntryLogId) -> str:
    """Name of a finished log that will replace the log ``source_log_id`` (storage section 4.9)."""
    return f"{log_id:x}{_ENTRY_LOG_SUFFIX}.{source_log_id:x}.{_COMPACTED_SUFFIX}"


def parse_compacting_file_name(name: str) -> EntryLogId | None:
    """Id of the log that a compaction is filling, or None for any other name."""
    log_id = _parse_hexadecimal(name.removesuffix(_COMPACTING_SUFFIX), ENTRY_LOG_ID_MAX)
    return log_id if log_id is not None and compacting_file_name(log_id) == name else None


def parse_compacted_file_name(name: str) -> tuple[EntryLogId, EntryLogId] | None:
    """Ids of a finished log and of the one it will replace, both in hexadecimal (H7); None for any other name."""
    parts = name.split(".")
    if len(parts) != 4:
        return None
    log_id, source_log_id = (_parse_hexadecimal(part, ENTRY_LOG_ID_MAX) for part in (parts[0], parts[2]))
    if log_id is None or source_log_id is None or compacted_file_name(log_id, source_log_id) != name:
        return None
    return log_id, source_log_id


def parse_claimed_entry_log_id(name: str) -> EntryLogId | None:
    """Entry log id in the name of a log, of a log being filled, or of a finished replacement."""
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
    """Ledger of an index file, or None for any other name, including unfinished copies (``.idx.rloc``)."""
    ledger_id = _parse_hexadecimal(name.removesuffix(_IDX_SUFFIX), LEDGER_ID_MAX)
    return ledger_id if ledger_id is not None and name == f"{ledger_id:x}{_IDX_SUFFIX}" else None


def is_idx_directory(name: str) -> bool:
    """Whether a directory with this name may contain index files, directly or in subdirectories."""
    number = _parse_hexadecimal(name, 0xFF)
    return number is not None and name == f"{number:x}"


def last_mark_file_name(journal_index: int, journal_count: int) -> str:
    """``lastMark`` if there is one journal directory, otherwise ``lastMark.<index>`` (storage section 3.9)."""
    return _name_of_journal(_LAST_MARK, journal_index, journal_count)


def mark_record_file_name(journal_index: int, journal_count: int) -> str:
    """File next to a last mark with the same position and a checksum; numbered like it."""
    return _name_of_journal(_MARK_RECORD, journal_index, journal_count)


def seal_file_name(database: str) -> str:
    """File next to a database that records how many batches it must contain."""
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
