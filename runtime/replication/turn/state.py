"""What one turn knows: its task, its lock, what was copied, and what failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.metadata.outage import MetadataOutage, OutageWait
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.placement.rules import BrokenRule
from bkctl.runtime.replication.config import CopyPace, OpenLedgers, Policy
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.copy.stripe_task import CopyTools, StripeTask
from bkctl.runtime.replication.judge.fragments import EntryRange, Fragment, fragments_at, repeats
from bkctl.runtime.replication.judge.ledger_result import LedgerFailure, SourceDefect
from bkctl.runtime.replication.plan.store import JobRange, RecoveryJob
from bkctl.runtime.replication.turn.bookies import LiveBookies, TargetChooser
from bkctl.runtime.replication.turn.loss_notes import LossNotes

ZOOKEEPER = "ZooKeeper"
RANGE_INTERVAL_NS = 5 * 10**9
"""How often the progress of a long copy is reported: a kill loses no more."""


class LedgerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with one ledger: bookies to replace, and bad copies to write again.

    ``leaving``: bookies to replace wherever the ledger names them; one that still serves is the preferred source of its
    own entries. ``leaving_segments``: the same, but only in the segments that begin with these entries. ``bad``:
    entries whose copies were found bad, by the bookie that the metadata names for them; then second places of bookies
    (``repeats``) are replaced, too. ``unreachable``: bookies that are never asked. No stripe moves to any of these.

    ``earlier_segment``: the last segment of an open ledger when it was first read, long enough ago for its writer to
    replace a leaving bookie; None: it was not read then.
    ``stored``: metadata that was read before, used if its version is still stored. ``bytes_to_copy``: an estimate, for
    the progress of the run. ``is_drain``: the leaving bookies
    serve, so a writer moves on with its next add. ``is_data_first``, ``must_improve``: see ``CopyNeed``.
    """

    ledger_id: int
    leaving: frozenset[str] = frozenset()
    leaving_segments: Mapping[int, frozenset[str]] = {}
    bad: Mapping[str, tuple[EntryRange, ...]] = {}
    unreachable: frozenset[str] = frozenset()
    earlier_segment: Segment | None = None
    stored: Versioned[LedgerMetadata] | None = None
    bytes_to_copy: int = 0
    is_drain: bool = False
    is_data_first: bool = False
    must_improve: bool = False

    def fragments(self, metadata: LedgerMetadata) -> list[Fragment]:
        """The segments that reference a leaving bookie, in their order."""
        found = [repeats(metadata, number) if self.bad else set[int]() for number in range(len(metadata.segments))]
        for number, segment in enumerate(metadata.segments):
            leaving = self.leaving_in(segment.first_entry_id)
            found[number].update(index for index, each in enumerate(segment.ensemble) if each in leaving)
        return [*fragments_at(metadata, found)]

    def leaving_in(self, first_entry_id: int) -> frozenset[str]:
        """The bookies to replace in the segment that begins with this entry."""
        return self.leaving | self.leaving_segments.get(first_entry_id, frozenset())

    def why_left_open(self, metadata: LedgerMetadata, policy: Policy) -> str | None:
        """Why an open last segment with a leaving bookie must be left alone; None: fence and close the ledger."""
        if policy.open_ledgers is OpenLedgers.FENCE or metadata.state is not LedgerState.OPEN:
            return None
        last = metadata.last_segment
        names = ", ".join(sorted(self.leaving_in(last.first_entry_id).intersection(last.ensemble)))
        if self.earlier_segment is None or policy.leaves_writers(is_drain=self.is_drain):
            return f"its last segment is open and references {names}"
        is_unchanged = self.earlier_segment == last
        return None if is_unchanged else f"its writer is active and its last segment still references {names}"


class LockLostError(Exception):
    """The lock was lost, so another process may be copying now: stop writing."""


class StripePosition(NamedTuple):
    """One ensemble index of one segment; -1 means the whole open last segment."""

    first_entry_id: int
    ensemble_index: int


class Move(NamedTuple):
    """A verified copy of the stripe of a position on its new bookie.

    ``member_since``: when the target's cookie was created, before the copy began. ``copied_ns``: when it was verified.
    ``note_version``: of the note of an accepted loss, None without one. ``present``: entries that were lost by it, and
    that the target has.
    """

    target: str
    member_since: int
    copied_ns: int
    entries: int
    bytes_copied: int
    broken_rules: tuple[BrokenRule, ...] = ()
    note_version: int | None = None
    present: tuple[EntryRange, ...] = ()


class FoundFailure(NamedTuple):
    """A failure and its fragment. If another process changes this fragment, the failure is outdated."""

    fragment: Fragment | None
    failure: LedgerFailure


class TurnTools:
    """What the turns of one run share: windows, byte rates, targets, the list of bookies, the wait for ZooKeeper."""

    def __init__(
        self,
        ports: ClientPorts,
        locks: ReplicationLocks,
        policy: Policy,
        *,
        known: Collection[str] = (),
        only_targets: Collection[str] = (),
        avoided: Collection[str] = (),
        on_outage: Callable[[MetadataOutage], None] = lambda _: None,
        job: RecoveryJob | None = None,
    ) -> None:
        """``known``: bookies that were registered when the run was planned. ``only_targets``: copy only to these;
        empty: to all. ``avoided``: a last resort as targets, because they leave. ``on_outage``: the wait for the
        metadata store begins or ends. ``job``: where long copies are recorded.
        """
        config, clock = policy.config, ports.clock
        self.ports = ports
        self.locks = locks
        self.policy = policy
        self.job = job
        self._on_outage = on_outage
        self.outage = OutageWait(ports.registrations.snapshot, clock, config.metadata_outage_max_s, self._note_outage)
        self.live_bookies = LiveBookies(ports.registrations, clock, config.registration_wait_s, known)
        self.targets = TargetChooser(
            self.live_bookies,
            ports.suspects,
            clock,
            ports.placement,
            config.placement,
            frozenset(only_targets),
            frozenset(avoided),
        )
        self.pacer = SharedPacer(clock)
        self.loss_notes = LossNotes(locks.store, ports.ledgers.root)
        self.set_pace(policy.pace)
        self._copies = CopyReader(ports, config, self.live_bookies.__contains__)
        self.copying = CopyTools(ports, self._copies, config, self.pacer, self._count_copied, self._note_verified)
        self.silent_members: dict[str, str] = {}
        """Bookies that stopped answering to adds, with the reason: their bad copies are left until the next outage
        ends."""
        self.entries_copied = 0
        self.bytes_copied = 0
        self._range_due_ns: dict[tuple[int, int, int], int] = {}

    def set_pace(self, pace: CopyPace) -> None:
        """Change the byte rates."""
        self.pacer.change(pace.bytes_per_s, pace.bytes_per_s_per_bookie)

    def _note_outage(self, outage: MetadataOutage) -> None:
        self.live_bookies.note_outage(is_over=outage.is_over)
        self._copies.note_outage()
        self.silent_members.clear()
        self._on_outage(outage)

    def _count_copied(self, entries: int, bytes_copied: int) -> None:
        self.entries_copied += entries
        self.bytes_copied += bytes_copied

    def _note_verified(self, stripe_task: StripeTask, entry_id: int) -> None:
        first_entry_id = stripe_task.fragment.entries.first_entry_id
        ledger_id = stripe_task.credentials.ledger_id
        stripe = (ledger_id, first_entry_id, stripe_task.index)
        now_ns = self.ports.clock.monotonic_ns()
        if entry_id >= stripe_task.last_entry_id:
            self._range_due_ns.pop(stripe, None)
        elif self.job is not None and now_ns >= self._range_due_ns.setdefault(stripe, now_ns + RANGE_INTERVAL_NS):
            self._range_due_ns[stripe] = now_ns + RANGE_INTERVAL_NS
            self.job.append(
                JobRange(
                    ledger_id=ledger_id,
                    first_entry_id=first_entry_id,
                    ensemble_index=stripe_task.index,
                    target=stripe_task.target,
                    last_entry_id=entry_id,
                )
            )


@dataclasses.dataclass
class RewrittenCopies:
    """Bad copies that were written again, and their bytes. They stay counted when a turn begins again."""

    copies: int = 0
    size_bytes: int = 0


class BadStripe(NamedTuple):
    """A stripe that moves. ``why``: ``MUST_MOVE`` or ``MUST_SPREAD``."""

    bookie_id: str
    copies: int
    entries: tuple[EntryRange, ...]
    why: str


@dataclasses.dataclass
class TurnState:
    """State of the work on one ledger under its lock."""

    tools: TurnTools
    lock: ReplicationLock
    task: LedgerTask
    """Gets segments to leave, if bad records on other bookies than bkctl's must not be written over."""
    activity: LedgerActivity
    silent_members: dict[str, str]
    """See ``TurnTools``."""
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
    loss_note: Versioned[GivenUpNote] | None = None
    """Of a loss that an operator accepted, as it is under the lock."""

    @property
    def note_version(self) -> int | None:
        """Its version."""
        return None if self.loss_note is None else self.loss_note.version

    def fail(self, metadata: LedgerMetadata, position: StripePosition, failure: LedgerFailure) -> None:
        """Record why a position stays as it is."""
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

    def begun(self, position: StripePosition) -> JobRange | None:
        """What an earlier run copied of a stripe."""
        ranges = () if self.tools.job is None else self.tools.job.file.ranges_of(self.task.ledger_id)
        return next((each for each in ranges if (each.first_entry_id, each.ensemble_index) == position), None)

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
