"""Which entry logs are valid, and in what order they were written."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

import msgspec

from bkctl.storage.filenames import (
    ENTRY_LOG_ID_MAX,
    compacting_file_name,
    entry_log_file_name,
    parse_claimed_entry_log_id,
    parse_compacted_file_name,
    parse_entry_log_file_name,
)
from bkctl.storage.ids import EntryLogId
from bkctl.storage.ports import FileSystem


class LogDirectory(msgspec.Struct, frozen=True):
    """The logs of a ledger directory, and what an interrupted compaction left (storage section 4.9)."""

    log_ids: tuple[EntryLogId, ...]
    """Logs whose entries are valid, from the oldest to the newest; includes those of ``links_due``."""
    unfinished: tuple[str, ...]
    """Names of logs that a compaction was writing: to be deleted."""
    links_due: tuple[tuple[str, str], ...]
    """Finished replacements that do not have their final name yet: (name, final name)."""
    replaced: tuple[str, ...]
    """Names to be deleted once the index exists: replaced logs, and the files that mark them as replaced."""


def read_log_directory(filesystem: FileSystem, directory: str) -> LogDirectory:
    """Look at a ledger directory (its ``current``); OSError."""
    names = filesystem.list_directory(directory)
    log_ids = {log_id for name in names if (log_id := parse_entry_log_file_name(name)) is not None}
    finished = [(name, parsed) for name in names if (parsed := parse_compacted_file_name(name)) is not None]
    links_due = tuple((name, entry_log_file_name(log_id)) for name, (log_id, _) in finished if log_id not in log_ids)
    sources = {source for _, (_, source) in finished} - {log_id for _, (log_id, _) in finished}
    claimed = {log_id for name in names if (log_id := parse_claimed_entry_log_id(name)) is not None}
    counted = (log_ids | {log_id for _, (log_id, _) in finished}) - sources
    return LogDirectory(
        tuple(from_oldest(counted, claimed)),
        tuple(name for name in names if _is_unfinished(name)),
        links_due,
        # Delete the mark last: while it exists, the source is known to be replaced.
        tuple(entry_log_file_name(source) for source in sorted(sources & log_ids))
        + tuple(name for name, _ in finished),
    )


def from_oldest(log_ids: Iterable[EntryLogId], claimed: Iterable[EntryLogId]) -> list[EntryLogId]:
    """Log ids in the order in which they were assigned.

    Ids count up and continue at 0 after 2^31 - 1, so the newest is the one before the longest range of ids that no file
    uses (storage section 4.1).
    """
    bounds = [-1, *sorted(claimed), ENTRY_LOG_ID_MAX + 1]
    _, oldest = max(((right - left, right) for left, right in itertools.pairwise(bounds)), key=lambda gap: gap[0])
    return sorted(log_ids, key=lambda log_id: (log_id < oldest, log_id))


def finish_links(filesystem: FileSystem, directory: str, logs: LogDirectory) -> None:
    """Delete unfinished compacted logs, and give finished replacements their final names; OSError. Repeatable."""
    for name in logs.unfinished:
        filesystem.remove(os.path.join(directory, name))
    for name, target in logs.links_due:
        filesystem.link(os.path.join(directory, name), os.path.join(directory, target))
    if logs.unfinished or logs.links_due:
        filesystem.sync_directory(directory)


def remove_replaced(filesystem: FileSystem, directory: str, logs: LogDirectory) -> None:
    """Delete the replaced logs, now that the index references their replacements; OSError. Repeatable."""
    for name in logs.replaced:
        filesystem.remove(os.path.join(directory, name))
        filesystem.sync_directory(directory)


def _is_unfinished(name: str) -> bool:
    log_id = parse_claimed_entry_log_id(name)
    return log_id is not None and name == compacting_file_name(log_id)
