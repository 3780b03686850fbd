"""Settings of the ledger directories: entry logs and caches, under their Java keys (storage sections 4.5, 5.3, 5.4)."""

from __future__ import annotations

from typing import Any

from bkctl.java_conf import JavaConf
from bkctl.settings import put
from storage.config import ENTRY_LOG_SIZE_BYTES_MAX, MEMTABLE_BYTES_MIN


def engine_values(conf: JavaConf) -> dict[str, Any]:
    """Fields of ``EngineConfig`` that a bk_server.conf sets."""
    entry_log: dict[str, Any] = {}
    put(entry_log, "size_bytes_max", conf.whole_number("logSizeLimit"))
    if (frame_bytes_max := conf.whole_number("nettyMaxFrameSizeBytes")) is not None:
        entry_log["entry_bytes_max"] = min(frame_bytes_max, ENTRY_LOG_SIZE_BYTES_MAX)  # no log holds a larger entry
    put(entry_log, "is_next_log_prepared", conf.truth("entryLogFilePreallocationEnabled"))
    put(entry_log, "unsynced_bytes_max", conf.whole_number("flushEntrylogBytes"))
    engine: dict[str, Any] = {"entry_log": entry_log}
    # Java's cache sizes are sums over all ledger directories.
    directory_count = max(1, len(conf.texts("ledgerDirectories")))
    for name, key, bytes_min in (
        ("memtable_bytes_max", "dbStorage_writeCacheMaxSizeMb", MEMTABLE_BYTES_MIN),
        ("read_cache_bytes_max", "dbStorage_readAheadCacheMaxSizeMb", 0),
    ):
        put(engine, name, conf.share_bytes(key, directory_count, bytes_min))
    put(engine, "read_ahead_count_max", conf.whole_number("dbStorage_readAheadCacheBatchSize"))
    if (size_bytes := conf.whole_number("dbStorage_readAheadCacheBatchBytesSize")) is not None:
        engine["read_ahead_bytes_max"] = max(0, size_bytes)  # Java: -1 for no limit of its own
    return engine
