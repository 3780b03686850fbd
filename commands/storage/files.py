"""``bkctl storage files``: every file of a bookie, with its size and purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.own_storage import OwnStorage, open_own_storage
from bkctl.storage.filenames import current_directory
from bkctl.storage.offline.file_kinds import DirectoryRole, FileKind, describe_file
from bkctl.storage.words import size

_TABLE = Table(
    "StorageFileList",
    Column("path", "PATH"),
    Column("kind", "KIND"),
    Column("size_bytes", "SIZE", size, is_right=True),
    Column("disk_bytes", "ON DISK", size, is_right=True, priority=2),
    Column("modified", "MODIFIED", is_wide=True),
    Column("meaning", "DESCRIPTION", priority=1),
    Column("trouble", "PROBLEM"),
    name="path",
)


@command("files", example="storage files", is_listing=True, is_local=True, is_configured_by_files=True)
@takes_storage_options
def files(context: CommandContext, flags: BookieFlags) -> None:
    """List every file in the bookie's directories with its size and a description.

    A database is one line with the total size of its files. PROBLEM marks files that stop a Java bookie, break its
    tools, or need a command to be run again. Journals are sparse: they may use less disk space than their size. Works
    while the bookie runs.
    """
    with (
        open_own_storage(context, flags, is_locked=False) as own,
        context.console.listing(_TABLE) as listing,
    ):
        for row in file_rows(own):
            if listing.end_if_full():
                return
            listing.add(row)


def file_rows(own: OwnStorage) -> Iterator[dict[str, Any]]:
    """A row for each file or database."""
    for directory, roles in _roles(own).items():
        current = current_directory(directory)
        if not os.path.isdir(current):
            continue
        for entry in sorted(os.scandir(current), key=lambda each: each.name):
            found = describe_file(roles, entry.name)
            if found.kind == "unknown" and os.path.isdir(entry.path):
                yield from _walk(entry.path, roles)
            else:
                yield _row(entry.path, found)


def _walk(directory: str, roles: frozenset[DirectoryRole]) -> Iterator[dict[str, object]]:
    """Files of a directory that is not a database: those of ``.idx`` trees, and unknown ones."""
    for parent, directories, names in os.walk(directory):
        directories.sort()
        for name in sorted(names):
            found = describe_file(roles, name)
            # The bookie does not read a journal or an entry log at this level.
            is_read = found.kind.startswith("java")
            yield _row(os.path.join(parent, name), found if is_read else describe_file(frozenset(), ""))


def _row(path: str, found: FileKind) -> dict[str, object]:
    size_bytes = disk_bytes = 0
    modified_ms: int | None = None
    for part in _parts(path):
        try:
            status = os.stat(part, follow_symlinks=False)
        except FileNotFoundError:  # a running bookie deletes what it no longer needs
            continue
        size_bytes += status.st_size
        disk_bytes += status.st_blocks * 512
        modified_ms = max(modified_ms or 0, status.st_mtime_ns // 1_000_000)
    return {
        "path": path,
        "kind": found.kind,
        "size_bytes": size_bytes,
        "disk_bytes": disk_bytes,
        "modified": time_text(modified_ms),
        "meaning": found.meaning,
        "trouble": found.trouble,
    }


def _parts(path: str) -> Iterator[str]:
    """The files in a row."""
    if os.path.isdir(path) and not os.path.islink(path):
        for parent, _, names in os.walk(path):
            for name in names:
                yield os.path.join(parent, name)
    else:
        yield path


def _roles(own: OwnStorage) -> dict[str, frozenset[DirectoryRole]]:
    lists = (
        (DirectoryRole.JOURNAL, own.config.journal_directories),
        (DirectoryRole.LEDGER, own.config.ledger_directories),
        (DirectoryRole.INDEX, own.config.effective_index_directories),
    )
    return {
        directory: frozenset(role for role, directories in lists if directory in directories)
        for directory in own.config.all_directories
    }
