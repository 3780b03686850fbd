"""How a bookie shares the files that its process may have open, so that no client takes those that storage needs.

Without a file for the next journal or the next table of the index a bookie ends.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bkctl.runtime.admin.connections import admin_limits
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.storage.config import StorageConfig

_PROCESS_FILES: Final = 64
"""Of the process itself: event loop, lanes, log, ports, ZooKeeper, child processes. 20 are usual."""
_JOURNAL_FILES: Final = 8
"""Of one journal directory: lock, the journals that are written, prepared and read."""
_LEDGER_FILES: Final = 24
"""Of one ledger directory: locks, logs and manifests of two databases, entry logs that are written and compacted."""
_TABLES_MAX: Final = 2000
"""Of two databases: LevelDB keeps at most a thousand tables of each open."""
_LEVELDB_SHARE: Final = 5
"""LevelDB itself takes at most a fifth of the limit for tables that it cannot map into memory."""
_LOGS_SHARE: Final = 8
_PEERS_SHARE: Final = 16
_PEERS_MAX: Final = 512
"""Connections to other bookies, for repair and for requests of operators."""
_ADMIN_SOCKETS: Final = 2
CONNECTIONS_MIN: Final = 16
"""With room for fewer connections a bookie does not start."""


def fit_open_files(config: BookieConfig, open_files_max: int | None) -> BookieConfig:
    """The settings, with ``connections_max`` and ``open_files_max`` lowered to what the limit of the process allows.

    ``open_files_max`` None: no limit. ConfigurationError if the limit is too low for a bookie.
    """
    if open_files_max is None:
        return config
    connections_max = _free_files(config.storage, open_files_max)
    if connections_max < CONNECTIONS_MIN:
        needed = open_files_max
        while _free_files(config.storage, needed) < CONNECTIONS_MIN:
            needed += 1
        raise ConfigurationError(
            f"this process may have only {open_files_max} files open, and this bookie needs {needed}: "
            "raise the limit (ulimit -n, or LimitNOFILE of systemd)"
        )
    storage = config.storage
    logs_max = max(1, _log_files(storage, open_files_max) // len(storage.ledger_directories))
    entry_log = msgspec.structs.replace(storage.engine.entry_log, open_files_max=logs_max)
    engine = msgspec.structs.replace(storage.engine, entry_log=entry_log)
    return msgspec.structs.replace(
        config,
        connections_max=min(config.connections_max, connections_max),
        storage=msgspec.structs.replace(storage, engine=engine),
    )


def connections_warning(configured: BookieConfig, fitted: BookieConfig, open_files_max: int | None) -> str:
    """A sentence if the limit for open files allows fewer connections than the settings; otherwise empty."""
    if fitted.connections_max == configured.connections_max:
        return ""
    return (
        f"this process may have only {open_files_max} files open, so the bookie accepts at most "
        f"{fitted.connections_max} client connections instead of {configured.connections_max} (connections_max): "
        "raise the limit (ulimit -n, or LimitNOFILE of systemd)"
    )


def _free_files(storage: StorageConfig, open_files_max: int) -> int:
    """Files left for connections of clients."""
    ledger_count = len(storage.ledger_directories)
    fixed = _PROCESS_FILES + _JOURNAL_FILES * len(storage.journal_directories) + _LEDGER_FILES * ledger_count
    tables = min(open_files_max // _LEVELDB_SHARE, _TABLES_MAX * ledger_count)
    peers = min(open_files_max // _PEERS_SHARE, _PEERS_MAX)
    admin = _ADMIN_SOCKETS * admin_limits(open_files_max).connections_max
    return open_files_max - fixed - tables - _log_files(storage, open_files_max) - peers - admin


def _log_files(storage: StorageConfig, open_files_max: int) -> int:
    """Entry logs that all ledger directories together keep open."""
    wanted = storage.engine.entry_log.open_files_max * len(storage.ledger_directories)
    return min(wanted, open_files_max // _LOGS_SHARE)
