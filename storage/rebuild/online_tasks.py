"""What a bookie and its child that builds an index exchange; see ``online_child``."""

from __future__ import annotations

import msgspec

from storage.config import StorageConfig
from storage.ids import LedgerId


class BuildLocations(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Build the locations of the directory at ``position``; ``ledger_directory``: its ``current``, absolute."""

    config: StorageConfig
    position: int
    ledger_directory: str
    known_ledgers: list[LedgerId]
    """Those that have a row. Entries of others are left out."""


class BuiltLocations(msgspec.Struct, frozen=True):
    """A whole new database, durable, that does not count yet."""

    log_count: int
    entry_count: int
    row_count: int
    damages: tuple[tuple[str, str], ...]
    """Logs from which entries may be missing, and why."""
    damaged_ledgers: list[LedgerId]
    """Of the known ones those of which a log says that entries are missing."""
