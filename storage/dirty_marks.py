"""The files DIRTY: in every ledger directory while a bookie serves. Found at boot, they mean an unclean shutdown.

Java's is empty, and so is ours as a rule. It holds a line where a crash may cost entries that were acknowledged: the
process did not journal them, did not sync them, or a folder was lost with what was in it. The next process must know
that of the one before, for its own settings may be others by then. Java looks at nothing but the name. Source: storage
section 9.1.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from storage.config import JournalConfig, StorageConfig
from storage.filenames import (
    DIRTY,
    current_directory,
    last_mark_file_name,
    mark_record_file_name,
    parse_journal_file_name,
)
from storage.ports import FileSystem

_MACHINE_BOOT: Final = "/proc/sys/kernel/random/boot_id"


class CrashRisk(enum.Enum):
    """What it takes for a process to lose entries that it acknowledged; the value is the line in the mark."""

    NONE = ""
    POWER_CUT = "entries are lost if the machine stops"
    """Written and not synced: as long as the machine runs the kernel has them."""
    CRASH = "entries are lost if the process ends"
    """Not even journaled; or lost already."""


class DirtyMarks(msgspec.Struct, frozen=True):
    """What the marks say of the process before. ``are_entries_at_risk``: the journal may not bring back all."""

    is_unclean: bool
    are_entries_at_risk: bool


def crash_risk(journal: JournalConfig) -> CrashRisk:
    """What a bookie with these journals risks."""
    if not journal.is_data_written:
        return CrashRisk.CRASH
    return CrashRisk.NONE if journal.is_data_synced else CrashRisk.POWER_CUT


def read_machine_boot(filesystem: FileSystem) -> str:
    """Which run of the kernel this is; empty where it does not tell."""
    try:
        return filesystem.read_file(_MACHINE_BOOT).decode("ascii", "replace").strip()
    except OSError:
        return ""


def read_dirty_marks(filesystem: FileSystem, directories: Sequence[str], machine_boot: str) -> DirtyMarks:
    """Look into all of these ``current`` folders; one mark is enough. What cannot be read counts as the worst.

    ``machine_boot``: names this run of the machine's kernel; empty if that is not known.
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
    """Leave a mark in each of these folders, durably, in the place of one that is there; OSError."""
    for directory in directories:
        filesystem.write_file_atomically(os.path.join(directory, DIRTY), _encode(risk, machine_boot))


def remove_dirty_marks(filesystem: FileSystem, directories: Sequence[str]) -> None:
    """Everything is flushed: take the marks away. Only after a flush that succeeded (hazard H13); OSError."""
    for directory in directories:
        path = os.path.join(directory, DIRTY)
        if filesystem.exists(path):  # a boot that was cut short may not have left it
            filesystem.remove(path)
            filesystem.sync_directory(directory)


def forget_marks_of_lost_journals(filesystem: FileSystem, config: StorageConfig) -> None:
    """Remove the log marks of journals whose folder holds no journal any more, so that a new one can begin; OSError.

    For a boot that knows of the loss: a mark into a journal that is not there stops every other one.
    """
    journal_count = len(config.journal_directories)
    for index, directory in enumerate(config.journal_directories):
        names = filesystem.list_directory(current_directory(directory))
        if any(parse_journal_file_name(name) is not None for name in names):
            continue
        # The record goes last: it is what a replay believes.
        for name in (last_mark_file_name(index, journal_count), mark_record_file_name(index, journal_count)):
            for folder in map(current_directory, config.ledger_directories):
                if filesystem.exists(os.path.join(folder, name)):
                    filesystem.remove(os.path.join(folder, name))
                    filesystem.sync_directory(folder)


def _encode(risk: CrashRisk, machine_boot: str) -> bytes:
    if risk is CrashRisk.NONE:
        return b""
    return f"{risk.value}\n{machine_boot}\n".encode()
