"""The journal's settings under their Java keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import BookieFlags, BookieSettings
from bkctl.runtime.errors import ConfigurationError
from bkctl.server_settings import resolve_bookie_settings
from bkctl.settings import read_sources
from bkctl.storage.config import JournalConfig

BASE = "metadataServiceUri=zk://c/ledgers\njournalDirectories=/j1,/j2\nledgerDirectories=/l\n"
CONF = """
journalFormatVersionToWrite=5
journalMaxSizeMB=100
journalPreAllocSizeMB=8
journalAlignmentSize=4096
journalMaxBackups=2
journalMaxGroupWaitMSec=2
journalBufferedWritesThreshold=524288
journalBufferedEntriesThreshold=180
journalFlushWhenQueueEmpty=true
journalSyncData=false
journalPageCacheFlushIntervalMSec=250
journalWriteData=false
journalQueueSize=77
journalMaxMemorySizeMb=64
journalRemoveFromPageCache=false
"""


def resolve(tmp_path: Path, text: str) -> BookieSettings:
    path = tmp_path / "bk.conf"
    path.write_text(BASE + text)
    return resolve_bookie_settings(read_sources(GlobalFlags(conf=str(path)), {}), BookieFlags())


def test_every_key_has_its_field(tmp_path: Path) -> None:
    assert resolve(tmp_path, CONF).config.storage.journal == JournalConfig(
        format_version=5,
        size_bytes_max=100 << 20,
        preallocation_bytes=8 << 20,
        alignment_bytes=4096,
        backup_count_max=2,
        is_data_written=False,
        is_data_synced=False,
        sync_interval_s=0.25,
        is_dropped_from_page_cache=False,
        group_wait_s=0.002,
        is_flushed_when_queue_empty=True,
        group_bytes_max=524288,
        group_record_count_max=180,
        queue_record_count_max=77,
        queue_bytes_max=32 << 20,
    )


def test_without_keys_the_defaults_stand(tmp_path: Path) -> None:
    settings = resolve(tmp_path, "skipReplayJournalInvalidRecord=false\n")
    assert settings.config.storage.journal == JournalConfig()
    assert settings.warnings == ()


def test_toml_sets_the_same_fields(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'metadata_uri = "zk://c/ledgers"\n[bookie]\njournal_directories = ["j"]\nledger_directories = ["l"]\n'
        "[bookie.storage.journal]\nformat_version = 4\ngroup_wait_s = 0.5\n"
    )
    sources = read_sources(GlobalFlags(config=str(path)), {})
    journal = resolve_bookie_settings(sources, BookieFlags()).config.storage.journal
    assert journal == JournalConfig(format_version=4, group_wait_s=0.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("journalFormatVersionToWrite=3", "journalFormatVersionToWrite = 3: must be from 4 to 6"),
        ("journalAlignmentSize=500", "multiple of 512"),
        ("journalPreAllocSizeMB=0", "journalPreAllocSizeMB = 0: must be from 1"),
        ("journalQueueSize=0", "journalQueueSize = 0: must be at least 1"),
        ("journalPageCacheFlushIntervalMSec=0", "journalPageCacheFlushIntervalMSec = 0: must be at least 1"),
        ("skipReplayJournalInvalidRecord=true", "would skip the rest of a journal after a damaged record"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        resolve(tmp_path, text)


def test_keys_without_effect_are_reported_together(tmp_path: Path) -> None:
    [keys] = resolve(
        tmp_path, "journalWriteBufferSizeKB=64\njournalAdaptiveGroupWrites=true\nnumJournalCallbackThreads=8\n"
    ).comparison.ignored.values()
    assert keys == ("journalWriteBufferSizeKB", "numJournalCallbackThreads")


@pytest.mark.parametrize(
    ("text", "consequence"),
    [
        ("journalFormatVersionToWrite=5", "no record for explicit LACs"),
        ("journalWriteData=false", "a crash loses the adds"),
        ("journalSyncData=false", "a power cut loses adds"),
    ],
)
def test_what_costs_something_says_so(tmp_path: Path, text: str, consequence: str) -> None:
    [warning] = resolve(tmp_path, text).warnings
    assert consequence in warning
