"""Java's keys for entry logs and caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.config import GlobalFlags
from bkctl.storage.config import EntryLogConfig
from tests.bkctl.test_bookie_settings import resolve, write

CONF = """
metadataServiceUri=zk+hierarchical://conf/ledgers
journalDirectories=/j1
ledgerDirectories=/l1,/l2
logSizeLimit=1000000
nettyMaxFrameSizeBytes=2000000
entryLogFilePreallocationEnabled=false
flushEntrylogBytes=1048576
dbStorage_writeCacheMaxSizeMb=64
dbStorage_readAheadCacheMaxSizeMb=32
dbStorage_readAheadCacheBatchSize=50
dbStorage_readAheadCacheBatchBytesSize=%d
entryLogPerLedgerEnabled=%s
dbStorage_directIOEntryLogger=%s
"""


@pytest.mark.parametrize(("batch_bytes", "read_ahead_bytes"), [(-1, 0), (65536, 65536)])
def test_keys_of_java(tmp_path: Path, batch_bytes: int, read_ahead_bytes: int) -> None:
    settings = resolve(None, GlobalFlags(conf=write(tmp_path, "bk.conf", CONF % (batch_bytes, "false", "false"))))
    engine = settings.config.storage.engine
    assert engine.entry_log == EntryLogConfig(
        size_bytes_max=1_000_000, entry_bytes_max=2_000_000, is_next_log_prepared=False, unsynced_bytes_max=1_048_576
    )
    assert engine.memtable_bytes_max == 32 << 20, "the sum of Java's setting over two directories"
    assert engine.read_cache_bytes_max == 16 << 20
    assert (engine.read_ahead_count_max, engine.read_ahead_bytes_max) == (50, read_ahead_bytes)
    assert settings.warnings == ()


def test_other_ways_to_write_entry_logs_are_ignored_and_reported(tmp_path: Path) -> None:
    settings = resolve(None, GlobalFlags(conf=write(tmp_path, "bk.conf", CONF % (-1, "true", "true"))))
    assert list(settings.comparison.ignored.values()) == [
        ("entryLogPerLedgerEnabled",),
        ("dbStorage_directIOEntryLogger",),
    ]
