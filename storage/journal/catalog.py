"""The catalog of a journal directory: which of its files this bookie wrote, and what must be in them.

A journal file alone cannot tell that it was cut, nor that a newer one is gone. So the writer names every file in the
catalog before anything in it may be acknowledged: at boot the file must be there, with its header and at least its
first preallocation step. When it goes on to the next file, it notes where the one before ended. A file that is not in
the catalog was written by a Java bookie, or a crash cut its creation off; nothing is demanded of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from storage.advice import LOST_DATA_ADVICE
from storage.checked_text import decode_checked_text, encode_checked_text
from storage.errors import JournalError
from storage.filenames import JOURNAL_CATALOG, journal_file_name
from storage.ids import JournalId, LogMark
from storage.ports import FileSystem

_FORMAT = "bkctl journals 1"
_CHECKSUMS = " checksums"
_LOOSE = " loose"
_LINE = re.compile(rf"([0-9a-f]+)\.txn step ([0-9]+) end ([0-9]+)({_CHECKSUMS})?({_LOOSE})?")


class CatalogedJournal(msgspec.Struct, frozen=True):
    """A file that this bookie wrote."""

    journal_id: JournalId
    step_bytes: int
    """By which it grows: it is never shorter, and holds no data behind the last whole step."""
    end_offset: int = 0
    """Where its last group ended, all of it synced; 0 while it is written, and after a stop or crash."""
    has_checksums: bool = False
    """Whether every group ends with a checksum (``group``)."""
    is_loose: bool = False
    """Whether groups were written before the one in front was synced, or do not end on sectors (version 4): a crash can
    then have torn more than the last one."""


class JournalCatalog(msgspec.Struct, frozen=True):
    """Files of one journal directory, ascending by id; those deleted since may still be listed."""

    journals: tuple[CatalogedJournal, ...]

    def find(self, journal_id: JournalId) -> CatalogedJournal | None:
        """What is known of a file; None if this bookie did not write it."""
        return next((journal for journal in self.journals if journal.journal_id == journal_id), None)

    def with_next(
        self, begun: CatalogedJournal, present: Iterable[JournalId], finished: LogMark | None
    ) -> JournalCatalog:
        """The catalog after a file was begun: without those no longer ``present``, ``finished`` at its end."""
        kept = {*present} - {begun.journal_id}
        journals = (journal for journal in self.journals if journal.journal_id in kept)
        return JournalCatalog(
            (
                *(
                    msgspec.structs.replace(journal, end_offset=finished.offset)
                    if finished is not None and finished.journal_id == journal.journal_id
                    else journal
                    for journal in journals
                ),
                begun,
            )
        )


NO_CATALOG: Final = JournalCatalog(())


def encode_catalog(catalog: JournalCatalog) -> bytes:
    """Text of the catalog file: one line for each journal file."""
    return encode_checked_text(_FORMAT, [_encode_line(journal) for journal in catalog.journals])


def decode_catalog(data: bytes) -> JournalCatalog | None:
    """The catalog, or None for bytes that ``encode_catalog`` does not make."""
    lines = decode_checked_text(_FORMAT, data)
    matches = [_LINE.fullmatch(line) for line in lines or ()]
    journals = tuple(_decode_line(match) for match in matches if match is not None)
    catalog = JournalCatalog(journals)
    return catalog if journals and encode_catalog(catalog) == data else None


def read_catalog(fs: FileSystem, directory: str) -> JournalCatalog:
    """Catalog of a journal directory (its ``current`` folder); ``NO_CATALOG`` if no bkctl bookie has written there.

    JournalError for a damaged one: it would hide that a journal is missing.
    """
    path = os.path.join(directory, JOURNAL_CATALOG)
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return NO_CATALOG
    catalog = decode_catalog(data)
    if catalog is None:
        raise JournalError(f"{path} is not a catalog of journals; {LOST_DATA_ADVICE}")
    return catalog


def write_catalog(fs: FileSystem, directory: str, catalog: JournalCatalog) -> None:
    """Replace the catalog durably; OSError."""
    fs.write_file_atomically(os.path.join(directory, JOURNAL_CATALOG), encode_catalog(catalog))


def _encode_line(journal: CatalogedJournal) -> str:
    words = (_CHECKSUMS if journal.has_checksums else "") + (_LOOSE if journal.is_loose else "")
    return f"{journal_file_name(journal.journal_id)} step {journal.step_bytes} end {journal.end_offset}{words}"


def _decode_line(match: re.Match[str]) -> CatalogedJournal:
    return CatalogedJournal(
        int(match[1], 16),
        int(match[2]),
        int(match[3]),
        has_checksums=match[4] is not None,
        is_loose=match[5] is not None,
    )
