"""Settings of the runtime layer; see ``bkctl.storage.setting``."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from bkctl.runtime.security_config import (
    AdminTlsConfig,
    BookieClientConfig,
    BookieLoginConfig,
    BookieTlsConfig,
    ClientLogin,
    ClientTlsConfig,
)
from bkctl.storage.config import StorageConfig
from bkctl.storage.setting import WHOLE_NUMBER_MAX, Java, Setting

_INT_MAX = 2**31 - 1

PROMETHEUS_PROVIDER = "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"
"""Java's class that opens a port for scrapes; the shipped bk_server.conf selects it."""

# fmt: off
# A setting takes at most three lines here; the formatter would use nine.


class LayoutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Legacy settings of the ledger layout, for clusters and metadata URIs that do not contain it."""

    ledger_manager_type: Annotated[str | None, Setting(
        "Layout of a cluster that records none: flat, hierarchical or longhierarchical",
        java=Java("ledgerManagerType"))] = None
    is_shaded_factory_allowed: Annotated[bool, Setting("Accept the prefix dlshade. in a recorded layout class",
        java=Java("allowShadedLedgerManagerFactoryClass"))] = False


class ZooKeeperSaslConfig(ClientLogin, frozen=True, kw_only=True):
    """SASL authentication of the ZooKeeper session: the table ``[zookeeper.sasl]``."""

    service: Annotated[str, Setting("First part of the servers' principal, for GSSAPI")] = "zookeeper"
    jaas_section: Annotated[str, Setting("Section of the JAAS file")] = "Client"


class ZooKeeperTlsConfig(ClientTlsConfig, frozen=True, kw_only=True):
    """TLS of the connections to ZooKeeper (in Java the JVM properties zookeeper.ssl.*)."""

    ca_file: Annotated[str | None, Setting("File with the CA certificates that sign the servers' certificates",
        unset="those of the system")] = None
    key_file: Annotated[str | None, Setting("PEM file of the private key, or PKCS12 file of key and certificate",
        unset="certificate_file")] = None
    key_password: Annotated[str | None, Setting("Location of the password of key_file: file:PATH, env:VARIABLE or "
        "fd:NUMBER", is_secret=True, variable="BKCTL_ZOOKEEPER_KEY_PASSWORD")] = None
    is_hostname_checked: Annotated[bool, Setting(
        "Require that a server's certificate matches the host of the metadata URI")] = True


class ZooKeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Connection to the metadata store."""

    session_timeout_ms: Annotated[int, Setting("Requested ZooKeeper session timeout; the servers may choose another",
        unit="ms", low=1, high=_INT_MAX, java=Java("zkTimeout"))] = 10_000
    operation_timeout_s: Annotated[float, Setting(
        "Longest wait for one operation, including reconnection; --timeout if not set", unit="s", above=0)] = 15.0
    scan_operations_per_s_max: Annotated[float, Setting(
        "ZooKeeper operations per second of one command; 0: no limit. Java's default is no limit, so its 0 is ignored",
        unit="operations/s", low=0, java=Java("zkRequestRateLimit", "decimal", off_from=0), flag="--zk-rate",
        is_live=True)] = 5000.0
    in_flight_max: Annotated[int, Setting("ZooKeeper operations of one command in flight",
        unit="operations", low=1)] = 128
    has_secure_acl: Annotated[bool, Setting("Create nodes that only the authenticated user may use",
        java=Java("zkEnableSecurity"))] = False
    digest: Annotated[str | None, Setting(
        "Location of USER:PASSWORD for digest authentication: file:PATH, env:VARIABLE or fd:NUMBER",
        is_secret=True)] = None
    sasl: ZooKeeperSaslConfig | None = None
    tls: ZooKeeperTlsConfig | None = None
    layout: LayoutConfig = LayoutConfig()


class PlacementPolicy(enum.StrEnum):
    """How bookies are chosen for ledgers."""

    AUTO = "auto"
    RANDOM = "random"
    RACK_AWARE = "rack-aware"


class PlacementConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Choice of bookies for new ledgers and for copies: rules, and where racks are read."""

    policy: Annotated[PlacementPolicy, Setting(
        "Choose bookies at random, or in different racks; auto: in different racks if a source of racks is set, or as "
        "Pulsar's node with racks says")] = PlacementPolicy.AUTO
    min_racks_per_write_quorum: Annotated[int, Setting("Racks that the copies of an entry span, if rack-aware",
        unit="racks", low=1, java=Java("minNumRacksPerWriteQuorum"))] = 2
    min_regions_per_write_quorum: Annotated[int, Setting(
        "Regions that the copies of an entry span, if rack-aware; a region is the first part of a rack's path",
        unit="regions", low=1)] = 1
    is_enforced: Annotated[bool, Setting(
        "Writers fail instead of breaking a rule, and bookies without a rack are not chosen",
        java=Java("enforceMinNumRacksPerWriteQuorum"))] = False
    is_weighted_by_free_space: Annotated[bool, Setting("Prefer bookies with more free disk space",
        java=Java("diskWeightBasedPlacementEnabled"))] = False
    free_space_reserve_fraction: Annotated[float, Setting(
        "Part of a bookie's disk space that must stay free when it is chosen; 0: not checked", low=0, below=1)] = 0.0
    pulsar_bookies_path: Annotated[str | None, Setting(
        "Path of Pulsar's node with racks and isolation groups",
        unset="with auto, and no other source, bookies next to the ledgers root, if it exists")] = None
    rack_table_file: Annotated[str | None, Setting("File with a bookie id or host, and its rack, on each line")] = None
    rack_script: Annotated[str | None, Setting("Program that prints a rack for each host that it gets",
        java=Java("networkTopologyScriptFileName"))] = None

    def __post_init__(self) -> None:
        if self.policy is PlacementPolicy.RACK_AWARE and not self.has_rack_source:
            raise ValueError(
                "rack-aware placement needs racks: set pulsar_bookies_path, rack_table_file or rack_script "
                "(networkTopologyScriptFileName)"
            )

    @property
    def has_rack_source(self) -> bool:
        """Whether a setting says where racks are."""
        return any((self.pulsar_bookies_path, self.rack_table_file, self.rack_script))


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and limits of a ledger client."""

    add_timeout_s: Annotated[float, Setting("Longest wait for the response to an add",
        unit="s", above=0, java=Java("addEntryTimeoutSec", "s"))] = 5.0
    read_timeout_s: Annotated[float, Setting("Longest wait for the response to a read",
        unit="s", above=0, java=Java("readEntryTimeoutSec", "s"))] = 5.0
    connect_timeout_s: Annotated[float, Setting("Longest wait for a connection to a bookie",
        unit="s", above=0, java=Java("clientConnectTimeoutMillis", "ms"))] = 10.0
    frame_bytes_max: Annotated[int, Setting(
        "Largest frame accepted from a bookie; a longer one closes the connection. Larger if nettyMaxFrameSizeBytes is",
        unit="bytes", low=1, high=_INT_MAX)] = 16 * 1024 * 1024
    writer_frame_bytes_max: Annotated[int, Setting(
        "Largest add of a ledger writer; the frame limit of the bookies, which close the connection on a longer one",
        unit="bytes", low=1024, high=_INT_MAX, java=Java("nettyMaxFrameSizeBytes"))] = 5 * 1024 * 1024
    speculative_read_timeout_s: Annotated[float, Setting(
        "Read from the next replica if the first has not answered after this time; one read tries it after a twentieth",
        unit="s", above=0)] = 2.0
    pending_adds_max: Annotated[int, Setting("Adds of one writer in flight; further appends wait",
        unit="entries", low=1)] = 10_000
    pending_bytes_max: Annotated[int, Setting("Payload of one writer's adds in flight; further appends wait",
        unit="bytes", low=1)] = 32 * 1024 * 1024
    reads_in_flight_max: Annotated[int, Setting(
        "Entries of one range read in flight; more if they are so small that requests for many of them are answered "
        "together, but at most so many requests", unit="entries", low=1)] = 64
    read_bytes_in_flight_max: Annotated[int, Setting(
        "Bytes of one range that a reader holds ahead of its consumer", unit="bytes",
        low=1)] = 32 * 1024 * 1024
    recovery_reads_in_flight_max: Annotated[int, Setting(
        "Entries that the recovery of a ledger reads ahead and writes back", unit="entries", low=1)] = 10
    metadata_attempts_max: Annotated[int, Setting("Compare-and-set attempts before a metadata change fails",
        unit="attempts", low=1)] = 20
    ensemble_changes_without_progress_max: Annotated[int, Setting(
        "Ensemble changes without a confirmed entry before a writer fails", unit="changes", low=1)] = 20
    suspect_bookie_s: Annotated[float, Setting("How long a failed bookie is a last resort for reads and new ensembles",
        unit="s", above=0)] = 30.0
    placement: PlacementConfig = PlacementConfig()
    security: BookieClientConfig = BookieClientConfig()


class DiskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When disks count as full, and how the bookie reacts."""

    full_fraction: Annotated[float, Setting("Used fraction above which a disk is full",
        above=0, below=1, java=Java("diskUsageThreshold", "decimal"))] = 0.95
    almost_full_fraction: Annotated[float, Setting(
        "Used fraction above which a disk is almost full; at most full_fraction", above=0, below=1,
        java=Java("diskUsageWarnThreshold", "decimal"))] = 0.90
    recovered_fraction: Annotated[float | None, Setting(
        "Used fraction below which a full disk accepts writes again; at most full_fraction", above=0, below=1,
        java=Java("diskUsageLwmThreshold", "decimal"), unset="half way between almost full and full")] = None
    check_interval_s: Annotated[float, Setting(
        "Longest time between two disk checks; they are more frequent near a limit", unit="s", above=0,
        java=Java("diskCheckInterval", "ms"))] = 10.0
    is_read_only_mode_enabled: Annotated[bool, Setting(
        "A full disk makes the bookie read-only; if false, it stops the bookie (exit 5; exit 2 at start)",
        java=Java("readOnlyModeEnabled"))] = True
    is_read_only_when_any_is_full: Annotated[bool, Setting(
        "One full ledger disk is enough; if false, only its ledgers are refused until all disks are full",
        java=Java("readOnlyModeOnAnyDiskFullEnabled"))] = True
    is_status_kept: Annotated[bool, Setting("Keep the read-only mode across a restart",
        java=Java("persistBookieStatusEnabled"))] = False
    checkpoint_reserve_bytes: Annotated[int | None, Setting("Space that a checkpoint leaves free",
        unit="bytes", low=0, java=Java("minUsableSizeForEntryLogCreation"),
        unset="5 % of the disk, at most 256 MiB")] = None
    high_priority_room_bytes: Annotated[int | None, Setting(
        "Space that a full disk needs for the adds of a ledger recovery", unit="bytes", low=0,
        java=Java("minUsableSizeForHighPriorityWrites"),
        unset="checkpoint_reserve_bytes if set, else the size of an entry log")] = None

    def __post_init__(self) -> None:
        for name, java_key, fraction in (
            ("almost_full_fraction", "diskUsageWarnThreshold", self.almost_full_fraction),
            ("recovered_fraction", "diskUsageLwmThreshold", self.recovered_fraction),
        ):
            if fraction is not None and fraction > self.full_fraction:
                raise ValueError(
                    f"{name} ({java_key}) is {fraction:g} and must not be above full_fraction (diskUsageThreshold), "
                    f"which is {self.full_fraction:g}"
                )

    @property
    def recovered_fraction_or_default(self) -> float:
        """The used fraction below which a full disk accepts writes again."""
        if self.recovered_fraction is not None:
            return self.recovered_fraction
        return (self.full_fraction + self.almost_full_fraction) / 2

    def high_priority_room_bytes_or_default(self, entry_log_bytes_max: int) -> int:
        """Free bytes that a full disk needs to accept recovery adds."""
        for size_bytes in (self.high_priority_room_bytes, self.checkpoint_reserve_bytes):
            if size_bytes is not None:
                return size_bytes
        return entry_log_bytes_max


Threshold = Annotated[float, Setting(
    "Compact entry logs of which less than this fraction (at most 1) is in use; 0 or less: off",
    java=Java("{parent}CompactionThreshold", "decimal"))]
CompactionInterval = Annotated[float, Setting("Shortest time between two compactions of this kind; 0 or less: off",
    unit="s", java=Java("{parent}CompactionInterval", "s"))]


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Minor or major compaction of the entry logs; the defaults are those of minor compaction."""

    threshold: Threshold = 0.2
    interval_s: CompactionInterval = 3600.0
    duration_s_max: Annotated[float | None, Setting("Start no further log after this time",
        unit="s", above=0, java=Java("{parent}CompactionMaxTimeMillis", "ms", off_from=-WHOLE_NUMBER_MAX),
        unset="no limit")] = None

    @property
    def is_enabled(self) -> bool:
        """Whether it runs automatically."""
        return self.threshold > 0 and self.interval_s > 0


class MajorCompactionConfig(CompactionConfig, frozen=True, kw_only=True):
    """Major compaction of the entry logs."""

    threshold: Threshold = 0.8
    interval_s: CompactionInterval = 86_400.0


class GarbageCollectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When garbage collection runs, and the limits of its work."""

    wait_s: Annotated[float, Setting("Time between two garbage collections",
        unit="s", above=0, java=Java("gcWaitTime", "ms"))] = 600.0
    metadata_operations_per_s_max: Annotated[float, Setting(
        "ZooKeeper operations per second of garbage collection; 0: no limit", unit="operations/s", low=0,
        java=Java("gcMetadataOpRateLimit", "decimal"), is_live=True)] = 1000.0
    overreplicated_wait_s: Annotated[float, Setting(
        "Time between two searches for copies that the metadata no longer references; 0 or less: never", unit="s",
        java=Java("gcOverreplicatedLedgerWaitTime", "ms"))] = 86_400.0
    overreplicated_in_flight_max: Annotated[int, Setting("Ledgers that such a search checks at once",
        unit="ledgers", low=1, java=Java("gcOverreplicatedLedgerMaxConcurrentRequests"))] = 1000
    minor: CompactionConfig = CompactionConfig()
    major: MajorCompactionConfig = MajorCompactionConfig()
    is_forced_compaction_allowed: Annotated[bool, Setting(
        "A forced garbage collection also runs a compaction that is off", java=Java("forceAllowCompaction"))] = False
    is_forced_when_full: Annotated[bool, Setting(
        "A full disk forces garbage collection and compaction instead of suspending compaction",
        java=Java("isForceGCAllowWhenNoSpace"))] = False
    is_throttled_by_bytes: Annotated[bool, Setting("Limit compaction by bytes instead of entries",
        java=Java("isThrottleByBytes"), is_live=True)] = False
    copied_entries_per_s_max: Annotated[float, Setting(
        "Entries that compaction copies per second, in each ledger directory", unit="entries/s", above=0,
        java=Java("compactionRateByEntries", older="compactionRate"), is_live=True)] = 1000.0
    copied_bytes_per_s_max: Annotated[float, Setting(
        "Bytes that compaction copies per second, in each ledger directory", unit="bytes/s", above=0,
        java=Java("compactionRateByBytes"), is_live=True)] = 1_000_000.0
    outstanding_entries_max: Annotated[int, Setting(
        "Entries that compaction copies before it syncs them and changes the index", unit="entries", low=1,
        java=Java("compactionMaxOutstandingRequests"))] = 100_000
    is_transactional: Annotated[bool, Setting(
        "Copy the live entries of a log to a log of their own instead of the current one",
        java=Java("useTransactionalCompaction"))] = False
    is_target_size_used: Annotated[bool, Setting(
        "Measure usage against a log of full size, so that small logs are merged",
        java=Java("useTargetEntryLogSizeForGc"))] = False
    compaction_batch_bytes_max: Annotated[int, Setting(
        "Bytes of entries that compaction holds in memory; a larger entry is copied alone",
        unit="bytes", low=1)] = 2 * 1024 * 1024
    originals_bytes_max: Annotated[int, Setting(
        "Bytes of copied logs, in each ledger directory, that may wait for the search that lets them be deleted",
        unit="bytes", low=1)] = 1024 * 1024 * 1024
    confirmation_pause_s: Annotated[float, Setting(
        "Pause before the second look at the metadata of ledgers that seem to be deleted", unit="s", low=0)] = 1.0

    def __post_init__(self) -> None:
        for name, compaction in (("minor", self.minor), ("major", self.major)):
            if not compaction.is_enabled:
                continue
            if compaction.threshold > 1:
                raise ValueError(
                    f"the {name} compaction threshold ({name}CompactionThreshold) is {compaction.threshold:g}; "
                        "it must be at most 1 (the whole log in use)"
                )
            if compaction.interval_s < self.wait_s:
                raise ValueError(
                    f"the {name} compaction interval ({name}CompactionInterval) of {compaction.interval_s:g} s is "
                    f"shorter than the time between two garbage collections (gcWaitTime), {self.wait_s:g} s"
                )
        if self.minor.is_enabled and self.major.is_enabled:
            if self.minor.threshold >= self.major.threshold:
                raise ValueError(
                    "the threshold of minor compaction (minorCompactionThreshold) must be below that of major "
                    "compaction (majorCompactionThreshold)"
                )
            if self.minor.interval_s >= self.major.interval_s:
                raise ValueError(
                    "the interval of minor compaction (minorCompactionInterval) must be shorter than that of major "
                    "compaction (majorCompactionInterval)"
                )


class IntegrityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Restoring lost entries from other bookies."""

    is_enabled: Annotated[bool, Setting("Allow stamps_missing_cookies. A repair that is needed always runs",
        java=Java("dataIntegrityChecking"))] = False
    stamps_missing_cookies: Annotated[bool, Setting(
        "Use an emptied directory again and restore it from other bookies; if false, the bookie does not start",
        java=Java("dataIntegrityStampMissingCookies"))] = False
    bytes_per_s_max: Annotated[int, Setting("Bytes of entries that a repair reads from other bookies per second",
        unit="bytes/s", low=1, is_live=True)] = 50 * 1024 * 1024
    retry_delay_s: Annotated[float, Setting(
        "Pause after a round that could not repair everything; it doubles up to 100 times this", unit="s",
        above=0)] = 3.0

    def __post_init__(self) -> None:
        if self.stamps_missing_cookies and not self.is_enabled:
            raise ValueError(
                "stamps_missing_cookies (dataIntegrityStampMissingCookies) needs is_enabled (dataIntegrityChecking)"
            )


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The admin interface of a bookie: always on a unix socket, and on TCP if enabled."""

    is_http_enabled: Annotated[bool, Setting("Open the admin interface on TCP too",
        java=Java("httpServerEnabled"))] = False
    http_host: Annotated[str, Setting("Address of the admin port; 0.0.0.0: all addresses",
        java=Java("httpServerHost"))] = "127.0.0.1"
    http_port: Annotated[int, Setting("TCP port of the admin interface; 0: any free port", low=0, high=65535,
        java=Java("httpServerPort"))] = 8080
    token_file: Annotated[str | None, Setting("File with the token that changes over TCP need",
        java=Java("adminTokenFile"), variable="BKCTL_ADMIN_TOKEN_FILE", unset="no changes over TCP")] = None
    is_tls_enabled: Annotated[bool, Setting(
        "Serve the admin port over HTTPS, with the files of [bookie.admin.tls], or else of [bookie.tls]",
        java=Java("httpServerTlsEnable"))] = False
    tls: AdminTlsConfig | None = None
    host_names: Annotated[tuple[str, ...], Setting(
        "Names, other than this machine's own, by which clients may ask over TCP; *: all", unset="none",
        java=Java("adminHostNames"))] = ()
    is_scrape_port_enabled: Annotated[bool | None, Setting(
        "Open a port for scrapes of metrics alone, if the admin interface is not on TCP",
        java=Java("prometheusStatsHttpEnable"), unset="if metrics_provider is Java's Prometheus provider")] = None
    metrics_provider: Annotated[str | None, Setting("Class of Java's metrics provider; /metrics exists without it too",
        java=Java("statsProviderClass"))] = None
    scrape_host: Annotated[str, Setting("Address of the scrape port; 0.0.0.0: all addresses",
        java=Java("prometheusStatsHttpAddress"))] = "0.0.0.0"  # noqa: S104  as in Java; it serves only metrics
    scrape_port: Annotated[int, Setting("TCP port of scrapes; 0: any free port", low=0, high=65535,
        java=Java("prometheusStatsHttpPort"))] = 8000

    @property
    def has_scrape_port(self) -> bool:
        """Whether the scrape port is open. With the admin interface on TCP, /metrics is there, as in Java."""
        if self.is_http_enabled:
            return False
        if self.is_scrape_port_enabled is None:
            return self.metrics_provider == PROMETHEUS_PROVIDER
        return self.is_scrape_port_enabled


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One bookie: its identity, its address, its data."""

    metadata_uri: str
    """Metadata URI of the bookie's cluster."""
    storage: StorageConfig
    bookie_id: Annotated[str | None, Setting("Permanent identity of the bookie",
        java=Java("bookieId"), flag="--bookie-id", variable="BKCTL_BOOKIE_ID", unset="ADDRESS:PORT")] = None
    advertised_address: Annotated[str | None, Setting("Host name or address that clients connect to",
        java=Java("advertisedAddress"), flag="--advertised-address", unset="the address of this host's name")] = None
    listening_interface: Annotated[str | None, Setting(
        "Network interface that the bookie listens on, and whose first address it has", java=Java("listeningInterface"),
        unset="all interfaces")] = None
    is_host_name_id: Annotated[bool, Setting("Use the canonical host name instead of the address in the bookie id",
        java=Java("useHostNameAsBookieID"))] = False
    is_host_name_short: Annotated[bool, Setting("Cut the host name in the bookie id at its first dot",
        java=Java("useShortHostName"))] = False
    is_storage_expansion_allowed: Annotated[bool, Setting(
        "Allow more ledger directories while the bookie holds no ledger", java=Java("allowStorageExpansion"))] = False
    port: Annotated[int, Setting("TCP port; 0: any free port",
        low=0, high=65535, java=Java("bookiePort"), flag="--port")] = 3181
    is_loopback_allowed: Annotated[bool, Setting("Allow an address that only this machine can reach",
        java=Java("allowLoopback"))] = False
    is_read_only: Annotated[bool, Setting("Serve only reads and recovery until restarted",
        java=Java("forceReadOnlyBookie"), flag="--read-only")] = False
    is_autorecovery_enabled: Annotated[bool, Setting("Run an autorecovery daemon in a child process",
        java=Java("autoRecoveryDaemonEnabled"), flag="--with-autorecovery")] = False
    flush_interval_s: Annotated[float, Setting("Longest time between two checkpoints",
        unit="s", above=0, java=Java("flushInterval", "ms"))] = 10.0
    throttle_max_s: Annotated[float, Setting("Longest wait of an add for space in the write cache",
        unit="s", above=0, java=Java("dbStorage_maxThrottleTimeMs", "ms"))] = 10.0
    connections_max: Annotated[int, Setting("Client connections; a further one replaces the longest idle one",
        unit="connections", low=1)] = 2000
    connection_memory_bytes_max: Annotated[int, Setting(
        "Memory of all connections for requests and responses, besides 64 KiB each; at the limit reads are refused",
        unit="bytes", low=16 * 1024 * 1024)] = 256 * 1024 * 1024
    connection_stall_s_max: Annotated[float, Setting(
        "How long a peer may stop within a frame, not read responses, or not complete a required login; an idle "
        "connection has no limit", unit="s", above=0)] = 60.0
    frame_bytes_max: Annotated[int, Setting("Largest request, including its length word",
        unit="bytes", low=1024, high=_INT_MAX, java=Java("nettyMaxFrameSizeBytes"))] = 5 * 1024 * 1024
    permitted_startup_users: Annotated[tuple[str, ...], Setting("Users of the system that may start the bookie",
        java=Java("permittedStartupUsers"), unset="all")] = ()
    permitted_startup_users_java_key: str | None = None
    """The place of a Java file that gives permitted_startup_users; no setting."""
    disks: DiskConfig = DiskConfig()
    garbage_collection: GarbageCollectionConfig = GarbageCollectionConfig()
    integrity: IntegrityConfig = IntegrityConfig()
    admin: AdminConfig = AdminConfig()
    tls: BookieTlsConfig | None = None
    sasl: BookieLoginConfig | None = None
    client: BookieClientConfig = BookieClientConfig()
    """How this bookie connects to other bookies, for repairs: the table ``[bookie_client]``."""
    zookeeper: ZooKeeperConfig = ZooKeeperConfig()
