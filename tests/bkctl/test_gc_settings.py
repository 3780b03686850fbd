"""Garbage collection and compaction in a bk_server.conf and in TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import BookieFlags, BookieSettings
from bkctl.runtime.config import CompactionConfig, GarbageCollectionConfig, MajorCompactionConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.server_settings import resolve_bookie_settings
from bkctl.settings import read_sources


def resolve(*pairs: str, toml: str | None = None) -> BookieSettings:
    roots = GlobalFlags(metadata_uri="zk+flat://host/ledgers", config=toml)
    flags = BookieFlags(overrides=pairs, journal_directories=("/j",), ledger_directories=("/l",))
    return resolve_bookie_settings(read_sources(roots, {}), flags)


def test_defaults_are_those_of_java() -> None:
    config = GarbageCollectionConfig()
    assert (config.wait_s, config.metadata_operations_per_s_max) == (600, 1000)
    assert (config.minor.threshold, config.minor.interval_s, config.minor.duration_s_max) == (0.2, 3600, None)
    assert (config.major.threshold, config.major.interval_s, config.major.duration_s_max) == (0.8, 86400, None)
    assert (config.overreplicated_wait_s, config.overreplicated_in_flight_max) == (86400, 1000)
    assert (config.copied_entries_per_s_max, config.copied_bytes_per_s_max) == (1000, 1_000_000)
    assert config.outstanding_entries_max == 100_000
    assert not config.is_transactional


def test_every_java_key_has_its_field() -> None:
    config = resolve(
        "gcWaitTime=1000",
        "minorCompactionThreshold=0.3",
        "minorCompactionInterval=10",
        "minorCompactionMaxTimeMillis=1500",
        "majorCompactionThreshold=0.7",
        "majorCompactionInterval=20",
        "majorCompactionMaxTimeMillis=-1",
        "forceAllowCompaction=true",
        "isForceGCAllowWhenNoSpace=true",
        "gcOverreplicatedLedgerWaitTime=5000",
        "gcOverreplicatedLedgerMaxConcurrentRequests=7",
        "gcMetadataOpRateLimit=0.5",
        "isThrottleByBytes=true",
        "compactionRateByEntries=11",
        "compactionRateByBytes=12",
        "compactionMaxOutstandingRequests=13",
        "useTransactionalCompaction=true",
        "useTargetEntryLogSizeForGc=true",
    ).config.garbage_collection
    assert config == GarbageCollectionConfig(
        wait_s=1,
        minor=CompactionConfig(threshold=0.3, interval_s=10, duration_s_max=1.5),
        major=MajorCompactionConfig(threshold=0.7, interval_s=20),
        is_forced_compaction_allowed=True,
        is_forced_when_full=True,
        overreplicated_wait_s=5,
        overreplicated_in_flight_max=7,
        metadata_operations_per_s_max=0.5,
        is_throttled_by_bytes=True,
        copied_entries_per_s_max=11,
        copied_bytes_per_s_max=12,
        outstanding_entries_max=13,
        is_transactional=True,
        is_target_size_used=True,
    )


def test_the_old_name_of_the_rate_is_still_read_and_the_new_one_wins() -> None:
    assert resolve("compactionRate=5").config.garbage_collection.copied_entries_per_s_max == 5
    both = resolve("compactionRate=5", "compactionRateByEntries=6").config.garbage_collection
    assert both.copied_entries_per_s_max == 6


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (("minorCompactionThreshold=1.1",), r"minorCompactionThreshold\) is 1.1"),
        (("majorCompactionThreshold=1.5",), r"majorCompactionThreshold\) is 1.5"),
        (("gcWaitTime=7200000",), r"minorCompactionInterval\) of 3600 s is shorter .* 7200 s"),
        (("majorCompactionInterval=1",), r"majorCompactionInterval\) of 1 s is shorter .* 600 s"),
        (("minorCompactionThreshold=0.8",), r"minorCompactionThreshold\) must be below .*\(majorCompactionThreshold\)"),
        (
            ("minorCompactionInterval=86400",),
            r"minorCompactionInterval\) must be shorter .*\(majorCompactionInterval\)",
        ),
        (("gcWaitTime=0",), "gcWaitTime = 0: must be at least 1"),
        (("majorCompactionThreshold=much",), "majorCompactionThreshold = much: not a decimal number"),
        (("majorCompactionThreshold=nan",), "majorCompactionThreshold = nan: not a decimal number"),
        (("compactionMaxOutstandingRequests=0",), "compactionMaxOutstandingRequests = 0: must be at least 1"),
    ],
)
def test_a_bad_value_or_relation_is_one_sentence(pairs: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        resolve(*pairs)


@pytest.mark.parametrize(
    "pairs",
    [
        ("minorCompactionThreshold=0", "minorCompactionInterval=99999999"),
        ("minorCompactionInterval=0", "minorCompactionThreshold=7"),
        ("majorCompactionInterval=-1",),
        ("gcWaitTime=9999999999", "minorCompactionInterval=0", "majorCompactionThreshold=-1"),
        ("majorCompactionThreshold=1",),
    ],
)
def test_what_is_switched_off_need_not_fit(pairs: tuple[str, ...]) -> None:
    resolve(*pairs)


@pytest.mark.parametrize(
    ("key", "asks", "satisfied"),
    [
        ("verifyMetadataOnGC", "false", "true"),
        ("entryLocationCompactionInterval", "3600", "-1"),
        ("gcEntryLogMetadataCacheEnabled", "true", "false"),
    ],
)
def test_keys_without_effect_are_reported(key: str, asks: str, satisfied: str) -> None:
    assert list(resolve(f"{key}={asks}").comparison.ignored.values()) == [(key,)]
    assert resolve(f"{key}={satisfied}").comparison.ignored == {}


def test_toml_sets_single_fields(tmp_path: Path) -> None:
    path = tmp_path / "bkctl.toml"
    path.write_text("[bookie.garbage_collection]\nis_transactional = true\nmajor.threshold = 0.5\n")
    config = resolve(toml=str(path)).config.garbage_collection
    assert config == GarbageCollectionConfig(is_transactional=True, major=MajorCompactionConfig(threshold=0.5))
    assert config.major.interval_s == 86_400
