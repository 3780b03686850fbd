"""Every key of a bk_server.conf is used, ignored for a reason, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import bkctl.java_keys as table
from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import BookieFlags, DaemonFlags
from bkctl.java_conf import JavaConf
from bkctl.java_keys import (
    IGNORED,
    MISSING,
    REFUSED,
    USED,
    ignored_keys,
    is_refused,
    missing_feature_notes,
    unknown_key_notes,
)
from bkctl.server_settings import resolve_bookie_settings, resolve_daemon_settings
from bkctl.settings import Sources, TomlFile, java_metadata_uri, resolve_settings

DIRECTORIES = {"journalDirectories": ["/j"], "ledgerDirectories": ["/l"]}


class WatchedValues(Mapping[str, list[str]]):
    """Values of a bk_server.conf; notes which keys are asked for."""

    def __init__(self, values: dict[str, list[str]]) -> None:
        self._values = values
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> list[str]:
        self.asked.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return len(self._values)


def keys_asked_for(values: dict[str, list[str]]) -> set[str]:
    watched = WatchedValues(values)
    conf = JavaConf(watched, "bk.conf", {})
    sources = Sources(GlobalFlags(), {}, conf, TomlFile(), None)
    resolve_bookie_settings(sources, BookieFlags())
    resolve_settings(sources)
    resolve_daemon_settings(sources, DaemonFlags())
    java_metadata_uri(conf)
    return watched.asked


def test_each_key_is_in_one_table() -> None:
    assert not USED & IGNORED.keys()
    assert not REFUSED.keys() & (USED | IGNORED.keys())
    assert not MISSING.keys() & (USED | IGNORED.keys() | REFUSED.keys())
    keys = [key for keys in table._IGNORED.values() for key in keys.split()]
    assert len(keys) == len(set(keys))


def test_the_keys_that_are_used_are_those_that_the_settings_ask_for() -> None:
    uri = {"metadataServiceUri": ["zk://h/ledgers"]}
    legacy = {"zkServers": ["h:2181"]}
    old_journal = {"journalDirectory": ["/j"], "ledgerDirectories": ["/l"]}
    asked = keys_asked_for({**DIRECTORIES, **uri}) | keys_asked_for({**old_journal, **legacy})
    tls = {"tlsProviderFactoryClass": ["org.apache.bookkeeper.tls.TLSContextFactory"]}
    for stores in (("tlsKeyStore", "tlsTrustStore"), ("clientKeyStore", "clientTrustStore")):
        pem = {key: value for store in stores for key, value in {store: ["/f"], f"{store}Type": ["PEM"]}.items()}
        asked |= keys_asked_for({**DIRECTORIES, **uri, **tls, **pem})
    sasl = {
        "bookieAuthProviderFactoryClass": ["org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"],
        "clientAuthProviderFactoryClass": ["org.apache.bookkeeper.sasl.SASLClientProviderFactory"],
    }
    asked |= keys_asked_for({**DIRECTORIES, **uri, **sasl})
    assert asked == USED


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_keys_that_protect_a_bookie_are_refused_unless_empty_or_off(key: str) -> None:
    assert is_refused(key, "x")
    assert is_refused(key, "true")
    assert not is_refused(key, "false")


def test_values_that_ask_for_what_the_bookie_does_anyway_are_not_reported() -> None:
    off = {"httpServerEnabled": "FALSE", "localScrubInterval": "0", "entryLocationCompactionInterval": "-1"}
    on = {"serverTcpNoDelay": "yes", "journalAdaptiveGroupWrites": "true"}
    assert ignored_keys((key, value, "f") for key, value in (off | on).items()) == {}
    asks = {"serverTcpNoDelay": "false", "verifyMetadataOnGC": "false", "numAddWorkerThreads": "0"}
    assert sorted(ignored_keys((key, value, "f") for key, value in asks.items()).values()) == sorted([k] for k in asks)
    assert ignored_keys([("ledgerStorageClass", None, "f")]) == {}


def test_features_that_are_missing_are_reported_apart_from_keys_without_effect() -> None:
    keys = [("extraServerComponents", "a.B", "f"), ("pageSize", "1", "f")]
    notes = missing_feature_notes(keys)
    assert [note.partition(":")[0] for note in notes] == ["extraServerComponents"]
    assert "Pulsar Functions" in notes[0]
    assert list(ignored_keys(keys).values()) == [["pageSize"]]
    assert missing_feature_notes((key, value, "f") for key in MISSING for value in ("false", None)) == []


def test_an_unknown_key_is_reported_with_the_nearest_known_one() -> None:
    settings = [("flushIntervall", "1", "f"), ("bookiePort", "1", "f"), ("xyz", None, "--set")]
    assert unknown_key_notes(settings) == [
        "f: unknown key flushIntervall, ignored; did you mean flushInterval?",
        "--set: unknown key xyz, ignored",
    ]


def test_the_keys_of_a_configuration_file_of_pulsar_are_known(tmp_path: Path) -> None:
    path = tmp_path / "bookkeeper.conf"
    path.write_text("".join(f"{key}=1\n" for key in PULSAR_KEYS.split()))
    conf = JavaConf.read(str(path), {})
    assert unknown_key_notes(conf.settings()) == []


PULSAR_KEYS = """
bookiePort journalDirectory minUsableSizeForIndexFileCreation advertisedAddress allowLoopback bookieDeathWatchInterval
flushInterval useHostNameAsBookieID gcWaitTime gcOverreplicatedLedgerWaitTime numAddWorkerThreads numReadWorkerThreads
numHighPriorityWorkerThreads maxPendingReadRequestsPerThread maxPendingAddRequestsPerThread
readWorkerThreadsThrottlingEnabled enableBusyWait forceAllowCompaction tlsCertFilesRefreshDurationSeconds
auditorPeriodicBookieCheckInterval rereplicationEntryBatchSize stickyReadSEnabled reorderReadSequenceEnabled
openLedgerRereplicationGracePeriod autoRecoveryDaemonEnabled lostBookieRecoveryDelay useV2WireProtocol
reppDnsResolverClass serverTcpNoDelay nettyMaxFrameSizeBytes journalFormatVersionToWrite journalMaxSizeMB
journalMaxBackups journalPreAllocSizeMB journalWriteBufferSizeKB journalRemoveFromPageCache journalWriteData
journalSyncData journalAdaptiveGroupWrites journalMaxGroupWaitMSec journalBufferedWritesThreshold
numJournalCallbackThreads journalAlignmentSize journalFlushWhenQueueEmpty ledgerStorageClass ledgerDirectories
auditorPeriodicCheckInterval openFileLimit fileInfoFormatVersionToWrite pageLimit zkLedgersRootPath logSizeLimit
entryLogFilePreallocationEnabled flushEntrylogBytes readBufferSizeBytes writeBufferSizeBytes compactionRate
minorCompactionThreshold minorCompactionInterval compactionMaxOutstandingRequests majorCompactionThreshold
majorCompactionInterval isThrottleByBytes compactionRateByEntries compactionRateByBytes statsProviderClass
prometheusStatsHttpPort readOnlyModeEnabled diskCheckInterval metadataServiceUri zkServers zkTimeout zkEnableSecurity
dbStorage_writeCacheMaxSizeMb dbStorage_readAheadCacheMaxSizeMb dbStorage_readAheadCacheBatchSize
dbStorage_rocksDB_blockCacheSize dbStorage_rocksDB_writeBufferSizeMB dbStorage_rocksDB_sstSizeInMB
dbStorage_rocksDB_blockSize dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_numLevels
dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_maxSizeInLevel1MB httpServerEnabled httpServerPort httpServerClass
"""
