"""The files DIRTY: in every ledger directory while a bookie serves. Found at boot, they mean an unclean shutdown.

Java's is empty, and so is ours as a rule. It holds a line where a crash may cost entries that were acknowledged: the
process did not journal or did not sync them, or a folder was lost with what was in it. The next process must know that
of the one before: its own settings may be others by then. Java looks at nothing but the name. Source: storage section
9.1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from storage.filenames import DIRTY
from storage.ports import FileSystem

_ENTRIES_AT_RISK = b"entries at risk\n"


class DirtyMarks(msgspec.Struct, frozen=True):
    """What the marks say of the process before. ``are_entries_at_risk``: the journal does not bring back all."""

    is_unclean: bool
    are_entries_at_risk: bool


def read_dirty_marks(filesystem: FileSystem, directories: Sequence[str]) -> DirtyMarks:
    """Look into all of these ``current`` folders; one mark is enough. What cannot be read counts as the worst."""
    contents: list[bytes] = []
    for directory in directories:
        try:
            contents.append(filesystem.read_file(os.path.join(directory, DIRTY)))
        except FileNotFoundError:
            continue
        except OSError:
            contents.append(_ENTRIES_AT_RISK)
    return DirtyMarks(bool(contents), any(contents))


def leave_dirty_marks(filesystem: FileSystem, directories: Sequence[str], *, are_entries_at_risk: bool) -> None:
    """Leave a mark in each of these folders, durably, in the place of one that is there; OSError."""
    for directory in directories:
        content = _ENTRIES_AT_RISK if are_entries_at_risk else b""
        filesystem.write_file_atomically(os.path.join(directory, DIRTY), content)


def remove_dirty_marks(filesystem: FileSystem, directories: Sequence[str]) -> None:
    """Everything is flushed: take the marks away. Only after a flush that succeeded (hazard H13); OSError."""
    for directory in directories:
        path = os.path.join(directory, DIRTY)
        if filesystem.exists(path):  # a boot that was cut short may not have left it
            filesystem.remove(path)
            filesystem.sync_directory(directory)
