"""The DIRTY files: in every ledger directory while a bookie serves. At boot they indicate an unclean shutdown.

Java's file is empty, and ours usually too. Ours has one line if a crash may lose acknowledged entries: the process did
not journal them, did not sync them, or a directory was lost with its data. The next process needs to know this,
because its settings may differ from those of the crashed one. Java only checks whether the file exists.
Source: storage section 9.1.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from bkctl.storage.config import JournalConfig, StorageConfig
from bkctl.storage.filenames import (
    DIRTY,
    current_directory,
    last_mark_file_name,
    mark_record_file_name,
    parse_journal_file_name,
)
from bkctl.storage.ports import FileSystem

_MACHINE_BOOT: Final = "/proc/sys/kernel/random/boot_id"


class CrashRisk(enum.Enum):
    """The event that makes a process lose acknowledged entries; the value is the line in the mark."""

    NONE = ""
    POWER_CUT = "entries are lost if the machine stops"
    """Written but not synced: the kernel has them as long as the machine runs."""
    CRASH = "entries are lost if the process ends"
    """Not journaled, or already lost."""


class DirtyMarks(msgspec.Struct, frozen=True):
    """State of the previous process. ``are_entries_at_risk``: replay of the journal may not restore all entries."""

    is_unclean: bool
    are_entries_at_risk: bool


def crash_risk(journal: JournalConfig) -> CrashRisk:
    """Risk of a bookie with these journal settings."""
    if not journal.is_data_written:
        return CrashRisk.CRASH
    return CrashRisk.NONE if journal.is_data_synced else CrashRisk.POWER_CUT


def read_machine_boot(filesystem: FileSystem) -> str:
    """The kernel's boot id; empty if it is not available."""
    try:
        return filesystem.read_file(_MACHINE_BOOT).decode("ascii", "replace").strip()
    except OSError:
        return ""


def read_dirty_marks(filesystem: FileSystem, directories: Sequence[str], machine_boot: str) -> DirtyMarks:
    """Read the marks in these ``current`` directories; one is enough. An unreadable mark counts as ``CRASH``.

    ``machine_boot``: the kernel's boot id; empty if it is not known.
    """
    contents: list[bytes] = []
    for directory in directories:
        try:
            contents.append(filesystem.read_file(os.path.join(directory, DIRTY)))
        except FileNotFoundError:
            continue
        except OSError:
            contents.append(_encode(CrashRisk.CRASH, ""))
    survived = {_encode(CrashRisk.NONE, "")}
    if machine_boot:
        survived.add(_encode(CrashRisk.POWER_CUT, machine_boot))
    return DirtyMarks(bool(contents), any(content not in survived for content in contents))


def leave_dirty_marks(filesystem: FileSystem, directories: Sequence[str], risk: CrashRisk, machine_boot: str) -> None:
    """Write a mark to each of these directories, durably, replacing an existing one; OSError."""
    for directory in directories:
        filesystem.write_file_atomically(os.path.join(directory, DIRTY), _encode(risk, machine_boot))


def remove_dirty_marks(filesystem: FileSystem, directories: Sequence[str]) -> None:
    """Remove the marks. Call this only after everything was flushed successfully (hazard H13). OSError."""
    for directory in directories:
        path = os.path.join(directory, DIRTY)
        if filesystem.exists(path):  # an interrupted boot may not have written it
            filesystem.remove(path)
            filesystem.sync_directory(directory)


def forget_marks_of_lost_journals(filesystem: FileSystem, config: StorageConfig) -> None:
    """Remove the log marks of journals whose directory has no journal files, so that a new journal can start; OSError.

    Only for a boot that handles the loss. Any other boot fails if a mark points to a missing journal.
    """
    journal_count = len(config.journal_directories)
    for index, directory in enumerate(config.journal_directories):
        names = filesystem.list_directory(current_directory(directory))
        if any(parse_journal_file_name(name) is not None for name in names):
            continue
        # Remove the record last, because replay uses it.
        for name in (last_mark_file_name(index, journal_count), mark_record_file_name(index, journal_count)):
            for current in map(current_directory, config.ledger_directories):
                if filesystem.exists(os.path.join(current, name)):
                    filesystem.remove(os.path.join(current, name))
                    filesystem.sync_directory(current)


def _encode(risk: CrashRisk, machine_boot: str) -> bytes:
    if risk is CrashRisk.NONE:
        return b""
    return f"{risk.value}\n{machine_boot}\n".encode()
