"""What bookies ledgers need that are down, and whether writers find enough writable ones: as in the status. Pure."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, Segment
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import LedgerCount
from bkctl.runtime.replication.judge.advice import (
    STATUS_WATCH,
    Advice,
    down_severity,
    in_maintenance,
    is_back,
    ledgers_moving,
    recover_command,
    serves_unregistered,
    show_command,
)
from bkctl.runtime.replication.judge.drained_bookies import LeavingBookie, leaving_findings
from bkctl.runtime.replication.judge.verdict import ReplicationRow, ReplicationState, judge_metadata, wanted_members
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, capitalized, counted, enumerated

_USUAL_PART = 4


class Idle(enum.Enum):
    """Why a bookie takes no entries of new ledgers; first what is ended the fastest."""

    DRAIN = "drain"  # that no command continues now
    OPERATOR = "operator"
    SPACE = "space"
    DOWN = "down"
    OTHER = "other"
    LEAVING = "leaving"  # a command moves its ledgers


_GAINED = (Idle.DRAIN, Idle.OPERATOR, Idle.SPACE, Idle.DOWN)
"""A step of an operator makes these take copies."""


class WritableBookies(msgspec.Struct, frozen=True):
    """How many bookies take entries of new ledgers, and why the others do not. ``usual_size``: see the function."""

    writable: int
    idle: Mapping[str, Idle] = {}
    usual_size: int = 0

    @property
    def are_enough(self) -> bool:
        """Whether most new ledgers can be created."""
        return self.missing <= 0

    @property
    def missing(self) -> int:
        """How many more most new ledgers need."""
        return max(1, self.usual_size) - self.writable


def usual_size(ledgers: Mapping[int, int]) -> int:
    """What at least a quarter of the ledgers need: an ensemble of so many bookies, or more. 0 if there are no ledgers.

    ``ledgers``: how many, by the size of their ensembles. A few ledgers of an unusual size do not count.
    """
    enough, found = sum(ledgers.values()) / _USUAL_PART, 0
    for size in sorted(ledgers, reverse=True):
        found += ledgers[size]
        if found >= enough:
            return size
    return 0


def writers_stop(found: WritableBookies) -> Advice:
    """Too few bookies take new entries: new ledgers cannot be created, and writers cannot replace a bookie."""
    steps = steps_for_writers(found)
    command, how = steps[0][1], steps[0][0] + next_steps(steps)
    if not found.writable:
        return Advice(Severity.CRITICAL, "no_writable_bookie", f"no bookie is writable: {how}", command)
    return Advice(Severity.CRITICAL, "writers_stop", f"writers stop: {too_few_text(found)}; {how}", command)


def too_few_text(found: WritableBookies) -> str:
    """How many bookies are writable, and what that prevents."""
    which = counted(found.writable, "bookie is", "bookies are") if found.writable else "no bookie is"
    size = f"with {found.usual_size}, like many here, " if found.usual_size else ""
    return f"{which} writable, and ledgers {size}cannot be created"


def steps_for_writers(found: WritableBookies) -> list[tuple[str, str]]:
    """What gives writers as many bookies as they need, the fastest first, each with its command."""
    steps: list[tuple[str, str]] = []
    left = found.missing
    ids = {why: [each for each, reason in found.idle.items() if reason is why] for why in Idle}
    for why, names in ids.items():
        if names and left > 0 and why is not Idle.LEAVING:
            steps.append(_step(why, names, left))
            left -= len(names)
    if left > 0 and not ids[Idle.OTHER]:
        how = "add a bookie" if left == 1 else f"add {left} bookies"
        steps.append((how if found.writable or steps else "start one", "bkctl bookie list"))
    if found.missing > 1:
        how, command = steps[0]
        steps[0] = f"{how} ({found.missing} more bookies are needed)", command
    return steps


def more_targets(idle: Mapping[str, Idle], only_to: Collection[str] = ()) -> tuple[str, str]:
    """What helps if too few other bookies are writable to take copies, the fastest, and its command.

    ``idle``: why bookies of the cluster take none, without those that an operator awaits or that cannot start.
    ``only_to``: the only ones that the operator lets take copies.
    """
    if only_to:
        names = enumerated(sorted(only_to), shown_max=SHOWN_MAX)
        return f"{names} cannot take them: name others with --to, or leave it out", "bkctl bookie list"
    for why in _GAINED:
        if ids := sorted(each for each, reason in idle.items() if reason is why):
            how, command = _step(why, ids, 1)
            return f"{how}, or add a bookie", command
    return "add a bookie", "bkctl bookie list"


def targets_to_gain(idle: Mapping[str, Idle], leaving: Collection[str]) -> dict[str, Idle]:
    """Those of the bookies that ``more_targets`` may name at the end of a command that moves ledgers off ``leaving``:
    if one of these is down, its start makes the copies needless."""
    return {each: why for each, why in idle.items() if why in _GAINED and (each not in leaving or why is Idle.DOWN)}


def next_steps(steps: Sequence[tuple[str, str]]) -> str:
    """What follows the first step, as the rest of a sentence."""
    return "".join(f"; then {how}: {command}" for how, command in steps[1:])


def _step(why: Idle, names: Sequence[str], needed: int) -> tuple[str, str]:
    """What makes as many of these bookies writable as are needed, if there are so many, and its command."""
    first = names[:needed]
    these = enumerated(first, shown_max=SHOWN_MAX)
    if why is Idle.DRAIN:
        how = f"keep {these}, which a drain made read-only and no command empties now"
        return how, f"bkctl bookie undrain {' '.join(first)}"
    if why is Idle.OPERATOR:
        how = f"make {these} writable, which an operator set read-only"
        return how, f"bkctl bookie set-mode writable {' '.join(first)}"
    if why is Idle.SPACE:
        disks = "give it a disk" if len(first) == 1 else "give them disks"
        return f"free space on {these}, or {disks}", "bkctl help full-disk"
    if why is Idle.DOWN:
        is_choice = 1 < needed < len(names)
        which = enumerated(names, "or" if needed == 1 else "and", SHOWN_MAX)
        return f"start {f'{needed} of ' if is_choice else ''}{which}", show_command(names)
    add = "is not writable, or add a bookie" if len(first) == 1 else "are not writable, or add bookies"
    return f"find out why {these} {add}", f"bkctl bookie state {first[0]}"


class NeededBookies:
    """Collects what ledgers need, then says how bad it is that bookies are down, and what to do."""

    def __init__(
        self,
        live: Collection[str],
        *,
        writable: Collection[str] | None = None,
        given_up: Mapping[int, GivenUpNote] = MappingProxyType({}),
        maintenance: Collection[Maintenance] = (),
        now_ms: int = 0,
        is_repaired: bool = True,
        idle: Mapping[str, Idle] = MappingProxyType({}),
        returned: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        serving: Collection[str] = (),
        leaving: Collection[LeavingBookie] = (),
    ) -> None:
        """``live``: all registered bookies. ``writable``: those of them that take copies; None: unknown.
        ``maintenance``: all of it. ``is_repaired``: see ``down_severity``. ``idle``: why bookies are not writable.
        ``returned``: registered bookies that were given up, with their ledgers. ``serving``: others that answer.
        ``leaving``: those that a drain made read-only."""
        self._live = live
        self._writable = writable
        self._given_up = given_up
        self._awaited = {each.bookie_id: each for each in maintenance if not each.is_overdue(now_ms)}
        self._now_ms = now_ms
        self._is_repaired = is_repaired
        self._idle = idle
        self._returned = returned
        self._serving = serving
        self._leaving = {each.bookie_id: each for each in leaving}
        self._are_some_down = False
        self._sizes = Counter[int]()
        self._movable = frozenset[str]()
        self._without_copy: dict[str, LedgerCount] = {}
        """Ledgers with entries that only the bookie, and others that are down, can have."""

    def needed(self, ledger_id: int, metadata: LedgerMetadata) -> frozenset[str]:
        """The bookies that a ledger needs: all that its metadata names, but for those whose loss was accepted."""
        self._sizes[metadata.ensemble_size] += 1
        members = metadata.bookies()
        if members.issubset(self._live):
            return members
        rows = judge_metadata(ledger_id, metadata, self._live, self._given_up.get(ledger_id)).rows
        needed = wanted_members(rows, members)
        self._are_some_down |= not needed.issubset(self._live)
        missing = needed.difference(self._live, self._awaited)
        self._movable |= movable_members(metadata, missing, self._writable or (), rows)
        unavailable = [row.missing_bookies for row in rows if row.replication is ReplicationState.UNAVAILABLE]
        for bookie_id in frozenset(itertools.chain.from_iterable(unavailable)):
            self._without_copy[bookie_id] = self._without_copy.get(bookie_id, LedgerCount()).plus(ledger_id)
        return needed

    def severity(self, bookie_id: str, down: int) -> Severity:
        """Of one of the ``down`` bookies that ledgers need, once all ledgers were added."""
        return down_severity(
            down,
            is_awaited=bookie_id in self._awaited and bookie_id not in self._without_copy,
            is_repaired=self._is_repaired or self._is_moving(bookie_id),
            has_live_copies=not self._without_copy,
        )

    def cure(self, bookie_id: str, *, has_cookie: bool) -> str | None:
        """What to do about a bookie that is down, once all ledgers were added; None: recover it, or start it."""
        is_movable, lost = bookie_id in self._movable, self._without_copy.get(bookie_id)
        moving = ledgers_moving([bookie_id]) if self._is_moving(bookie_id) else None
        if bookie_id in self._serving:
            (advice,) = serves_unregistered([bookie_id])
            return f"{capitalized(advice.sentence)}: {advice.command}."
        if lost is None and (moving is not None or bookie_id in self._awaited):
            advice = moving or in_maintenance([self._awaited[bookie_id]], self._now_ms)
            end = "its time is over" if moving is None else "the command has ended"
            return f"Nothing before {end}: {advice.sentence}. {advice.command} shows it."
        if self._writable is None:
            return None
        recover = recover_command([bookie_id])
        if lost is not None and has_cookie:
            which = counted(lost.ledgers, "ledger has", "ledgers have")
            text = f"Start the bookie first: {which} entries without a live copy, which a recovery does not find "
            text += f"either; bkctl ledger explain {lost.first_ids[0]}."
            more = f" Once it is known that the disks are lost, {recover} copies the other ledgers."
            if moving is not None:
                more = f" {capitalized(moving.sentence)}: {moving.command}."
            if bookie_id in self._awaited:
                text += f" {capitalized(in_maintenance([self._awaited[bookie_id]], self._now_ms).sentence)}."
            return text + (more if is_movable or moving is not None else "")
        return None if is_movable else _cure_without_move(recover, lost, self._idle, has_cookie=has_cookie)

    def _is_moving(self, bookie_id: str) -> bool:
        return self._idle.get(bookie_id) is Idle.LEAVING

    def returned(self, bookie_id: str) -> tuple[str, str] | None:
        """What is wrong with a bookie that is back although it was given up, and what to do; None: it was not."""
        if bookie_id not in self._returned:
            return None
        advice = is_back(bookie_id, self._returned[bookie_id])
        return f"{capitalized(advice.sentence)}.", f"{advice.command} saves them."

    def leaving(self, bookie_id: str, writable: int) -> tuple[Severity, str, str] | None:
        """How bad it is, what it is, and what to do, if a drain made the bookie read-only, once all ledgers were
        added."""
        if bookie_id not in self._leaving:
            return None
        is_short = self.writers_stop(writable) is not None
        (advice,) = leaving_findings([self._leaving[bookie_id]], is_short=is_short, is_at_risk=self._are_some_down)
        return advice.severity, f"{capitalized(advice.sentence)}.", f"{advice.command or STATUS_WATCH}."

    def writers_stop(self, writable: int) -> tuple[str, str] | None:
        """What so few writable bookies prevent, and what helps, once all ledgers were added; None: they are enough."""
        found = WritableBookies(writable, self._idle, usual_size(self._sizes))
        if self._writable is None or not self._sizes or found.are_enough:
            return None
        steps = steps_for_writers(found)
        how, command = steps[0]
        return f"{capitalized(too_few_text(found))}.", f"{capitalized(how)}: {command}{next_steps(steps)}."


def _cure_without_move(recover: str, lost: LedgerCount | None, idle: Mapping[str, Idle], *, has_cookie: bool) -> str:
    restore = "restore its cookie with bkctl cookie create --from-config on its machine"
    if lost is not None:
        start = f"if its disks exist, {restore}, and start it; or start other bookies of these ledgers"
        return f"Nothing to copy from: {start}: bkctl ledger explain {lost.first_ids[0]}."
    others = {each: why for each, why in idle.items() if why in _GAINED and why is not Idle.DOWN}
    how, command = more_targets(others)
    how = f"{how} ({command})" if others else "add another"
    if has_cookie:
        return f"Start the bookie, or {how}: too few others are writable to take the copies."
    why = "because too few are writable to take the copies"
    return f"{capitalized(how)}, {why}; then {recover}. If only its cookie was lost, {restore}."


def members_with_source(
    metadata: LedgerMetadata, missing: Collection[str], rows: Iterable[ReplicationRow]
) -> dict[Segment, frozenset[str]]:
    """The ``missing`` bookies of each segment that has any and a live copy of each entry, so that a recovery moves it,
    if there are targets."""
    lost = {each.write_set.segment_first_entry_id for each in rows if each.replication is ReplicationState.UNAVAILABLE}
    gone = {segment: frozenset(missing).intersection(segment.ensemble) for segment in metadata.segments}
    return {segment: ids for segment, ids in gone.items() if ids and segment.first_entry_id not in lost}


def movable_members(
    metadata: LedgerMetadata, missing: Collection[str], writable: Collection[str], rows: Iterable[ReplicationRow]
) -> frozenset[str]:
    """Those of the bookies for whose copies there are enough other writable bookies."""
    found = members_with_source(metadata, missing, rows).items()
    return frozenset[str]().union(
        *(gone for each, gone in found if len(set(writable).difference(each.ensemble)) >= len(gone))
    )
