"""Treatment of each key of a Java bk_server.conf: used, ignored for a reason, refused, or a missing feature.

The keys are those of Apache BookKeeper 4.18 and of Pulsar's bookkeeper.conf. Any other key is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from bkctl.commands.parse import near_miss
from bkctl.java_security_keys import SECURITY_KEYS
from bkctl.setting_readers import all_settings

JavaSetting: TypeAlias = tuple[str, str | None, str]
"""A key, its value (None for an empty one) and its source."""

_SIMILARITY_MIN: Final = 0.6


def _split(keys: str) -> frozenset[str]:
    return frozenset(keys.split())


OLDER_URI: Final = _split("zkServers zkLedgersRootPath ledgerManagerFactoryClass")
"""Keys that make up the metadata URI in files without metadataServiceUri."""

USED: Final = (
    OLDER_URI
    | SECURITY_KEYS.keys()
    | {
        key
        for each in all_settings()
        if each.setting.java is not None
        for key in (each.java_key, each.setting.java.older)
        if key is not None
    }
)
"""Keys that set something, here or in the commands that act as clients. logFile and logLevel are bkctl's own."""

REFUSED: Final = {
    "skipReplayJournalInvalidRecord": "it would skip the rest of a journal after a damaged record, with acknowledged "
    "entries and fences, and the bookie would later report these as missing. To replace a bookie whose journal does "
    "not replay, run bkctl decommission: it copies its ledgers from the other bookies",
    "disableServerSocketBind": "a bookie without a port is of use only to clients in the same JVM",
}
"""Keys that protect a Java bookie, which would be open to every client without them; and one key that loses entries."""

_IGNORED: Final = {
    "/metrics always has the form of Java's Prometheus provider, with quantiles over 60 s": """
        codahaleStatsCSVEndpoint codahaleStatsGraphiteEndpoint codahaleStatsJmxEndpoint
        codahaleStatsOutputFrequencySeconds codahaleStatsPrefix codahaleStatsSlf4jEndpoint enableStatistics
        enableTaskExecutionStats exposeDefaultJVMMetrics limitStatsLogging prometheusStatsLatencyRolloverSeconds
        sanityCheckMetricsEnabled taskExecutionWarnTimeMicros
        """,
    "the admin interface is part of bkctl": "httpServerClass",
    "the bookie has its own storage engine": """
        entryLogPerLedgerCounterLimitsMultFactor entrylogMapAccessExpiryTimeInSeconds fileInfoCacheInitialCapacity
        fileInfoFormatVersionToWrite fileInfoMaxIdleTime ledgerStorageClass maximumNumberOfActiveEntryLogs
        minUsableSizeForIndexFileCreation numOfMemtableFlushThreads openFileLimit pageLimit pageSize
        readBufferSizeBytes skipListArenaChunkSize skipListArenaMaxAllocSize skipListSizeLimit
        sortedLedgerStorageEnabled writeBufferSizeBytes
        """,
    "the ledgers of a directory share its entry logs; logs written with it are read": "entryLogPerLedgerEnabled",
    "entry logs are written through the page cache; logs written with it are read": """
        dbStorage_directIOEntryLogger dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds
        dbStorage_directIOEntryLoggerReadBufferSizeMB dbStorage_directIOEntryLoggerTotalReadBufferSizeMB
        dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB
        """,
    "the index is LevelDB, which has no such setting": """
        dbStorage_rocksDB_blockCacheSize dbStorage_rocksDB_blockSize dbStorage_rocksDB_bloomFilterBitsPerKey
        dbStorage_rocksDB_checksum_type dbStorage_rocksDB_format_version dbStorage_rocksDB_logLevel
        dbStorage_rocksDB_logPath dbStorage_rocksDB_lz4CompressionEnabled dbStorage_rocksDB_maxSizeInLevel1MB
        dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_numLevels dbStorage_rocksDB_sstSizeInMB
        dbStorage_rocksDB_writeBufferSizeMB defaultRocksdbConf entryLocationRocksdbConf ledgerMetadataRocksdbConf
        maxOperationNumbersInSingleRocksdbWriteBatch
        """,
    "a ledger's metadata is always read before its entries are deleted": "verifyMetadataOnGC",
    "LevelDB compacts its index by itself": "entryLocationCompactionInterval",
    "what each log holds is kept in memory, and read again after a start": """
        gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath
        """,
    "journal groups are gathered in memory and written whole, and no journal file is used twice": """
        journalAdaptiveGroupWrites journalChannelProvider journalReuseFiles journalWriteBufferSizeKB
        numJournalCallbackThreads
        """,
    "the bookie runs one thread for each kind of work": """
        enableBusyWait numAddWorkerThreads numHighPriorityWorkerThreads numIOThreads numLongPollWorkerThreads
        numReadWorkerThreads numWorkerThreads requestTimerNumTicks requestTimerTickDurationMs serverNumAcceptorThreads
        serverNumIOThreads
        """,
    "[bookie] connection_memory_bytes_max in TOML limits requests by their memory": """
        closeChannelOnResponseTimeout maxAddsInProgressLimit maxBatchReadSize maxPendingAddRequestsPerThread
        maxPendingReadRequestsPerThread maxReadsInProgressLimit readWorkerThreadsThrottlingEnabled
        waitTimeoutOnResponseBackpressureMs
        """,
    "sockets have fixed options: no delay, keep-alive": """
        byteBufAllocatorSizeInitial byteBufAllocatorSizeMax byteBufAllocatorSizeMin serverSockKeepalive
        serverTcpKeepCnt serverTcpKeepIdle serverTcpKeepIntvl serverTcpLinger serverTcpNoDelay
        serverWriteBufferHighWaterMark serverWriteBufferLowWaterMark
        """,
    "only a Java process can use it": """
        allocatorExitOnOutOfMemory allocatorLeakDetectionPolicy allocatorOutOfMemoryPolicy allocatorPoolingConcurrency
        allocatorPoolingPolicy bookieDeathWatchInterval enableLocalTransport entryFormatterClass
        ignoreExtraServerComponentsStartupFailures ledgerIdFormatterClass metastoreImplClass
        metastoreMaxEntriesPerScan nettyUsePooledBuffers org.apache.bookkeeper.conf.readsystemproperties
        preserveMdcForTaskExecution registrationManagerClass
        """,
    "TLS comes from OpenSSL, and files that change are used by the next connection": """
        tlsCertFilesRefreshDurationSeconds tlsProvider
        """,
    "commands and the daemon log in as [bookie_client.sasl] says, with the ticket of kinit for Kerberos": """
        kerberos.kinit
        """,
    "port 0 is allowed without it": "allowEphemeralPorts",
    "a bookie serves both wire protocols, v2 and v3": "useV2WireProtocol",
    "directories may always share a disk": "allowMultipleDirsUnderSameDiskPartition",
    "bkctl storage check compares what is stored": """
        localConsistencyCheckOnStartup localScrubInterval localScrubRateLimit
        """,
    "the ZooKeeper client has settings of its own ([zookeeper] in TOML)": """
        enableHealthCheck ledgerManagerFactoryDisableClassCheck shadedLedgerManagerFactoryClassPrefix
        zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRetryBackoffStartMs
        """,
    "autorecovery has limits of its own ([autorecovery] and [replication] in TOML)": """
        auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec auditorMaxNumberOfConcurrentOpenLedgerOperations
        inFlightReadEntryNumInLedgerChecker rereplicationEntryBatchSize rwRereplicateBackoffMs
        underreplicatedLedgerRecoveryGracePeriod zkReplicationTaskRateLimit
        """,
    "a bookie does not use it: it is a setting of Java clients": """
        addEntryQuorumTimeoutSec batchReadEnabled bookieAddressResolverEnabled bookieConnectionErrorQuarantineEnabled
        bookieErrorThresholdPerInterval bookieHealthCheckEnabled bookieHealthCheckIntervalSeconds
        bookieMaxMultipleForWeightBasedPlacement bookieQuarantineRatio bookieQuarantineTimeSeconds
        clientConnectBookieUnavailableLogThrottling
        clientReceiveBufferSize clientRole clientSendBufferSize clientSockKeepalive clientTcpNoDelay
        clientTcpUserTimeoutMillis
        clientWriteBufferHighWaterMark clientWriteBufferLowWaterMark delayEnsembleChange desiredNumZonesPerWriteQuorum
        digestType disableEnsembleChangeFeatureName enableBookieAddressTracking
        enableBookieFailureTracking enableDigestTypeAutodetection enableParallelRecoveryRead
        enforceMinNumFaultDomainsForWrite enforceStrictZoneawarePlacement
        ensemblePlacementPolicy explicitLacInterval firstSpeculativeReadLACTimeout firstSpeculativeReadTimeout
        getBookieInfoIntervalSeconds getBookieInfoRetryIntervalSeconds getBookieInfoTimeoutSecs
        ignoreLocalNodeInPlacementPolicy isolationBookieGroups ledgerMetadataVersion maxNumEnsembleChanges
        maxSpeculativeReadLACTimeout maxSpeculativeReadTimeout minNumZonesPerWriteQuorum
        networkTopologyScriptNumberArgs networkTopologyStabilizePeriodSeconds
        numChannelsPerBookie opportunisticStriping passwd pcbcTimeoutTimerNumTicks pcbcTimeoutTimerTickDurationMs
        readReorderThresholdPendingRequests readTimeout recoveryBatchReadEnabled recoveryReadBatchSize
        registrationClientClass reorderReadSequenceEnabled
        speculativeReadLACTimeoutBackoffMultiplier speculativeReadTimeout speculativeReadTimeoutBackoffMultiplier
        startTLSTimeoutSecs stickyReadSEnabled storeSystemTimeAsLedgerCreationTime tcpKeepCnt tcpKeepIdle tcpKeepIntvl
        throttle timeoutMonitorIntervalSec timeoutTaskIntervalMillis timeoutTimerNumTicks timeoutTimerTickDurationMs
        useHostnameResolveLocalNodePlacementPolicy waitTimeoutOnBackpressureMs
        """,
    "the daemon takes racks from pulsar_bookies_path, rack_table_file or rack_script of [client.placement] in TOML": """
        reppDnsResolverClass
        """,
    "bkctl has no stream storage": """
        dlog.bkcAckQuorumSize dlog.bkcEnsembleSize dlog.bkcWriteQuorumSize
        storage.cluster.controller.schedule.interval.ms storage.range.store.dirs storage.serve.readonly.tables
        storageserver.grpc.port
        """,
}

IGNORED: Final = {key: reason for reason, keys in _IGNORED.items() for key in keys.split()}
"""Keys without effect, and why."""

MISSING: Final = {
    "extraServerComponents": "bkctl has no stream storage. Clients that store their state there, such as Pulsar "
    "Functions, fail",
}
"""Keys without effect that request what clients or the cluster may depend on, and the consequence."""

_ALWAYS_ON: Final = _split(
    """
    allowMultipleDirsUnderSameDiskPartition journalAdaptiveGroupWrites readWorkerThreadsThrottlingEnabled
    serverSockKeepalive serverTcpNoDelay verifyMetadataOnGC
    """
)
"""Ignored switches that are always on in bkctl; all others are always off."""

_OFF_AS_NUMBER: Final = _split(
    """
    entryLocationCompactionInterval localScrubInterval maxAddsInProgressLimit maxReadsInProgressLimit
    waitTimeoutOnResponseBackpressureMs
    """
)
"""Ignored numbers for which 0 and -1 mean "off", which bkctl always does."""

_KNOWN: Final = USED | REFUSED.keys() | IGNORED.keys() | MISSING.keys()

_TRUE: Final = frozenset({"true", "yes", "on"})
_FALSE: Final = frozenset({"false", "no", "off"})


def _asks_nothing(key: str, value: str) -> bool:
    """Whether an ignored key requests what the bookie does anyway."""
    if key in _OFF_AS_NUMBER and value in {"0", "-1"}:
        return True
    return value.lower() in (_TRUE if key in _ALWAYS_ON else _FALSE)


def is_refused(key: str, value: str) -> bool:
    """Whether this value of a key asks for protection that is not supported."""
    return key in REFUSED and value.lower() not in _FALSE


def unknown_key_notes(settings: Iterable[JavaSetting]) -> list[str]:
    """A line for each unknown key, with the nearest known one."""
    notes = []
    for key, _, place in settings:
        if key not in _KNOWN:
            meant = near_miss(key, _KNOWN, similarity_min=_SIMILARITY_MIN)
            question = "" if meant is None else f"; did you mean {meant}?"
            notes.append(f"{place}: unknown key {key}, ignored{question}")
    return notes


def missing_feature_notes(settings: Iterable[JavaSetting]) -> list[str]:
    """A sentence for each feature that the file requests and a bookie of bkctl does not have."""
    requested = [key for key, value, _ in settings if value is not None and not _asks_nothing(key, value)]
    return [f"{key}: {consequence}" for key, consequence in MISSING.items() if key in requested]


def ignored_keys(settings: Iterable[JavaSetting]) -> dict[str, list[str]]:
    """By reason: keys without effect whose values request another thing than the bookie does."""
    ignored: dict[str, list[str]] = {}
    for key, value, _ in settings:
        if key in IGNORED and value is not None and not _asks_nothing(key, value):
            ignored.setdefault(IGNORED[key], []).append(key)
    return ignored
