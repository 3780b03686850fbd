"""Whether bookies can be stopped now, or removed: the verdict over all ledgers. Pure.

A stop is refused where a ledger would lose its last readable copy, would have one copy or fewer than its ack quorum
because another is gone already, could not be closed, or would have a writer without a successor for the bookie. A
removal makes copies first, so it needs room for them instead. Both need enough bookies for the sizes of ledgers in use,
keep the racks, and wait for earlier failures. Source: replication sections 10, 15.2.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import negatives_needed
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.placement.choice import Choice, NoChoice, PlacementNeed, choose_ensemble, choose_replacements
from bkctl.runtime.placement.isolation import IsolationDemand, isolation_demand
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.placement.view import BookieSpace
from bkctl.runtime.replication.judge.advice import in_maintenance, recover_command
from bkctl.runtime.replication.judge.fragments import Fragment, fragments_naming
from bkctl.runtime.replication.judge.verdict import (
    WriteSetRow,
    bytes_on,
    judge_metadata,
    removed_members,
    wanted_members,
    write_set_rows,
)
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, enumerated

LEDGER_IDS_MAX = 100
"""Ledgers that an objection names."""
FREE_FRACTION_MIN = 0.01
"""A bookie with less free space than this part, or than the configured reserve, cannot take over.

It is small because bookies become read-only at thresholds of their own."""


class StopReason(enum.Enum):
    """Why a bookie should not be stopped or removed. The names appear in reports."""

    UNREADABLE = "entries without a running copy"
    UNCLOSABLE = "open ledgers that could not be closed"
    NO_SUCCESSOR = "writers without another bookie"
    NEW_LEDGERS = "new ledgers"
    NO_TARGET = "no bookie for the copies"
    SPACE = "not enough free space"
    PLACEMENT = "placement rules"
    BOOKIE_DOWN = "another bookie is down"
    BOOKIE_REMOVED = "a bookie that was removed"
    SILENT = "a bookie does not answer"
    MARKS = "under-replicated ledgers"
    STALE_MARKS = "marks of deleted ledgers"
    LAST_COPY = "one copy left"
    ACK_QUORUM = "fewer copies than the ack quorum"
    METADATA_UNREADABLE = "unreadable metadata"
    NOT_REGISTERED = "not registered"
    OPERATION = "a command that runs"


_WARNINGS = frozenset(
    {
        StopReason.BOOKIE_REMOVED,
        StopReason.METADATA_UNREADABLE,
        StopReason.NOT_REGISTERED,
        StopReason.STALE_MARKS,
    }
)


_COPIES_ELSEWHERE = {
    StopReason.UNREADABLE: "their other copies are on bookies that",
    StopReason.UNCLOSABLE: "too few of their other bookies serve: some",
    StopReason.LAST_COPY: "other bookies with a copy",
    StopReason.ACK_QUORUM: "other bookies with a copy",
}
"""Details that end with how other bookies are absent."""
_NO_OTHERS = {
    StopReason.UNREADABLE: "all their copies are on these bookies",
    StopReason.UNCLOSABLE: "too few of their other bookies would be left",
}
"""Details if all other bookies serve."""


class Objection(msgspec.Struct, frozen=True, kw_only=True):
    """One reason with its sentence, the number of ledgers, and the ids of the first ones. A critical one refuses."""

    reason: StopReason
    detail: str
    ledgers: int = 0
    ledger_ids: tuple[int, ...] = ()
    severity: Severity = Severity.CRITICAL

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


class _LedgerGroup(msgspec.Struct):
    """Ledgers with one reason. ``absent``: all other bookies that this reason is about; the detail ends with them."""

    detail: str
    ledgers: int = 0
    ledger_ids: list[int] = []
    absent: frozenset[str] = frozenset()


class StopVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict. ``bytes_on_them``: payload of closed ledgers that the metadata places on the bookies."""

    bookie_ids: tuple[str, ...]
    ledgers_scanned: int
    ledgers_on_them: int
    open_ledgers_on_them: int
    bytes_on_them: int
    writable_after: tuple[str, ...]
    objections: tuple[Objection, ...]

    @property
    def reasons(self) -> tuple[Objection, ...]:
        """The objections that refuse; empty: yes."""
        return tuple(each for each in self.objections if each.severity is Severity.CRITICAL)

    @property
    def warnings(self) -> tuple[Objection, ...]:
        """What the operator should know all the same."""
        return tuple(each for each in self.objections if each.severity < Severity.CRITICAL)

    @property
    def is_yes(self) -> bool:
        """Whether nothing refuses."""
        return not self.reasons


class ClusterNow(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at the moment of the verdict. ``with_cookie``: all bookies that belong to it, live or not.

    ``space``: of the bookies that answered. ``silent``: registered bookies that did not, which count as down.
    ``refusals``: what those of them said that answered with an error. ``maintenance``: all of it. ``given_up``: the
    bookies whose loss an operator accepted, by ledger.
    """

    registrations: Registrations
    with_cookie: Sequence[str]
    survey: BookieSurvey
    rules: PlacementRules
    space: Mapping[str, BookieSpace] = {}
    silent: frozenset[str] = frozenset()
    refusals: Mapping[str, str] = {}
    maintenance: Sequence[Maintenance] = ()
    given_up: Mapping[int, GivenUpNote] = {}
    now_ms: int = 0


class StopCheck:
    """Add every ledger of the cluster, then ask for the ``verdict``."""

    def __init__(
        self, bookie_ids: Sequence[str], cluster: ClusterNow, source: random.Random, *, is_removal: bool = False
    ) -> None:
        """``is_removal``: the bookies are to be removed, and serve until copies exist elsewhere."""
        self._ids = frozenset(bookie_ids)
        self._cluster = cluster
        self._source = source
        self._is_removal = is_removal
        self._live_now = cluster.registrations.live - cluster.silent
        self._live_after = self._live_now - self._ids
        writable = frozenset(cluster.registrations.writable) - cluster.silent
        self._full = frozenset(each for each in writable - self._ids if self._is_full(each))
        self._before = msgspec.structs.replace(cluster.survey, writable=writable)
        self._after = msgspec.structs.replace(cluster.survey, writable=writable - self._ids - self._full)
        self._rules = msgspec.structs.replace(cluster.rules, reserve_fraction=0.0)
        self._found: dict[tuple[StopReason, tuple[str, ...]], _LedgerGroup] = {}
        """By the reason, and how other bookies are absent."""
        self._sizes: Counter[tuple[int, int, IsolationDemand | None]] = Counter()
        """Ensemble size, write quorum and isolation of the ledgers in use."""
        self.referenced: set[str] = set()
        """All bookies that ledgers reference."""
        self._unmovable: set[str] = set()
        """Bookies that are down, and whose copies of some ledger no writable bookie could take."""
        self._successors: dict[tuple[object, ...], Choice | NoChoice] = {}
        self._scanned = self._on_them = self._open_on_them = self._bytes = 0

    def add(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """One ledger."""
        self._scanned += 1
        isolation = isolation_demand(metadata.custom_metadata)
        self._sizes[metadata.ensemble_size, metadata.write_quorum_size, isolation] += 1
        members, removed = metadata.bookies(), frozenset[tuple[int | None, str]]()
        if (note := self._cluster.given_up.get(ledger_id)) is not None:
            judged = judge_metadata(ledger_id, metadata, self._live_now, note).rows
            members, removed = wanted_members(judged, members), removed_members(judged)
        self.referenced |= members
        if gone := members - self._live_now - self._ids:
            for fragment in _without_target(metadata, gone, self._before.writable):
                self._unmovable.update(fragment.ensemble[index] for index in fragment.bookie_indexes)
        if self._ids.isdisjoint(members):
            return
        self._on_them += 1
        rows = write_set_rows(ledger_id, metadata)
        self._bytes += bytes_on(rows, self._ids)
        if not metadata.is_closed and not self._ids.isdisjoint(metadata.last_segment.ensemble):
            self._open_on_them += 1
            if metadata.state is LedgerState.OPEN:
                self._judge_writer(ledger_id, metadata, isolation)
        if not self._is_removal:
            answers_min = negatives_needed(metadata.write_quorum_size, metadata.ack_quorum_size)
            self._judge_copies(ledger_id, rows, answers_min, removed)
        elif any(_without_target(metadata, self._ids, self._after.writable)):
            size = f"E={metadata.ensemble_size}, Qw={metadata.write_quorum_size}"
            detail = f"{size}: every other writable bookie is in the ensemble already{self._excluded_note()}"
            self._note(StopReason.NO_TARGET, detail, ledger_id)

    def add_unreadable(self, ledger_id: int, problem: str) -> None:
        """A ledger whose metadata cannot be read."""
        self._scanned += 1
        self._note(StopReason.METADATA_UNREADABLE, f"their copies are unknown: {problem}", ledger_id)

    def verdict(self) -> StopVerdict:
        """The verdict on all ledgers that were added."""
        self._judge_sizes()
        self._judge_cluster()
        if self._is_removal:
            self._judge_space()
        order = list(StopReason)
        return StopVerdict(
            bookie_ids=tuple(sorted(self._ids)),
            ledgers_scanned=self._scanned,
            ledgers_on_them=self._on_them,
            open_ledgers_on_them=self._open_on_them,
            bytes_on_them=self._bytes,
            writable_after=tuple(sorted(self._after.writable)),
            objections=tuple(
                self._objection(*each) for each in sorted(self._found, key=lambda each: order.index(each[0]))
            ),
        )

    def _objection(self, reason: StopReason, verbs: tuple[str, ...]) -> Objection:
        group = self._found[reason, verbs]
        absences = [f"{verb} ({', '.join(sorted(ids))})" for verb, ids in self._absences(group.absent).items()]
        is_warning = reason in _WARNINGS or (reason is StopReason.PLACEMENT and not self._rules.is_strict)
        return Objection(
            reason=reason,
            detail=f"{group.detail} {enumerated(absences)}" if absences else group.detail,
            ledgers=group.ledgers,
            ledger_ids=tuple(group.ledger_ids),
            severity=Severity.WARNING if is_warning else Severity.CRITICAL,
        )

    def _note(
        self, reason: StopReason, detail: str, ledger_id: int | None = None, absent: frozenset[str] = frozenset()
    ) -> None:
        group = self._found.setdefault((reason, tuple(self._absences(absent))), _LedgerGroup(detail))
        group.absent |= absent
        if ledger_id is not None:
            group.ledgers += 1
            if len(group.ledger_ids) < LEDGER_IDS_MAX:
                group.ledger_ids.append(ledger_id)

    def _judge_copies(
        self, ledger_id: int, rows: Sequence[WriteSetRow], answers_min: int, removed: frozenset[tuple[int | None, str]]
    ) -> None:
        """Readability while the bookies are stopped: the worst finding of the ledger.

        ``answers_min``: answers of a write set of an open segment that prove where the ledger ends. ``removed``:
        bookies that were given up, each with the first entry of a segment.
        """
        found: dict[StopReason, frozenset[str]] = {}
        for row in rows:
            members = frozenset(row.write_set)
            now, after = members & self._live_now, members & self._live_after
            if after == now:
                continue
            needed = 1 if row.segment_last_entry_id is not None else answers_min
            absent = members - self._live_now
            may_serve = absent.difference(
                self._ids, (each for start, each in removed if start == row.segment_first_entry_id)
            )
            if not after:
                reason, absent = StopReason.UNREADABLE, may_serve
            elif len(after) < needed <= len(now):
                reason, absent = StopReason.UNCLOSABLE, may_serve
            # With all other copies a stop may go below the ack quorum: it takes no more than these bookies.
            elif absent and len(after) == 1:
                reason = StopReason.LAST_COPY
            elif absent and len(after) < (row.ack_quorum_size or 0):
                reason = StopReason.ACK_QUORUM
            else:
                continue
            found[reason] = found.get(reason, frozenset()) | absent
        if found:
            worst = min(found, key=list(StopReason).index)
            absent = found[worst]
            self._note(worst, _COPIES_ELSEWHERE[worst] if absent else _NO_OTHERS[worst], ledger_id, absent)

    def _absences(self, bookie_ids: frozenset[str]) -> dict[str, frozenset[str]]:
        """Why bookies do not serve, each with its reason, as a verb: who refuses this client runs."""
        refusing = bookie_ids & self._cluster.refusals.keys()
        silent = (bookie_ids & self._cluster.silent) - refusing
        found = {
            "are not running": bookie_ids - silent - refusing,
            "do not answer": silent,
            "refuse this client": refusing,
        }
        return {verb: ids for verb, ids in found.items() if ids}

    def _judge_writer(self, ledger_id: int, metadata: LedgerMetadata, isolation: IsolationDemand | None) -> None:
        """Whether the writer of an open ledger finds other bookies for those that leave its ensemble."""
        ensemble = metadata.last_segment.ensemble
        key = (ensemble, metadata.write_quorum_size, isolation)
        found = self._successors.get(key)
        if found is None:
            leaving = [index for index, member in enumerate(ensemble) if member not in self._live_after]
            need = PlacementNeed(write_quorum_size=metadata.write_quorum_size, isolation=isolation)
            view = self._after.view(ensemble)
            found = choose_replacements(view, self._rules, need, ensemble, leaving, self._source)
            self._successors[key] = found
        if isinstance(found, NoChoice) and found.best is None:
            self._note(StopReason.NO_SUCCESSOR, f"{found.sentence}{self._excluded_note()}", ledger_id)
            return
        choice = found.best if isinstance(found, NoChoice) else found
        if choice is not None and choice.broken:
            self._note(StopReason.PLACEMENT, f"every other bookie breaks one: {choice.broken[0]}", ledger_id)

    def _judge_sizes(self) -> None:
        """New ledgers of every size in use can still be placed, if they can be now."""
        before, after = self._before.view(), self._after.view()
        for (size, write_quorum_size, isolation), count in self._sizes.items():
            need = PlacementNeed(write_quorum_size=write_quorum_size, isolation=isolation)
            found = choose_ensemble(after, self._rules, need, size, self._source)
            if isinstance(found, Choice) and not found.broken:
                continue
            now = choose_ensemble(before, self._rules, need, size, self._source)
            name = f"E={size}, Qw={write_quorum_size}"
            if isinstance(found, NoChoice) and found.best is None:
                if isinstance(now, Choice) or now.best is not None:
                    left = len(self._after.writable)
                    self._note(
                        StopReason.NEW_LEDGERS,
                        f"{name} (used by {count:,} of {counted(self._scanned, 'ledger')}) needs {size} "
                        f"writable bookies, {left} would be left{self._excluded_note()}",
                    )
            elif isinstance(now, Choice) and not now.broken:
                choice = found.best if isinstance(found, NoChoice) else found
                assert choice is not None
                self._note(StopReason.PLACEMENT, f"new ledgers with {name}: {choice.broken[0]}")

    def note_gone(self, bookie_ids: Sequence[str]) -> None:
        """Bookies that left the cluster while the ledgers were read."""
        if bookie_ids:
            self._note(StopReason.BOOKIE_DOWN, f"{', '.join(bookie_ids)} went down during the check")

    def note_marks(self, ledgers: int, *, deleted: int = 0) -> None:
        """Ledgers marked as under-replicated, and marks of ledgers that do not exist."""
        if ledgers:
            self._note(StopReason.MARKS, f"{ledgers} marked: wait until they are repaired (bkctl autorecovery pending)")
        if deleted:
            self._note(
                StopReason.STALE_MARKS, f"{counted(deleted, 'mark')}: bkctl autorecovery repair-marks clears them"
            )

    def _judge_cluster(self) -> None:
        cluster = self._cluster
        down = sorted(self.referenced - self._live_now - self._ids - cluster.silent)
        resting = {each.bookie_id: each for each in cluster.maintenance if not each.is_overdue(cluster.now_ms)}
        members = [each for each in down if each in cluster.with_cookie and each not in resting]
        if members:
            sentence = f"{_bookies_are(members)} down and ledgers name {_them(members)}: start {_them(members)}"
            instead = f"bkctl decommission {' '.join(members)} first"
            if not self._unmovable.isdisjoint(members):
                instead = "add a bookie (no other writable one can take all copies)"
            self._note(StopReason.BOOKIE_DOWN, f"{sentence}, or {instead}")
        elif away := [resting[each] for each in down if each in resting]:
            self._note(StopReason.BOOKIE_DOWN, in_maintenance(away, cluster.now_ms).sentence)
        if removed := [each for each in down if each not in cluster.with_cookie]:
            sentence = f"{_bookies_are(removed)} no longer in the cluster, but ledgers name {_them(removed)}"
            command = f"{recover_command(removed)} moves those that have other copies"
            self._note(StopReason.BOOKIE_REMOVED, f"{sentence}: {command}")
        if cluster.silent:
            answers = {each: f"answers: {said}" for each, said in cluster.refusals.items()}
            silent = [
                f"bookie {each} is registered but {answers.get(each, 'does not answer')}"
                for each in sorted(cluster.silent)
            ]
            # Who refuses this client runs: a restart would not help, and its data is not lost.
            is_dead = cluster.silent - cluster.refusals.keys()
            remedy = "restart it, or decommission it first" if is_dead else "this client must be accepted first"
            self._note(StopReason.SILENT, f"{', '.join(silent)}: {remedy}")
        gone = sorted(self._ids - self._live_now)
        if gone:
            self._note(StopReason.NOT_REGISTERED, f"bookie {', '.join(gone)} is already down")

    def _judge_space(self) -> None:
        """Whether the other bookies have room for the copies, above their reserve."""
        known = [each for each in self._after.writable if each in self._cluster.space]
        if len(known) < len(self._after.writable):
            return
        space = {each: self._cluster.space[each] for each in known}
        free = sum(max(0, int(each.free_bytes - self._reserve() * each.total_bytes)) for each in space.values())
        if free < self._bytes:
            self._note(
                StopReason.SPACE,
                f"{self._bytes} bytes must be copied, and the other bookies have {free} bytes free above their reserve",
            )

    def _reserve(self) -> float:
        return max(FREE_FRACTION_MIN, self._cluster.rules.reserve_fraction)

    def _is_full(self, bookie_id: str) -> bool:
        space = self._cluster.space.get(bookie_id)
        return space is not None and space.free_bytes < self._reserve() * space.total_bytes

    def _excluded_note(self) -> str:
        """Registered writable bookies that do not count as such, and why."""
        silent = self._cluster.silent.intersection(self._cluster.registrations.writable)
        refusing = silent & self._cluster.refusals.keys()
        reasons = {
            "without space for more": self._full,
            "refusing this client": refusing,
            "without an answer": silent - refusing,
        }
        notes = [f"{reason}: {', '.join(sorted(found))}" for reason, found in reasons.items() if found]
        return f" ({'; '.join(notes)})" if notes else ""


def _without_target(
    metadata: LedgerMetadata, bookie_ids: frozenset[str], writable: frozenset[str]
) -> Iterator[Fragment]:
    """The fragments with more copies on these bookies than writable bookies outside of the ensemble could take."""
    for fragment in fragments_naming(metadata, bookie_ids):
        if len(writable.difference(fragment.ensemble)) < len(fragment.bookie_indexes):
            yield fragment


def _bookies_are(bookie_ids: Sequence[str]) -> str:
    return f"bookie {bookie_ids[0]} is" if len(bookie_ids) == 1 else f"bookies {', '.join(bookie_ids)} are"


def _them(bookie_ids: Sequence[str]) -> str:
    return "it" if len(bookie_ids) == 1 else "them"
