"""The state of a cluster as far as it was measured, for ``cluster_status.py``. Pure.

A part that did not answer is None, and ``ClusterFacts.unknown`` has the reason. Only while bookies are down, there is
what a short scan of the ledgers' metadata found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_status import NotedLosses, RecoveryStatus
from bkctl.runtime.metadata.replication.switches import SwitchNote
from bkctl.runtime.replication.judge.advice import AcceptedLosses, used_fraction
from bkctl.runtime.replication.judge.drained_bookies import DrainedBookie, is_drain_order
from bkctl.runtime.replication.judge.needed_bookies import Idle
from bkctl.runtime.replication.judge.no_live_copy import NoLiveCopy, noted_without_copy

_OUT_OF_SPACE = frozenset({"disk_full", "no_room", "journal_full"})
"""Of the reasons that a bookie gives."""


class BookieFacts(msgspec.Struct, frozen=True):
    """A bookie. ``is_writable`` None: not registered. ``problem``: why a registered one did not report its disks.

    ``is_refusing``: the problem is what it answered; ``is_client_refused``: it is about this client. ``order``: the
    operator's reason. ``read_only_reasons``: why it is read-only, a stable word and a text for each. ``trouble``: what
    its registration says is wrong with it. ``serves_unregistered``: it is not registered, but answers.
    """

    bookie_id: str
    is_writable: bool | None
    has_cookie: bool
    total_bytes: int | None = None
    free_bytes: int | None = None
    problem: str | None = None
    is_refusing: bool = False
    is_client_refused: bool = False
    read_only_reasons: Mapping[str, str] = {}
    order: str = ""
    trouble: str = ""
    serves_unregistered: bool = False

    @property
    def is_registered(self) -> bool:
        """Whether the bookie has a registration."""
        return self.is_writable is not None

    @property
    def used_fraction(self) -> float | None:
        """Used part of its disks; None if unknown."""
        return used_fraction(self.total_bytes, self.free_bytes)

    @property
    def is_drained(self) -> bool:
        """Whether a drain has made it read-only, as far as it says why."""
        return self.is_writable is False and is_drain_order(self.order)

    def leaves(self, recovering: Collection[str]) -> bool:
        """Whether it is read-only because of a drain. ``recovering``: bookies whose ledgers a command moves."""
        is_leaving = self.is_drained or self.bookie_id in recovering
        return self.is_writable is False and self.out_of_space is None and is_leaving

    @property
    def out_of_space(self) -> str | None:
        """Why it is read-only, if it has no space left."""
        return next((text for word, text in self.read_only_reasons.items() if word in _OUT_OF_SPACE), None)

    def why_idle(self, recovering: Collection[str]) -> Idle:
        """Why it takes no entries. ``recovering``: bookies whose ledgers a command moves."""
        if self.bookie_id in recovering:
            return Idle.LEAVING
        if not self.is_registered:
            return Idle.OTHER if self.serves_unregistered else Idle.DOWN
        if self.out_of_space is not None:
            return Idle.SPACE
        if "manual" in self.read_only_reasons:
            return Idle.DRAIN if self.is_drained else Idle.OPERATOR
        return Idle.OTHER


class MarkCount(msgspec.Struct, frozen=True):
    """Marks of under-replicated ledgers: ``at_least`` were read; there are not more than ``at_most`` (None: unknown).

    ``oldest_ms``: when the oldest of those read was made.
    """

    at_least: int
    at_most: int | None
    oldest_ms: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all marks were read."""
        return self.at_least == self.at_most

    @property
    def ledgers(self) -> str:
        """The number with its noun and verb, like "2 ledgers are"."""
        return "1 ledger is" if self.at_least == self.at_most == 1 else f"{self} ledgers are"

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self.at_least:,}"
        if self.at_most is None:
            return f"at least {self.at_least:,}"
        return f"{self.at_least:,} to {self.at_most:,}"


class RepairLocks(msgspec.Struct, frozen=True):
    """Held replication locks: how many, how many of each holder (of those read), since when the oldest is held."""

    count: int
    holders: Mapping[str, int]
    oldest_ms: int | None = None


class AuditorStatus(msgspec.Struct, frozen=True):
    """The auditor; ``is_elected`` False: there is none. ``bookie_id`` is None if its vote cannot be read."""

    is_elected: bool
    bookie_id: str | None = None


class AutorecoveryStatus(msgspec.Struct, frozen=True):
    """Switches of autorecovery. ``off_since_ms`` None: enabled. ``delay_s`` None: never set."""

    off_since_ms: int | None = None
    note: SwitchNote = SwitchNote()
    delay_s: int | None = None
    full_check_ms: int | None = None
    """When the last check of all ledgers ended; None: never."""


class RootStatus(msgspec.Struct, frozen=True):
    """The root: identity, unfinished work, and why changes are forbidden (None: they are not)."""

    instance_id: str | None = None
    is_restore_unfinished: bool = False
    migration: str | None = None
    operations: tuple[str, ...] = ()
    """Commands that are changing the cluster or one of its bookies."""
    recovering: frozenset[str] = frozenset()
    """Bookies whose ledgers one of them moves to others."""
    removing: frozenset[str] = frozenset()
    """Those of them that it removes from the cluster, which must be stopped at last."""


class DownReferences(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the bookies that are down, ``bookie_ids``, the metadata of the ``ledgers`` that were read names.

    Those whose ledgers a command moves are not among them, but ``no_live_copy`` is about all that are down.
    ``why_unknown``: why not all could be read; None: all were, or all bookies are in ``referenced``: the others are not
    referenced.
    """

    bookie_ids: frozenset[str]
    referenced: frozenset[str]
    ledgers: int
    why_unknown: str | None = None
    no_live_copy: NoLiveCopy = NoLiveCopy()
    can_move: bool = True
    """Whether one of them has a segment with a live copy of each entry, and enough writable bookies for its copies."""
    lacks_targets: bool = False
    """Whether one has a segment with a live copy of each entry, and too few writable bookies for its copies."""
    has_source: bool = True
    """Whether one has a segment with copies to be made and a live copy of each entry."""

    @property
    def unreferenced(self) -> frozenset[str]:
        """Bookies that no ledger names: proven, not only not found."""
        return frozenset() if self.why_unknown is not None else self.bookie_ids - self.referenced


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a cluster now; a part is None if it is unknown, and ``unknown`` has the reasons."""

    now_ms: int
    zookeeper_ms: float | None = None
    """How long ZooKeeper took to answer; None: it did not."""
    root: RootStatus | None = None
    bookies: tuple[BookieFacts, ...] | None = None
    marks: MarkCount | None = None
    locks: RepairLocks | None = None
    auditor: AuditorStatus | None = None
    recovery: RecoveryStatus | None = None
    """The notes of autorecovery."""
    autorecovery: AutorecoveryStatus | None = None
    references: DownReferences | None = None
    """None: no bookie is down."""
    usual_size: int = 0
    """How many bookies a new ledger usually needs, by the ledgers that were read; 0: none was."""
    given_up: AcceptedLosses = AcceptedLosses()
    """Ledgers with losses that an operator accepted."""
    drained: Mapping[str, DrainedBookie] = {}
    """Read-only bookies that leave, as far as it is known what is left there."""
    unknown: Mapping[str, str] = {}
    refused: frozenset[str] = frozenset()
    """Those of ``unknown`` that this user may not read in ZooKeeper."""

    @property
    def down(self) -> list[str]:
        """Bookies that are not registered, but for those that no ledger names."""
        gone = [each.bookie_id for each in self.bookies or () if not each.is_registered]
        return [each for each in gone if each not in self.unreferenced]

    @property
    def may_return(self) -> frozenset[str]:
        """Those of the bookies that are down which a start brings back: they have a cookie."""
        with_cookie = (each.bookie_id for each in self.bookies or () if each.has_cookie)
        return frozenset(self.down).intersection(with_cookie)

    @property
    def serving(self) -> frozenset[str]:
        """Bookies that are not registered, but answer."""
        return frozenset(each.bookie_id for each in self.bookies or () if each.serves_unregistered)

    @property
    def unreferenced(self) -> list[str]:
        """Bookies with a cookie that are not registered, and that no ledger names."""
        unreferenced = frozenset[str]() if self.references is None else self.references.unreferenced
        return [each.bookie_id for each in self.bookies or () if each.bookie_id in unreferenced]

    @property
    def removed(self) -> frozenset[str]:
        """Bookies in maintenance that are neither registered nor have a cookie."""
        known = {each.bookie_id for each in self.bookies or ()}
        return frozenset(each.bookie_id for each in self.maintenance if self.bookies and each.bookie_id not in known)

    @property
    def no_live_copy(self) -> NoLiveCopy:
        """Ledgers that the start of a bookie would bring back: those that were read, else those in the notes."""
        read = NoLiveCopy() if self.references is None else self.references.no_live_copy
        losses = NotedLosses() if self.recovery is None else self.recovery.losses
        noted = noted_without_copy(losses, self.may_return)
        return noted if noted.ledgers and not read.ledgers else read

    @property
    def recovering(self) -> frozenset[str]:
        """Bookies whose ledgers a command moves."""
        return frozenset() if self.root is None else self.root.recovering

    @property
    def waiting_for_stop(self) -> list[str]:
        """Bookies that a decommission has emptied and that serve."""
        emptied = self.removing & self.drained.keys()
        return sorted(each for each in emptied if not self.drained[each].is_referenced)

    @property
    def removing(self) -> frozenset[str]:
        """Those of ``recovering`` that the command removes."""
        return frozenset() if self.root is None else self.root.removing

    @property
    def maintenance(self) -> tuple[Maintenance, ...]:
        """Bookies in maintenance."""
        return () if self.recovery is None else self.recovery.maintenance


def total_marks(marks: MarkCount | None) -> int | None:
    """How many ledgers are marked; None: not all marks were counted."""
    return None if marks is None else marks.at_most


def first_counted(before: ClusterFacts | None, now: ClusterFacts) -> ClusterFacts:
    """The status from which a watch measures its pace: the first that counted all marks, else the present one."""
    return now if before is None or total_marks(before.marks) is None else before


def seconds_left(before: ClusterFacts, now: ClusterFacts) -> float | None:
    """Time until no ledger is marked, at the pace between both; None if it is unknown, or no mark was cleared."""
    counts = [total_marks(before.marks), total_marks(now.marks)]
    seconds = (now.now_ms - before.now_ms) / 1000
    if counts[0] is None or counts[1] is None or seconds <= 0 or counts[1] >= counts[0]:
        return None
    return counts[1] * seconds / (counts[0] - counts[1])
