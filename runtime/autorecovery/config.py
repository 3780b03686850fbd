"""Settings of the autorecovery daemon; see ``bkctl.storage.setting``."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from bkctl.runtime.config import AdminConfig, ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.storage.setting import MEBIBYTE, Java, Setting

# fmt: off
# A setting takes at most three lines here; the formatter would use nine.


class AutorecoveryRole(enum.StrEnum):
    """What an autorecovery daemon does."""

    BOTH = "both"
    AUDITOR = "auditor"
    """Find ledgers that lack copies, and mark them."""
    WORKER = "worker"
    """Repair marked ledgers."""


class ReplicationTarget(enum.StrEnum):
    """Which bookie a worker copies to."""

    POLICY = "policy"
    """The bookie that the placement rules choose."""
    LOCAL = "local"
    """The worker's own bookie."""


class AutorecoveryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the auditor looks for and how often, and how the worker repairs."""

    role: Annotated[AutorecoveryRole, Setting(
        "What the daemon does: both, auditor or worker", flag="--role")] = AutorecoveryRole.BOTH
    lost_bookie_delay_s: Annotated[float, Setting(
        "How long a bookie must be gone before its ledgers are marked, if the cluster stores no delay", unit="s",
        low=0, java=Java("lostBookieRecoveryDelay", "s"))] = 300.0
    lost_bookies_share_max: Annotated[float, Setting(
        "While more than this share of all bookies is gone, nothing is marked", above=0, high=1)] = 0.5
    bookie_check_interval_s: Annotated[float, Setting(
        "Time between two audits of all bookies without an event; 0: only at the start", unit="s", low=0,
        java=Java("auditorPeriodicBookieCheckInterval", "s", is_zero_off=True))] = 86_400.0
    marks_in_flight_max: Annotated[int, Setting("Marks written at once", unit="marks", low=1)] = 200
    check_period_s: Annotated[float, Setting(
        "In this time a sample of the copies of every ledger is checked once; 0: never", unit="s", low=0,
        java=Java("auditorPeriodicCheckInterval", "s", is_zero_off=True))] = 604_800.0
    check_bytes_per_s: Annotated[int, Setting(
        "Bytes that the check of copies reads in a second", unit="bytes/s", low=1)] = 10 * MEBIBYTE
    check_entries_percentage: Annotated[int, Setting(
        "Entries of each copy that the check reads, besides the first and the last", unit="%", low=0, high=100,
        java=Java("auditorLedgerVerificationPercentage"))] = 0
    replicas_check_interval_s: Annotated[float, Setting(
        "Time between two counts of the copies of all ledgers; 0: never", unit="s", low=0,
        java=Java("auditorReplicasCheckInterval", "s", is_zero_off=True))] = 86_400.0
    placement_check_interval_s: Annotated[float, Setting(
        "Time between two checks of the placement of all ledgers; 0: never", unit="s", low=0,
        java=Java("auditorPeriodicPlacementPolicyCheckInterval", "s", is_zero_off=True))] = 86_400.0
    is_misplaced_marked: Annotated[bool, Setting(
        "The check of placement marks ledgers that break the rules, so that workers move copies",
        java=Java("repairedPlacementPolicyNotAdheringBookieEnabled"))] = False
    is_mark_time_stored: Annotated[bool, Setting(
        "Marks contain their time", java=Java("storeSystemTimeAsLedgerUnderreplicatedMarkTime"))] = True
    is_beside_pulsar_auditor: Annotated[bool, Setting(
        "The auditor runs although Pulsar's metadata driver elects one of its own; it then holds both offices")] = False
    replication_target: Annotated[ReplicationTarget, Setting(
        "Where the worker copies to: policy or local")] = ReplicationTarget.POLICY
    copy_bytes_per_s: Annotated[int | None, Setting(
        "Bytes that the worker copies in a second", unit="bytes/s", low=1, unset="unlimited",
        java=Java("replicationRateByBytes", off_from=-1))] = None
    failed_ledger_pause_first_s: Annotated[float, Setting(
        "Pause before the second repair of a ledger that could not be repaired; it doubles after each further one",
        unit="s", above=0)] = 10.0
    failed_ledger_pause_max_s: Annotated[float, Setting(
        "Longest pause between two repairs of such a ledger", unit="s", above=0,
        java=Java("lockReleaseOfFailedLedgerGracePeriod", "ms", off_from=0))] = 300.0
    own_bookie: Annotated[str | None, Setting(
        "Id of the bookie on this machine that replication_target local copies to", flag="--bookie-id",
        java=Java("bookieId"))] = None
    admin_socket: Annotated[str | None, Setting("Unix socket of the admin interface", flag="--admin-socket",
        unset="autorecovery-PID.admin.sock in the run directory")] = None
    admin: AdminConfig = AdminConfig()

    def require_own_bookie(self) -> None:
        """ConfigurationError if the worker is to copy to its own bookie and has none."""
        if self.replication_target is ReplicationTarget.LOCAL and self.own_bookie is None:
            raise ConfigurationError(
                "replication_target local needs the bookie of this machine: give its id with --bookie-id (bookieId)"
            )


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one daemon."""

    metadata_uri: str
    autorecovery: AutorecoveryConfig = AutorecoveryConfig()
    replication: ReplicationConfig = ReplicationConfig()
    client: ClientConfig = ClientConfig()
    zookeeper: ZooKeeperConfig = ZooKeeperConfig()
