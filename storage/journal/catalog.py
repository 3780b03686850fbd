"""The catalog of a journal directory: which of its files this bookie wrote, and what they must contain.

A journal file alone does not show that it was truncated, nor that a newer one is missing. So the writer lists every
file in the catalog before anything in it may be acknowledged: at boot the file must exist, with its header and at least
its first preallocation step. When the writer continues in the next file, it records where the previous one ended. A
file outside the catalog is from a Java bookie or an interrupted creation; there are no requirements for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from bkctl.storage.advice import LOST_DATA_ADVICE
from bkctl.storage.checked_text import decode_checked_text, encode_checked_text
from bkctl.storage.errors import JournalError
from bkctl.storage.filenames import JOURNAL_CATALOG, journal_file_name
from bkctl.storage.ids import JournalId, LogMark
from bkctl.storage.ports import FileSystem

_FORMAT = "bkctl journals 1"
_CHECKSUMS = " checksums"
_LOOSE = " loose"
_LINE = re.compile(rf"([0-9a-f]+)\.txn step ([0-9]+) end ([0-9]+)({_CHECKSUMS})?({_LOOSE})?")


class CatalogedJournal(msgspec.Struct, frozen=True):
    """A file that this bookie wrote."""

    journal_id: JournalId
    step_bytes: int
    """Preallocation step: the file is never shorter, and has no data after its last complete step."""
    end_offset: int = 0
    """End of its last group, all of it synced; 0 while the file is written, and after a stop or crash."""
    has_checksums: bool = False
    """Whether every group ends with a checksum (``group``)."""
    is_loose: bool = False
    """Whether groups were written before the previous one was synced, or do not end on sectors (version 4): a crash can
    then have torn more than the last one."""


class JournalCatalog(msgspec.Struct, frozen=True):
    """Files of one journal directory, ascending by id; deleted ones may still be listed."""

    journals: tuple[CatalogedJournal, ...]

    def find(self, journal_id: JournalId) -> CatalogedJournal | None:
        """The entry of a file; None if this bookie did not write it."""
        return next((journal for journal in self.journals if journal.journal_id == journal_id), None)

    def with_next(
        self, begun: CatalogedJournal, present: Iterable[JournalId], finished: LogMark | None
    ) -> JournalCatalog:
        """The catalog after a file was begun: without files not in ``present``, with the end of ``finished``."""
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
    """The catalog, or None for bytes that ``encode_catalog`` does not produce."""
    lines = decode_checked_text(_FORMAT, data)
    matches = [_LINE.fullmatch(line) for line in lines or ()]
    journals = tuple(_decode_line(match) for match in matches if match is not None)
    catalog = JournalCatalog(journals)
    return catalog if journals and encode_catalog(catalog) == data else None


def read_catalog(fs: FileSystem, directory: str) -> JournalCatalog:
    """Catalog of a journal directory (its ``current``); ``NO_CATALOG`` if no bkctl bookie has written there.

    JournalError for a damaged one, which could hide that a journal is missing.
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
