"""What a run tells its engine, and what the engine reports."""

from __future__ import annotations

import msgspec

from runtime.ledger.metadata import LedgerMetadata, Segment
from runtime.metadata.store import Versioned
from runtime.replication.config import OpenLedgers, ReplicationConfig
from runtime.replication.plan.job_file import JobRange


class RepairSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does with its ledgers, and its limits.

    ``leaving``, ``unreachable`` and ``open_ledgers``: see ``RepairOrder``. ``known``: bookies that were registered when
    the run was planned. ``only_targets``: copy only to these; empty: to all. ``avoided``: see ``TargetChooser``.
    """

    config: ReplicationConfig
    leaving: frozenset[str]
    unreachable: frozenset[str]
    open_ledgers: OpenLedgers
    known: tuple[str, ...]
    only_targets: tuple[str, ...]
    avoided: frozenset[str] = frozenset()


class LedgerWork(msgspec.Struct, frozen=True):
    """A ledger to repair. ``ranges``: what an earlier run copied of it. The other fields: see ``RepairOrder``."""

    ledger_id: int
    seen: Segment | None = None
    ranges: tuple[JobRange, ...] = ()
    stored: Versioned[LedgerMetadata] | None = None


class CopyPace(msgspec.Struct, frozen=True, kw_only=True):
    """The byte rates from now on; None: no limit."""

    bytes_per_s: int | None
    bytes_per_s_per_bookie: int | None


class CurrentLedger(msgspec.Struct, frozen=True):
    """A ledger in progress, since when on the monotonic clock, and what it waits for (see ``LedgerActivity``)."""

    ledger_id: int
    since_ns: int
    waits_for: str


class CopyMoment(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied so far, and the ledgers in progress, oldest first."""

    entries_copied: int
    bytes_copied: int
    current: tuple[CurrentLedger, ...]
