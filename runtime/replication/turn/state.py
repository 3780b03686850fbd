"""What one turn knows: its task, its lock, what was copied, and what failed."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.placement.rules import BrokenRule
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.stripe import StripeReplicator
from bkctl.runtime.replication.judge.fragments import EntryRange, Fragment
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, SourceDefect
from bkctl.runtime.replication.policy import Policy
from bkctl.runtime.replication.turn.live_bookies import LiveBookies
from bkctl.runtime.replication.turn.target_chooser import TargetChooser
from bkctl.runtime.replication.turn.task import LedgerTask

ZOOKEEPER = "ZooKeeper"


class LockLostError(Exception):
    """The lock was lost, so another process may be copying now: stop writing."""


class StripePosition(NamedTuple):
    """One ensemble index of one segment; -1 means the whole open last segment."""

    first_entry_id: int
    ensemble_index: int


class Move(NamedTuple):
    """A verified copy of the stripe of a position on its new bookie.

    ``member_since``: when the target's cookie was created, before the copy began. ``copied_ns``: when it was verified.
    """

    target: str
    member_since: int
    copied_ns: int
    entries: int
    bytes_copied: int
    broken_rules: tuple[BrokenRule, ...] = ()


class FoundFailure(NamedTuple):
    """A failure and its fragment. If another process changes this fragment, the failure is outdated."""

    fragment: Fragment | None
    failure: LedgerFailure


@dataclasses.dataclass(frozen=True)
class TurnTools:
    """Objects that the turns of one run share."""

    ports: ClientPorts
    locks: ReplicationLocks
    replicator: StripeReplicator
    live_bookies: LiveBookies
    targets: TargetChooser
    outage: OutageWait
    policy: Policy
    silent_members: dict[str, str]
    """Bookies that stopped answering to adds, with the reason: their bad copies are left until the next outage ends."""


@dataclasses.dataclass
class RewrittenCopies:
    """Bad copies that were written again, and their bytes. They stay counted when a turn begins again."""

    copies: int = 0
    size_bytes: int = 0


class BadStripe(NamedTuple):
    """A stripe that moves because of bad records that must not be written over."""

    bookie_id: str
    copies: int
    entries: tuple[EntryRange, ...]


@dataclasses.dataclass
class TurnState:
    """State of the work on one ledger under its lock."""

    tools: TurnTools
    lock: ReplicationLock
    task: LedgerTask
    """Gets segments to leave, if bad records on other bookies than bkctl's must not be written over."""
    activity: LedgerActivity
    stored: Versioned[LedgerMetadata] | None
    """The metadata, if it is known what is stored now."""
    written: RewrittenCopies
    is_lock_ours: bool
    """Whether the last change may release the lock."""
    ledger_state: LedgerState = LedgerState.OPEN
    was_closed: bool = False
    is_rewritten: bool = False
    """Whether the bad copies of the task were written again, as far as that is possible."""
    moves: dict[StripePosition, Move] = dataclasses.field(default_factory=dict)
    unusable: dict[str, str] = dataclasses.field(default_factory=dict)
    """Targets that rejected or lost copies of this ledger, with the reason; not tried again (bk#4668)."""
    refusing: set[str] = dataclasses.field(default_factory=set)
    """Those of them that did not accept this client."""
    failures: dict[StripePosition, FoundFailure] = dataclasses.field(default_factory=dict)
    defects: list[SourceDefect] = dataclasses.field(default_factory=list)
    bad_left: list[LedgerFailure] = dataclasses.field(default_factory=list)
    """Bad copies that stay where they are."""
    bad_stripes: dict[StripePosition, BadStripe] = dataclasses.field(default_factory=dict)

    def fail(
        self,
        metadata: LedgerMetadata,
        position: StripePosition,
        reason: FailureReason,
        entries: tuple[EntryRange, ...],
        detail: str,
        absent: tuple[str, ...] = (),
        *,
        is_refused: bool = False,
    ) -> None:
        """Record why a position stays as it is; ``absent`` and ``is_refused`` as in ``LedgerFailure``."""
        failure = LedgerFailure(self.task.ledger_id, reason, entries, detail, absent=absent, is_refused=is_refused)
        self.failures[position] = FoundFailure(self.fragment_at(metadata, position), failure)

    async def read(self) -> Versioned[LedgerMetadata]:
        """Read the stored metadata, and drop failures whose fragment has changed."""
        versioned, self.stored = self.stored, None
        if versioned is None:
            with self.activity.waiting(ZOOKEEPER):
                versioned = await self.tools.ports.ledgers.read(self.task.ledger_id)
        if versioned.value.state < self.ledger_state:
            raise ConflictError(f"ledger {self.task.ledger_id}: its state went backwards; older metadata was restored")
        self.ledger_state = versioned.value.state
        self.failures = {
            position: found
            for position, found in self.failures.items()
            if found.fragment == self.fragment_at(versioned.value, position)
        }
        return versioned

    def require_lock(self) -> None:
        """LockLostError if another process may work on the ledger now."""
        if not self.lock.is_held:
            raise LockLostError

    def fragment_at(self, metadata: LedgerMetadata, position: StripePosition) -> Fragment | None:
        """The fragment that references a leaving bookie at this position; None if there is none."""
        for fragment in self.task.fragments(metadata):
            indexes = (-1,) if fragment.is_open else fragment.bookie_indexes
            if fragment.entries.first_entry_id == position.first_entry_id and position.ensemble_index in indexes:
                return fragment
        return None

    def keep_failures_of(self, metadata: LedgerMetadata) -> None:
        """Update the fragments of failures after our own change, which does not make them outdated."""
        self.failures = {
            position: FoundFailure(self.fragment_at(metadata, position), found.failure)
            for position, found in self.failures.items()
        }
