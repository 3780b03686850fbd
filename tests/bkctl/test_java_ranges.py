"""Numbers of a bk_server.conf at the ends of their ranges: refused as they were written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import BookieFlags, BookieSettings, DaemonFlags
from bkctl.runtime.errors import ConfigurationError
from bkctl.server_settings import resolve_bookie_settings, resolve_daemon_settings
from bkctl.settings import read_sources, resolve_settings
from bkctl.storage.setting import WHOLE_NUMBER_MAX
from tests.java_ranges import RANGES, ends

BASE = "metadataServiceUri=zk://c/ledgers\njournalDirectories=/j1,/j2\nledgerDirectories=/l1,/l2,/l3\n"
RELATED = {
    # Fields that are held against each other, so that one at its end needs the other there, too.
    "diskUsageThreshold": "diskUsageWarnThreshold=0.0001\n",
    "diskUsageWarnThreshold": "diskUsageThreshold=0.9999\n",
    "diskUsageLwmThreshold": "diskUsageThreshold=0.9999\n",
    "gcWaitTime": "minorCompactionInterval=0\nmajorCompactionInterval=0\n",
    "minorCompactionThreshold": "minorCompactionInterval=0\n",
    "majorCompactionThreshold": "majorCompactionInterval=0\n",
    "minorCompactionInterval": "majorCompactionInterval=0\n",
}
FRACTIONS = [key for key, bounds in RANGES.items() if bounds.below is not None]
WHOLE = [key for key in RANGES if key not in FRACTIONS]
INT_MAX = 2**31 - 1


def resolve(tmp_path: Path, text: str) -> BookieSettings:
    """Settings of bookie and client."""
    path = tmp_path / "bk.conf"
    path.write_text(BASE + text)
    sources = read_sources(GlobalFlags(conf=str(path)), {})
    resolve_settings(sources)
    resolve_daemon_settings(sources, DaemonFlags())
    return resolve_bookie_settings(sources, BookieFlags())


@pytest.mark.parametrize("key", WHOLE)
def test_both_ends_are_taken_and_nothing_beyond(tmp_path: Path, key: str) -> None:
    low, high = ends(RANGES[key])
    for number in (low, high):
        resolve(tmp_path, f"{RELATED.get(key, '')}{key}={number}\n")
    for number in (low - 1, high + 1, 99999999999999999999):
        with pytest.raises(ConfigurationError, match=rf"/bk\.conf: {key} = {re.escape(str(number))}: must be "):
            resolve(tmp_path, f"{RELATED.get(key, '')}{key}={number}\n")


@pytest.mark.parametrize("key", FRACTIONS)
def test_fractions(tmp_path: Path, key: str) -> None:
    for number in ("0.0002", "0.9998"):
        related = "diskUsageWarnThreshold=0.0001\n" if key == "diskUsageThreshold" else RELATED[key]
        resolve(tmp_path, f"{related}{key}={number}\n")
    for number in ("0", "1", "-0.5", "95"):
        with pytest.raises(ConfigurationError, match=rf"/bk\.conf: {key} = {number}: must be above 0 and below 1"):
            resolve(tmp_path, f"{key}={number}\n")


@pytest.mark.parametrize("never", [INT_MAX, WHOLE_NUMBER_MAX])
def test_never_as_it_is_written_for_java(tmp_path: Path, never: int) -> None:
    """No timer of Python takes the largest long."""
    keys = ("gcWaitTime", "flushInterval", "diskCheckInterval", "dbStorage_maxThrottleTimeMs", "addEntryTimeoutSec")
    off = "minorCompactionInterval=0\nmajorCompactionInterval=0\n"
    config = resolve(tmp_path, off + "".join(f"{key}={never}\n" for key in keys)).config
    assert 24 * 86_400 < config.garbage_collection.wait_s < 2**32
    assert config.flush_interval_s < 2**32


def test_the_whole_sentence_in_the_unit_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "bk.conf"
    for text, sentence in (
        ("journalMaxSizeMB=-1", f"{path}: journalMaxSizeMB = -1: must be from 1 to 8796093022207"),
        (
            "journalPreAllocSizeMB=99999999999",
            f"{path}: journalPreAllocSizeMB = 99999999999: must be from 1 to 2048",
        ),
        (
            "dbStorage_writeCacheMaxSizeMb=0",
            f"{path}: dbStorage_writeCacheMaxSizeMb = 0: must be from 1 to 8796093022207",
        ),
        ("journalQueueSize=0", f"{path}: journalQueueSize = 0: must be at least 1"),
        ("nettyMaxFrameSizeBytes=1", f"{path}: nettyMaxFrameSizeBytes = 1: must be from 1024 to 2147483647"),
        ("journalMaxGroupWaitMSec=60001", f"{path}: journalMaxGroupWaitMSec = 60001: must be from 0 to 60000"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            resolve(tmp_path, text)
        assert str(refused.value) == sentence


def test_a_sum_over_all_directories_must_suffice_for_each(tmp_path: Path) -> None:
    lists = "ledgerDirectories=" + ",".join(f"/m{number}" for number in range(17)) + "\n"
    with pytest.raises(ConfigurationError, match="Mb = 1: must be at least 2, as there are 20 directories"):
        resolve(tmp_path, lists + "dbStorage_writeCacheMaxSizeMb=1\n")


def test_a_value_given_by_hand_is_not_put_down_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bk.conf"
    path.write_text(BASE + "journalMaxBackups=1\n")
    sources = read_sources(GlobalFlags(conf=str(path)), {})
    with pytest.raises(ConfigurationError, match=r"^--set journalMaxBackups = -1: must be at least 0$"):
        resolve_bookie_settings(sources, BookieFlags(overrides=("journalMaxBackups=-1",)))


@pytest.mark.parametrize(
    ("table", "line", "sentence"),
    [
        ("storage.journal", "size_bytes_max = -1", "size_bytes_max = -1: must be at least 4 KiB"),
        ("storage.journal", "preallocation_bytes = 99999999999999999999", "9999999: must be from 512 to 2 GiB"),
        ("storage.journal", "preallocation_bytes = 2147483649", "must be from 512 to 2 GiB"),
        ("storage.journal", "group_wait_s = 61", "group_wait_s = 61: must be from 0 to 60"),
        ("storage.journal", "sync_interval_s = inf", "sync_interval_s = inf: must be a finite number"),
        ("disks", "check_interval_s = 1e17", r"check_interval_s = 1e\+17: must be at most 3153600000"),
    ],
)
def test_values_of_the_toml_file(tmp_path: Path, table: str, line: str, sentence: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'metadata_uri = "zk://c/ledgers"\n'
        '[bookie]\njournal_directories = ["/j"]\nledger_directories = ["/l"]\n'
        f"[bookie.{table}]\n{line}\n"
    )
    with pytest.raises(ConfigurationError, match=rf"/c\.toml: bookie\.{table}\..*{sentence}"):
        resolve_bookie_settings(read_sources(GlobalFlags(config=str(path)), {}), BookieFlags())
