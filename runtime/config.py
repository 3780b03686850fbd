"""Settings of the runtime floor: frozen, with unit, default, range and the Java key each one answers to."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from storage.config import StorageConfig

PositiveFloat = Annotated[float, Meta(gt=0)]
PositiveInt = Annotated[int, Meta(gt=0)]
PositiveInt32 = Annotated[int, Meta(gt=0, le=2**31 - 1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]


class LayoutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the old settings say of the ledger layout, beside the metadata URI (metadata sections 2.3 and 3.3)."""

    ledger_manager_type: str | None = None
    """Layout of a cluster that records none, and check of one that records it in the old form (ledgerManagerType)."""
    is_shaded_factory_allowed: bool = False
    """Whether a recorded class may carry the prefix dlshade. (allowShadedLedgerManagerFactoryClass)."""


class SaslMechanism(enum.StrEnum):
    """How a session authenticates by SASL."""

    DIGEST_MD5 = "DIGEST-MD5"
    GSSAPI = "GSSAPI"


class ZooKeeperSaslConfig(msgspec.Struct, frozen=True, kw_only=True):
    """SASL authentication of the ZooKeeper session; Java reads the section Client of its JAAS file."""

    mechanism: SaslMechanism = SaslMechanism.DIGEST_MD5
    """GSSAPI takes its ticket from the credential cache, and needs the kerberos package."""
    username: str | None = None
    """User, for DIGEST-MD5."""
    password: str | None = None
    """Where the password is: ``file:PATH`` or ``env:VARIABLE``."""
    service: str = "zookeeper"
    """First part of the servers' principal, for GSSAPI."""
    principal: str | None = None
    """Principal of this client, for GSSAPI; None: that of the ticket."""


class ZooKeeperTlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the connections to ZooKeeper, all files PEM; Java has JVM properties (zookeeper.ssl.*) for it."""

    ca_file: str | None = None
    """Authorities that sign the servers' certificates; None: those of the system."""
    certificate_file: str | None = None
    """This client's certificate with its chain; None: it shows none."""
    key_file: str | None = None
    """Key of the certificate; None: in the same file."""
    key_password: str | None = None
    """Where the password of the key is: ``file:PATH`` or ``env:VARIABLE``; None: it has none."""
    is_hostname_checked: bool = True
    """Whether a server's certificate must name the host that the metadata URI names."""


class ZooKeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the metadata store is reached."""

    session_timeout_ms: PositiveInt32 = 10_000
    """Session time-out asked for (zkTimeout)."""
    operation_timeout_s: PositiveFloat = 15.0
    """Longest wait for one operation, reconnecting included."""
    scan_operations_per_s_max: Annotated[float, Meta(ge=0)] = 5000.0
    """Operations that a command sends in any one second; 0: as fast as it goes (zkRequestRateLimit, there 0)."""
    in_flight_max: PositiveInt = 128
    """Operations of a command under way at once."""
    has_secure_acl: bool = False
    """Nodes are created for the authenticated session alone (zkEnableSecurity)."""
    digest: str | None = None
    """Where USER:PASSWORD of the digest authentication is: ``file:PATH`` or ``env:VARIABLE``."""
    sasl: ZooKeeperSaslConfig | None = None
    """SASL authentication; None: none."""
    tls: ZooKeeperTlsConfig | None = None
    """TLS; None: connections are plain."""
    layout: LayoutConfig = LayoutConfig()
    """Ledger layout, where the cluster or the URI leaves it open."""


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a ledger client treats its bookies."""

    add_timeout_s: PositiveFloat = 5.0
    """Longest wait for the answer to one add (addEntryTimeoutSec)."""
    read_timeout_s: PositiveFloat = 5.0
    """Longest wait for the answer to one read (readEntryTimeoutSec)."""
    connect_timeout_s: PositiveFloat = 10.0
    """Longest wait for a connection (clientConnectTimeoutMillis)."""
    frame_bytes_max: PositiveInt32 = 16 * 1024 * 1024
    """Largest frame accepted from a bookie, its length word included. The connection is closed on a longer one, so this
    is well above what bookies store: Pulsar ships 5,253,120 bytes."""
    writer_frame_bytes_max: PositiveInt32 = 5 * 1024 * 1024
    """Largest add of a ledger writer, its length word included. A bookie closes the connection on a frame above its own
    limit, so this is the limit of the bookies (nettyMaxFrameSizeBytes)."""
    speculative_read_timeout_s: PositiveFloat = 2.0
    """Ask the next replica when the first has not answered for this long (speculativeReadTimeout)."""
    pending_adds_max: PositiveInt = 10_000
    """Adds of one writer under way at once; more wait in ``append``."""
    pending_bytes_max: PositiveInt = 32 * 1024 * 1024
    """Payload bytes of one writer under way at once; more wait in ``append``."""
    reads_in_flight_max: PositiveInt = 64
    """Entries of one range read under way at once."""
    read_bytes_in_flight_max: PositiveInt = 32 * 1024 * 1024
    """Bytes of one range read under way at once, estimated from the largest entry seen so far."""
    recovery_reads_in_flight_max: PositiveInt = 10
    """Entries that a ledger recovery reads ahead, and writes back, at once (recoveryReadBatchSize, there 1)."""
    metadata_attempts_max: PositiveInt = 20
    """Compare-and-set attempts of one metadata change before it gives up."""
    ensemble_changes_without_progress_max: PositiveInt = 20
    """Ensemble changes in a row, with no entry confirmed between them, before the writer gives up."""
    suspect_bookie_s: PositiveFloat = 30.0
    """How long a bookie that failed is chosen last, for reads and for new ensembles."""


class DiskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When disks count as full, and what happens then (storage section 8)."""

    full_fraction: Fraction = 0.95
    """Used part above which a disk is full (diskUsageThreshold)."""
    almost_full_fraction: Fraction = 0.90
    """Used part above which it is almost full; at most ``full_fraction`` (diskUsageWarnThreshold)."""
    recovered_fraction: Fraction | None = None
    """Used part below which a full disk takes writes again; at most ``full_fraction``. None: half way between the two
    above (diskUsageLwmThreshold, there of all disks together, and as high as the threshold)."""
    check_interval_s: PositiveFloat = 10.0
    """Longest time between two looks; shorter when little is missing to the limit (diskCheckInterval, there in ms)."""
    is_read_only_mode_enabled: bool = True
    """Whether a full disk makes the bookie read-only; False: it stops (readOnlyModeEnabled)."""
    is_read_only_when_any_is_full: bool = True
    """Whether one full ledger disk is enough; False: only the ledgers on it are refused until all are full
    (readOnlyModeOnAnyDiskFullEnabled)."""
    is_status_kept: bool = False
    """Whether the mode survives a restart, in the files BOOKIE_STATUS (persistBookieStatusEnabled)."""
    checkpoint_reserve_bytes: NonNegativeInt | None = None
    """What a checkpoint leaves free; None: 5 % of the disk, at most 256 MiB (minUsableSizeForEntryLogCreation)."""
    high_priority_room_bytes: NonNegativeInt | None = None
    """What must be free on a full disk for the adds of recovery; None: ``checkpoint_reserve_bytes``, without which it
    is the size of an entry log (minUsableSizeForHighPriorityWrites)."""

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
        """The mark below which a full disk takes writes again."""
        if self.recovered_fraction is not None:
            return self.recovered_fraction
        return (self.full_fraction + self.almost_full_fraction) / 2

    def high_priority_room_bytes_or_default(self, entry_log_bytes_max: int) -> int:
        """What must be free on a full disk for the adds of recovery."""
        for size_bytes in (self.high_priority_room_bytes, self.checkpoint_reserve_bytes):
            if size_bytes is not None:
                return size_bytes
        return entry_log_bytes_max


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of compaction of the entry logs (storage section 7.3); the defaults are those of minor compaction."""

    threshold: float = 0.2
    """Logs of which less than this part is in use are compacted; 0 or less: this compaction is off
    (minorCompactionThreshold, majorCompactionThreshold)."""
    interval_s: float = 3600.0
    """Shortest time between two; 0 or less: off (minorCompactionInterval, majorCompactionInterval)."""
    duration_s_max: PositiveFloat | None = None
    """No further log is begun after this long; None: no limit (minorCompactionMaxTimeMillis,
    majorCompactionMaxTimeMillis, there in ms)."""

    @property
    def is_enabled(self) -> bool:
        """Whether it runs by itself."""
        return self.threshold > 0 and self.interval_s > 0


class MajorCompactionConfig(CompactionConfig, frozen=True, kw_only=True):
    """The same for major compaction."""

    threshold: float = 0.8
    interval_s: float = 86_400.0


class GarbageCollectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When the space of deleted ledgers comes back, and what that may cost (storage section 7)."""

    wait_s: PositiveFloat = 600.0
    """Time between two rounds (gcWaitTime, there in ms)."""
    metadata_operations_per_s_max: Annotated[float, Meta(ge=0)] = 1000.0
    """Requests to ZooKeeper in any one second; 0: as fast as it goes (gcMetadataOpRateLimit)."""
    overreplicated_wait_s: float = 86_400.0
    """Time between two searches for copies that the metadata no longer names; 0 or less: never
    (gcOverreplicatedLedgerWaitTime, there in ms)."""
    overreplicated_in_flight_max: PositiveInt = 1000
    """Ledgers such a search looks at at once (gcOverreplicatedLedgerMaxConcurrentRequests)."""
    minor: CompactionConfig = CompactionConfig()
    """The frequent compaction, of logs that are nearly empty."""
    major: MajorCompactionConfig = MajorCompactionConfig()
    """The rare compaction, of fuller logs."""
    is_forced_compaction_allowed: bool = False
    """Whether a forced round runs a compaction that is switched off (forceAllowCompaction)."""
    is_forced_when_full: bool = False
    """Whether a full disk forces rounds, instead of suspending compaction (isForceGCAllowWhenNoSpace)."""
    is_throttled_by_bytes: bool = False
    """Whether copying is limited by bytes, not by entries (isThrottleByBytes)."""
    copied_entries_per_s_max: PositiveFloat = 1000.0
    """Entries that compaction copies in a second, in each ledger directory (compactionRateByEntries)."""
    copied_bytes_per_s_max: PositiveFloat = 1_000_000.0
    """Bytes that compaction copies in a second, in each ledger directory (compactionRateByBytes)."""
    outstanding_entries_max: PositiveInt = 100_000
    """Entries copied before they are synced and the index is changed (compactionMaxOutstandingRequests)."""
    is_transactional: bool = False
    """Whether the survivors of a log get a log of their own, instead of joining new entries
    (useTransactionalCompaction)."""
    is_target_size_used: bool = False
    """Whether usage is measured against a log of full size, so that small logs are merged
    (useTargetEntryLogSizeForGc)."""

    def __post_init__(self) -> None:
        for name, compaction in (("minor", self.minor), ("major", self.major)):
            if not compaction.is_enabled:
                continue
            if compaction.threshold > 1:
                raise ValueError(
                    f"the {name} compaction threshold ({name}CompactionThreshold) is {compaction.threshold:g}, but a "
                    "log is at most wholly in use: give at most 1"
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
    """How a bookie that lost entries gets them back from others (storage section 9)."""

    is_enabled: bool = False
    """Whether ``stamps_missing_cookies`` may be set. A repair that is due is made in any case, for without it the
    bookie would deny what it acknowledged (dataIntegrityChecking)."""
    stamps_missing_cookies: bool = False
    """Whether an emptied folder is taken into use again, and filled from other bookies; False: the bookie refuses to
    start (dataIntegrityStampMissingCookies)."""
    bytes_per_s_max: PositiveInt = 50 * 1024 * 1024
    """Bytes of entries fetched in any one second."""
    retry_delay_s: PositiveFloat = 3.0
    """Pause after a round that could not repair everything; it doubles with every one in a row, up to 100 times."""

    def __post_init__(self) -> None:
        if self.stamps_missing_cookies and not self.is_enabled:
            raise ValueError(
                "stamps_missing_cookies (dataIntegrityStampMissingCookies) needs is_enabled (dataIntegrityChecking)"
            )


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One bookie: who it is, where it listens, where its data is."""

    metadata_uri: str
    """Cluster it belongs to (metadataServiceUri)."""
    storage: StorageConfig
    """Folders and limits of the storage floor."""
    bookie_id: str | None = None
    """Identity; None: ``<address>:<port>`` (bookieId)."""
    advertised_address: str | None = None
    """Host name or address that clients connect to; None: the address of this host's name (advertisedAddress)."""
    listening_interface: str | None = None
    """Interface whose first address the bookie has and listens on; None: all of them (listeningInterface)."""
    is_host_name_id: bool = False
    """Whether the address in its id is the canonical name of its host (useHostNameAsBookieID)."""
    is_host_name_short: bool = False
    """Whether that name ends before its first dot (useShortHostName)."""
    is_storage_expansion_allowed: bool = False
    """Whether ledger folders may be added while it holds no ledger; later never, whatever this says
    (allowStorageExpansion)."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 3181
    """TCP port; 0 takes a free one (bookiePort)."""
    is_loopback_allowed: bool = False
    """Whether the address may be one that only this machine reaches (allowLoopback)."""
    is_read_only: bool = False
    """Serve reads and recovery only, for the whole run (forceReadOnlyBookie)."""
    flush_interval_s: PositiveFloat = 10.0
    """Longest time between two checkpoints (flushInterval, there in ms)."""
    throttle_max_s: PositiveFloat = 10.0
    """Longest wait of an add for room in the write cache (dbStorage_maxThrottleTimeMs, there in ms)."""
    connections_max: PositiveInt = 2000
    """Connections served at once; a further one is closed."""
    connection_memory_bytes_max: Annotated[int, Meta(ge=16 * 1024 * 1024)] = 256 * 1024 * 1024
    """What all connections may hold together in requests, frames under way and answers not taken, besides 64 KiB each;
    at the limit less is read, and reads are refused that would wait behind too many others of their connection."""
    connection_stall_s_max: PositiveFloat = 60.0
    """How long a peer may stand still within a frame or with answers untaken. Silence between requests has no limit."""
    frame_bytes_max: PositiveInt32 = 5 * 1024 * 1024
    """Largest frame, its length word included (nettyMaxFrameSizeBytes)."""
    disks: DiskConfig = DiskConfig()
    """When disks count as full, and what happens then."""
    garbage_collection: GarbageCollectionConfig = GarbageCollectionConfig()
    """Deleted ledgers and the space they took."""
    integrity: IntegrityConfig = IntegrityConfig()
    """How entries that were lost are fetched from other bookies."""
    zookeeper: ZooKeeperConfig = ZooKeeperConfig()
    """Session with the metadata store."""
