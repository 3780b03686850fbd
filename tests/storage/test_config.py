from __future__ import annotations

from typing import Any

import pytest

from bkctl.storage.config import EngineConfig, EntryLogConfig, JournalConfig, StorageConfig


@pytest.mark.parametrize(
    "values",
    [{"size_bytes_max": 4095}, {"alignment_bytes": 100}, {"alignment_bytes": 0}, {"alignment_bytes": 513},
     {"preallocation_bytes": 511}, {"alignment_bytes": 4096, "preallocation_bytes": 2048}, {"backup_count_max": -1},
     {"format_version": 3}, {"format_version": 7}, {"sync_interval_s": 0.0}, {"group_wait_s": -0.1},
     {"group_bytes_max": -1}, {"group_record_count_max": -1}, {"queue_record_count_max": 0}, {"queue_bytes_max": 1}],
)  # fmt: skip
def test_journal_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        JournalConfig(**values)


@pytest.mark.parametrize(
    "values",
    [{"size_bytes_max": 4095}, {"size_bytes_max": 2**30 + 1}, {"entry_bytes_max": 10}, {"open_files_max": 0},
     {"unsynced_bytes_max": -1}],
)  # fmt: skip
def test_entry_log_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        EntryLogConfig(**values)


@pytest.mark.parametrize(
    "values",
    [{"memtable_bytes_max": 1000}, {"read_cache_bytes_max": -1}, {"read_ahead_count_max": -1},
     {"read_ahead_bytes_max": -1}],
)  # fmt: skip
def test_engine_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        EngineConfig(**values)


@pytest.mark.parametrize("values", [{"journal_directories": ("",)}, {"index_directories": ("",)}])
def test_a_directory_without_a_name_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the name of a directory is empty"):
        StorageConfig(**{"journal_directories": ("j",), "ledger_directories": ("l",)} | values)


def test_defaults_are_those_of_java() -> None:
    journal = JournalConfig()
    assert (journal.size_bytes_max, journal.preallocation_bytes) == (2 << 30, 16 << 20)
    assert (journal.alignment_bytes, journal.backup_count_max) == (512, 5)
    assert EntryLogConfig().size_bytes_max == 1 << 30
