"""Messages between a recovery and its copy processes."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from runtime.config import ClientConfig, ZooKeeperConfig
from runtime.ledger.metadata import LedgerMetadata, Segment
from runtime.metadata.outage import MetadataOutage
from runtime.metadata.store import Versioned
from runtime.replication.config import OpenLedgers, ReplicationConfig
from runtime.replication.judge.ledger_result import LedgerRepaired
from runtime.replication.plan.job_file import JobRange

# -- to a copy process ---------------------------------------------------------------------------------------------


class RepairSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does with its ledgers, and its limits.

    ``leaving``, ``unreachable`` and ``open_ledgers``: see ``RepairOrder``. ``known``: bookies that were registered when
    the run was planned. ``only_targets``: copy only to these; empty: to all. ``avoided`` and ``process_count``: see
    ``TargetChooser``.
    """

    config: ReplicationConfig
    leaving: frozenset[str]
    unreachable: frozenset[str]
    open_ledgers: OpenLedgers
    known: tuple[str, ...]
    only_targets: tuple[str, ...]
    avoided: frozenset[str] = frozenset()
    process_count: int = 1


class CopyProcessSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How copy processes connect, and how many there are. The limits of ``zookeeper`` are those of all together.

    ``lock_holder``: see ``ReplicationLocks``.
    """

    metadata_uri: str
    client: ClientConfig
    zookeeper: ZooKeeperConfig
    lock_holder: str
    count: int


class CopySetup(msgspec.Struct, frozen=True, tag="setup"):
    """First message. The limits of ``repair`` are this process's share."""

    process: CopyProcessSetup
    repair: RepairSetup


class LedgerWork(msgspec.Struct, frozen=True, tag="work"):
    """A ledger to repair. ``ranges``: what an earlier run copied of it. The other fields: see ``RepairOrder``."""

    ledger_id: int
    seen: Segment | None = None
    ranges: tuple[JobRange, ...] = ()
    stored: Versioned[LedgerMetadata] | None = None


class CopyPace(msgspec.Struct, frozen=True, kw_only=True, tag="pace"):
    """This process's share of the byte rates from now on; None: no limit."""

    bytes_per_s: int | None
    bytes_per_s_per_bookie: int | None


ToProcess: TypeAlias = CopySetup | LedgerWork | CopyPace

# -- from a copy process -------------------------------------------------------------------------------------------


class LedgerFinished(msgspec.Struct, frozen=True, tag="finished"):
    """Result for a ledger."""

    result: LedgerRepaired


class RangeVerified(msgspec.Struct, frozen=True, tag="verified"):
    """A long copy has come this far."""

    range: JobRange


class CurrentLedger(msgspec.Struct, frozen=True):
    """A ledger in progress, since when on the monotonic clock, and what it waits for (see ``LedgerActivity``)."""

    ledger_id: int
    since_ns: int
    waits_for: str


class CopyMoment(msgspec.Struct, frozen=True, kw_only=True, tag="moment"):
    """What a process has copied so far, and its ledgers in progress, oldest first."""

    entries_copied: int
    bytes_copied: int
    current: tuple[CurrentLedger, ...]


class OutageNoted(msgspec.Struct, frozen=True, tag="outage"):
    """An outage of the metadata store began or ended, as this process sees it."""

    outage: MetadataOutage


class ProcessFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Last message of a process that cannot go on: class, sentence and znode of its error."""

    kind: str
    sentence: str
    path: str | None


FromProcess: TypeAlias = LedgerFinished | RangeVerified | CopyMoment | OutageNoted | ProcessFailed
