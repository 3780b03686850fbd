"""The file bkctl.metadata: how far the metadata store was when this bookie last looked, as proof that it only goes on.

Text with a checksum in ``current`` of every ledger and index directory::

    bkctl metadata 1
    bookie host:3181
    zxid 4294967312
    step 17
    chosen -1
    suspect -1
    written 18
    crc32 ...

Java has no such file, and no such proof.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from bkctl.storage.checked_text import decode_checked_text, encode_checked_text
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.file_copies import write_copies
from bkctl.storage.filenames import METADATA_SEEN
from bkctl.storage.ids import LedgerId
from bkctl.storage.ports import FileSystem

_FORMAT: Final = "bkctl metadata 1"
_NUMBERS: Final = ("zxid", "step", "chosen", "suspect", "written")


class MetadataSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What this bookie knows of the past of its metadata."""

    bookie_id: str
    """Its id at that time."""
    zxid: int = 0
    """Number of the last transaction that the metadata store had carried out."""
    step: int = 0
    """How often the bookie has replaced its own note in the metadata store; the note has the same number."""
    chosen: LedgerId = -1
    """Clients may choose ids up to this one themselves, so that no counter has given them; -1: none."""
    suspect: LedgerId = -1
    """Highest id of a ledger here that is missing from the metadata and that its counter has not given yet; -1: none.
    Only an operator removes the suspicion."""
    written: int = 0
    """How often the file was written."""


def encode_metadata_seen(seen: MetadataSeen) -> bytes:
    """Content of the file. The bookie id must be valid, so that it has no line break."""
    numbers = (f"{name} {getattr(seen, name)}" for name in _NUMBERS)
    return encode_checked_text(_FORMAT, [f"bookie {seen.bookie_id}", *numbers])


def decode_metadata_seen(data: bytes) -> MetadataSeen | None:
    """The record, or None if the bytes are not such a file."""
    words = [line.partition(" ")[2] for line in decode_checked_text(_FORMAT, data) or ()]
    try:
        bookie_id, *numbers = words
        seen = MetadataSeen(bookie_id=bookie_id, **dict(zip(_NUMBERS, map(int, numbers), strict=True)))
    except ValueError:
        return None
    return seen if encode_metadata_seen(seen) == data else None


def newest(copies: Mapping[str, MetadataSeen]) -> MetadataSeen | None:
    """The record that was written last; None if there is none."""
    return max(copies.values(), key=lambda seen: seen.written, default=None)


def read_copies(fs: FileSystem, directories: Sequence[str]) -> dict[str, MetadataSeen]:
    """The records of these ``current`` directories that can be read and are whole.

    If there are files and none of them is: CorruptFileError, OSError.
    """
    records: dict[str, MetadataSeen] = {}
    problem: CorruptFileError | OSError | None = None
    for directory in directories:
        path = os.path.join(directory, METADATA_SEEN)
        try:
            seen = decode_metadata_seen(fs.read_file(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = error
            continue
        if seen is None:
            problem = CorruptFileError(path, 0, "not a record of the metadata", "bkctl bookie gc confirm replaces it")
        else:
            records[directory] = seen
    if problem is not None and not records:
        raise problem
    return records


def write_metadata_seen(fs: FileSystem, directories: Sequence[str], seen: MetadataSeen) -> list[OSError]:
    """Write the record to each of these ``current`` directories; returns the errors. One copy is enough."""
    return write_copies(fs, directories, METADATA_SEEN, encode_metadata_seen(seen))
