"""The note that records how far a change from one kind of index to the other has come, and its initial state.

It is written when all new files are finished and durable, and removed when all of them are in place. A process that
finds it moves the rest into place, and never builds the files again. If a bookie ran in between, it wrote files that
the change does not include, and finishing would lose them; so the note records the newest file names.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bkctl.storage.advice import JAVA_INDEX_ADVICE, REBUILD_ADVICE
from bkctl.storage.checked_text import decode_checked_text, encode_checked_text
from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import AdoptionRefusedError, CorruptFileError
from bkctl.storage.filenames import ADOPTION, HANDING_BACK, current_directory
from bkctl.storage.index.java_index import find_java_index
from bkctl.storage.journal.reader import list_journals
from bkctl.storage.ports import FileSystem

_FORMAT = "bkctl change of index 1"


class ChangeNote(msgspec.Struct, frozen=True):
    """An unfinished change of index."""

    aside: str
    """Name of the directories that receive the old index, one in each ``current``."""
    newest: tuple[str, ...]
    """Newest entry log and journal of each ledger and journal directory when the change began."""


class ChangeUnderWay(NamedTuple):
    """An interrupted change: the path of its note, and the subcommand of ``bkctl storage`` that finishes it."""

    path: str
    command: str

    @property
    def advice(self) -> str:
        """How to finish it, as the end of a sentence."""
        return f"{self.path} records an unfinished change: run `bkctl storage {self.command}` to finish it"


def find_change_under_way(fs: FileSystem, config: StorageConfig) -> ChangeUnderWay | None:
    """The interrupted change in these directories, or None. OSError."""
    for name, command in ((ADOPTION, "adopt"), (HANDING_BACK, "hand-back")):
        if fs.exists(path := note_path(config, name)):
            return ChangeUnderWay(path, command)
    return None


def note_path(config: StorageConfig, name: str) -> str:
    """Path of the note with this name."""
    return os.path.join(current_directory(config.ledger_directories[0]), name)


def begin_note(fs: FileSystem, config: StorageConfig, aside: str) -> ChangeNote:
    """The note of a new change; ``aside`` gets a number if directories with that name exist already."""
    current_directories = [current_directory(directory) for directory in config.all_directories]
    names = itertools.chain([aside], (f"{aside}.{number}" for number in itertools.count(2)))
    free = next(
        name for name in names if not any(fs.exists(os.path.join(current, name)) for current in current_directories)
    )
    return ChangeNote(free, _newest(fs, config))


def read_note(fs: FileSystem, path: str) -> ChangeNote | None:
    """The note at ``path``, or None if there is none. CorruptFileError."""
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return None
    lines = decode_checked_text(_FORMAT, data)
    if not lines:
        raise CorruptFileError(path, 0, "not a note of a change of index")
    return ChangeNote(lines[0], tuple(lines[1:]))


def write_note(fs: FileSystem, path: str, note: ChangeNote) -> None:
    """Write it durably; OSError."""
    fs.write_file_atomically(path, encode_checked_text(_FORMAT, [note.aside, *note.newest]))


def remove_note(fs: FileSystem, path: str) -> None:
    """Remove the note when the change is done; OSError."""
    fs.remove(path)
    fs.sync_directory(os.path.dirname(path))


def require_nothing_written_since(fs: FileSystem, config: StorageConfig, path: str, note: ChangeNote) -> None:
    """AdoptionRefusedError if a bookie has run since the change began."""
    if note.newest != _newest(fs, config):
        raise AdoptionRefusedError(
            f"nothing was changed: {path} records an unfinished change, but a bookie has written since then: the "
            f"newest files were {', '.join(note.newest)}; what it wrote is only in its own index. Move back the "
            f"files in the directories {note.aside}, remove {path}, and start again"
        )


def move_aside(fs: FileSystem, directory: str, names: Sequence[str], aside: str) -> None:
    """Move these names in a ``current`` directory into its directory ``aside``; safe to repeat when interrupted."""
    present = [name for name in names if fs.exists(os.path.join(directory, name))]
    if not present:
        return
    target = os.path.join(directory, aside)
    fs.make_directories(target)
    for name in present:
        fs.rename(os.path.join(directory, name), os.path.join(target, name))
    fs.sync_directory(target)
    fs.sync_directory(directory)


def _newest(fs: FileSystem, config: StorageConfig) -> tuple[str, ...]:
    """Newest log of each ledger directory and newest journal of each journal directory, by position."""
    logs = (max(list_entry_logs(fs, current_directory(each)), default=-1) for each in config.ledger_directories)
    journals = (max(list_journals(fs, current_directory(each)), default=-1) for each in config.journal_directories)
    return (*(f"log {number:x}" for number in logs), *(f"journal {number:x}" for number in journals))


def advise_on_lost_index(fs: FileSystem, config: StorageConfig) -> str:
    """How to fix a lost index, as the end of a sentence. OSError.

    Next to an index of Java, ours must not be rebuilt from logs: it would be missing what only Java's index has, and
    after a hand-back Java's tools must be used.
    """
    change = find_change_under_way(fs, config)
    if change is not None:
        return change.advice
    directories = map(current_directory, config.effective_index_directories)
    is_java = any(find_java_index(fs, directory).names for directory in directories if fs.exists(directory))
    return JAVA_INDEX_ADVICE if is_java else REBUILD_ADVICE
