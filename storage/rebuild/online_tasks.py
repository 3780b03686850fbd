"""Messages between a bookie and the child process that rebuilds an index; see ``online_child``."""

from __future__ import annotations

import msgspec

from bkctl.storage.config import StorageConfig
from bkctl.storage.ids import LedgerId


class BuildLocations(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Build the locations of the directory at ``position``; ``ledger_directory``: its ``current``, absolute."""

    config: StorageConfig
    position: int
    ledger_directory: str
    known_ledgers: list[LedgerId]
    """Ledgers that have a row. Entries of other ledgers are skipped."""


class BuiltLocations(msgspec.Struct, frozen=True):
    """A complete, durable new database that is not in use yet."""

    log_count: int
    entry_count: int
    row_count: int
    damages: tuple[tuple[str, str], ...]
    """Logs from which entries may be missing, with the reason."""
    damaged_ledgers: list[LedgerId]
    """Known ledgers with entries missing from damaged logs."""
