"""Describes the files in a bookie's directories by their names. Pure. Source: storage sections 1 to 4 and 9.

Some names are harmless to us but not to a Java bookie or its tools: a journal directory must contain no other
``*.txn`` files, a ledger directory no other ``*.log`` files.
"""

from __future__ import annotations

import enum
import re

import msgspec

from bkctl.storage import filenames


class DirectoryRole(enum.StrEnum):
    """Role of a directory; a directory may have several."""

    JOURNAL = "journal"
    LEDGER = "ledger"
    INDEX = "index"


class FileKind(msgspec.Struct, frozen=True):
    """Description of a file."""

    kind: str
    meaning: str
    trouble: str | None = None
    """The problem it causes for a Java bookie or its tools, or an unfinished operation that it belongs to."""


_FIXED = {
    filenames.VERSION: FileKind("cookie", "cookie"),
    filenames.LAST_ID: FileKind("hint", "newest entry log id"),
    filenames.DIRTY: FileKind("marker", "the bookie is running, or did not shut down cleanly"),
    filenames.BOOKIE_STATUS: FileKind("status", "read-only or writable, kept over restarts"),
    filenames.METADATA_SEEN: FileKind("status", "how far the metadata store was when the bookie last looked"),
    filenames.OPERATOR_MODE: FileKind("status", "the mode that an operator set while the bookie ran, and why"),
    filenames.LOCK: FileKind("lock", "held by a bkctl process"),
    filenames.JOURNAL_CATALOG: FileKind("record", "list of the journals that bkctl wrote, and where they end"),
    filenames.PLACE: FileKind("record", "position of this directory in the settings"),
    filenames.QUARANTINE: FileKind("record", "entry logs that are known to be damaged"),
    filenames.COLLECTED: FileKind("record", "fences of existing ledgers whose copy was collected here"),
    filenames.MIXED_LOGS: FileKind("record", "entry logs that may have ledgers of other directories (adopted)"),
    filenames.MIGRATION: FileKind(
        "note", "an unfinished change of the bookie id", "finish it with bkctl cookie migrate"
    ),
    filenames.FORMATTING: FileKind("note", "an unfinished format", "finish it with bkctl bookie format"),
    filenames.ADOPTION: FileKind("note", "an unfinished adoption", "finish it with bkctl storage adopt"),
    filenames.HANDING_BACK: FileKind("note", "an unfinished hand-back", "finish it with bkctl storage hand-back"),
    filenames.JAVA_BLOCK: FileKind("block", "keeps Java bookies from starting here before bkctl storage hand-back"),
    filenames.LEDGERS_DATABASE: FileKind("index", "ledger rows: keys, fences, LACs (LevelDB)"),
    filenames.LOCATIONS_DATABASE: FileKind("index", "location of each entry (LevelDB)"),
    filenames.seal_file_name(filenames.LEDGERS_DATABASE): FileKind("seal", "checksums of the ledger rows"),
    filenames.seal_file_name(filenames.LOCATIONS_DATABASE): FileKind("seal", "checksums of the locations"),
    "metadata-cache": FileKind("java cache", "collector's cache of a Java bookie (RocksDB); not used here"),
}
_BESIDE_JAVA_INDEX = "a Java bookie would use it: convert it with bkctl storage adopt"
_MARK = re.compile(r"lastMark(\.[0-9]+)?")
_MARK_RECORD = re.compile(r"bkctl\.mark(\.[0-9]+)?")
_JAVA_DATABASE_COPY = re.compile(r"(ledgers|locations)\.(BACKUP|PREV|TEMP|backup).*")
_UNKNOWN = FileKind("unknown", "not a file of a bookie")


def describe_file(roles: frozenset[DirectoryRole], name: str) -> FileKind:
    """Describe the file or directory ``name`` in a ``current`` directory with these roles."""
    fixed = _FIXED.get(name)
    found = (fixed, _journal(roles, name), _entry_log(roles, name), _java_index(name), _aside(name), _mark(name))
    return next((kind for kind in found if kind is not None), None) or _leftover(name)


def _journal(roles: frozenset[DirectoryRole], name: str) -> FileKind | None:
    if filenames.parse_journal_file_name(name) is not None:
        is_here = DirectoryRole.JOURNAL in roles
        return FileKind("journal", "journal (write-ahead log)", None if is_here else "no journal directory: not read")
    if not name.endswith(".txn"):
        return None
    return FileKind(
        "stray", "not a journal, but named like one", "a Java bookie does not start, or treats it as a journal"
    )


def _entry_log(roles: frozenset[DirectoryRole], name: str) -> FileKind | None:
    if filenames.parse_entry_log_file_name(name) is not None:
        is_here = DirectoryRole.LEDGER in roles
        return FileKind("entry log", "entries of many ledgers", None if is_here else "no ledger directory: not read")
    if filenames.parse_claimed_entry_log_id(name) is not None:
        return FileKind("compaction", "an unfinished compaction's entry log; the collector finishes or deletes it")
    if not name.endswith((".log", ".log.compacting", ".compacted")):
        return None
    return FileKind("stray", "not an entry log, only named like one", "it breaks Java's tools and its collector")


def _java_index(name: str) -> FileKind | None:
    if name in filenames.JAVA_DATABASES:
        return FileKind("java index", "index of a Java bookie with DbLedgerStorage (RocksDB)", _BESIDE_JAVA_INDEX)
    if _JAVA_DATABASE_COPY.fullmatch(name):
        return FileKind("java copy", "an older index of a Java bookie, left by its tools")
    if filenames.parse_idx_file_name(name) is not None:
        return FileKind("java index", "index of one ledger (Interleaved or Sorted storage)", _BESIDE_JAVA_INDEX)
    if name.endswith(".idx.rloc"):
        return FileKind("java leftover", "an index file that a Java bookie was moving")
    return None


def _mark(name: str) -> FileKind | None:
    if _MARK.fullmatch(name):
        return FileKind("mark", "where replay of a journal starts, as Java reads it")
    if _MARK_RECORD.fullmatch(name):
        return FileKind("mark", "where replay of a journal starts, with a checksum")
    return None


def _leftover(name: str) -> FileKind:
    if name.startswith("ldb-"):
        return FileKind("leftover", "an index that was being opened, rebuilt or adopted; the next run cleans it up")
    if name.endswith(filenames.TEMPORARY_SUFFIX):
        return FileKind("temporary", "a file that was being written when its writer was killed")
    return _UNKNOWN


def _aside(name: str) -> FileKind | None:
    if name.startswith(filenames.JAVA_INDEX_ASIDE):
        return FileKind("kept", "the Java index before its adoption; no longer needed")
    if name.startswith(filenames.OWN_INDEX_ASIDE):
        return FileKind("kept", "bkctl's index before it was handed back; no longer needed")
    return None
