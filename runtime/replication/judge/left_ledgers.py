"""What a recovery or a drain has left, by what helps. Pure."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

import msgspec

from bkctl.runtime.replication.judge.advice import (
    GivenUpLedger,
    accept_loss_step,
    close_lost_step,
    show_command,
)
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure
from bkctl.runtime.replication.judge.needed_bookies import Idle, more_targets, targets_to_gain
from bkctl.runtime.replication.judge.no_live_copy import bookies_to_start, start_words
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, enumerated


class Shortage(msgspec.Struct, frozen=True):
    """What helps ledgers without a bookie to copy to. ``idle``, ``only_to``: see ``more_targets``. ``severity``: how
    bad the status calls it that bookies are down, or that few are writable."""

    idle: Mapping[str, Idle] = {}
    severity: Severity = Severity.WARNING
    only_to: tuple[str, ...] = ()


ENOUGH = Shortage()


class Left(enum.Enum):
    """Why ledgers are left, the worst first: what is said of one ledger, and of several."""

    NO_LIVE_COPY = ("has entries without a live copy", "have entries without a live copy")
    LOST = ("has entries that no bookie has", "have entries that no bookie has")
    UNREADABLE = ("has no readable copy", "have no readable copy")
    NOT_CLOSED = ("cannot be closed", "cannot be closed")
    NO_TARGET = ("has no bookie to copy to", "have no bookie to copy to")
    PLACEMENT = ("has no target that keeps the placement rules", "have no target that keeps the placement rules")
    METADATA = ("has metadata that cannot be read", "have metadata that cannot be read")
    NEWER = ("has metadata of a newer release", "have metadata of a newer release")
    REFUSED = ("may not be changed by this user", "may not be changed by this user")
    OPEN = ("waits for its writer", "wait for their writers")
    AGAIN = ("needs another run", "need another run")
    BACK = ("has entries on a bookie that is back", "have entries on bookies that are back")
    ACCEPTED = ("has lost entries, which were accepted as lost", "have lost entries, which were accepted as lost")

    @property
    def severity(self) -> Severity:
        """Critical: entries may be lost. Information: an operator accepted that, or a bookie with them serves again."""
        if self in {Left.ACCEPTED, Left.BACK}:
            return Severity.INFORMATION
        return Severity.CRITICAL if self in {Left.NO_LIVE_COPY, Left.LOST, Left.UNREADABLE} else Severity.WARNING

    def sentence(self, number: int) -> str:
        """For so many ledgers, without the number."""
        return self.value[0] if number == 1 else self.value[1]


_BY_REASON = {
    FailureReason.LOST: Left.LOST,
    FailureReason.UNREADABLE: Left.UNREADABLE,
    FailureReason.NOT_CLOSED: Left.NOT_CLOSED,
    FailureReason.NOT_ENOUGH_BOOKIES: Left.NO_TARGET,
    FailureReason.TARGETS_FAILED: Left.NO_TARGET,
    FailureReason.PLACEMENT: Left.PLACEMENT,
    FailureReason.METADATA_UNREADABLE: Left.METADATA,
    FailureReason.METADATA_NEWER: Left.NEWER,
    FailureReason.NO_PERMISSION: Left.REFUSED,
    FailureReason.OPEN: Left.OPEN,
}
_REMEDIES = {
    Left.PLACEMENT: "start a bookie in another rack, or use --placement best-effort",
    Left.NEWER: "use a newer bkctl",
}
_COMMANDS = {
    Left.LOST: "bkctl ledger explain {0}",
    Left.UNREADABLE: "bkctl ledger verify {0}",
    Left.NOT_CLOSED: "bkctl ledger explain {0}",
    Left.METADATA: "bkctl metadata doctor",
    Left.REFUSED: "bkctl help exit-codes",
    Left.OPEN: "bkctl ledger explain {0}",
    Left.BACK: "bkctl ledger explain {0}",
    Left.ACCEPTED: "bkctl ledger explain {0}",
}


_SAID = {FailureReason.TARGETS_FAILED, FailureReason.NO_PERMISSION}
"""The remedy is in what was answered."""


class LeftGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ledgers that are left for one reason. ``remedy``: what to do before the work is repeated; empty if nothing.

    ``severity``: that of the reason, but critical if the end of open ledgers has no live copy, and at least that of the
    status if there are too few targets. ``command``: one that helps, or says more about the first of them. ``detail``:
    why the first is left.
    """

    left: Left
    severity: Severity
    ledger_ids: tuple[int, ...]
    remedy: str = ""
    command: str | None = None
    to_start: tuple[str, ...] = ()
    """Bookies whose start brings all of them back; those that are given up come last."""
    only_given_up: tuple[int, ...] = ()
    """Those of the ledgers that only bookies which are given up bring back."""
    needs_bookie: bool = False
    """Whether another bookie must be added, if none of ``to_start`` can come back."""
    detail: str = ""
    owner: str | None = None

    @property
    def sentence(self) -> str:
        """Like "40 have no live copy (start b3:3181)"."""
        number = len(self.ledger_ids)
        return f"{number:,} {self.left.sentence(number)}" + (f" ({self.remedy})" if self.remedy else "")


def situation_of(
    failure: LedgerFailure, accepted: Mapping[int, GivenUpLedger] = {}, back: Collection[str] = ()
) -> Left:
    """What a failure means to the operator. A bookie that refuses this client runs, and may have what is missing.

    ``back``: bookies that serve again since the ledger failed."""
    if not set(failure.absent).isdisjoint(back):
        return Left.BACK
    loss = accepted.get(failure.ledger_id)
    if loss is not None and failure.reason is FailureReason.LOST and loss.covers(failure.entries):
        return Left.ACCEPTED
    if failure.reason in {FailureReason.LOST, FailureReason.UNREADABLE} and failure.absent and not failure.is_refused:
        return Left.NO_LIVE_COPY
    return _BY_REASON.get(failure.reason, Left.AGAIN)


def left_groups(
    failures: Sequence[LedgerFailure],
    leaving: Collection[str],
    others: Collection[int] = (),
    accepted: Mapping[int, GivenUpLedger] = {},
    back: Collection[str] = (),
    shortage: Shortage = ENOUGH,
) -> list[LeftGroup]:
    """The ledgers by the worst reason of each, the worst group first.

    ``others``: ledgers that were not tried. ``accepted``: losses that an operator accepted. ``back``: see
    ``situation_of``. ``shortage``: if there are too few targets.
    """
    worst: dict[int, tuple[Left, LedgerFailure]] = {}
    order = list(Left)
    for failure in failures:
        known, left = worst.get(failure.ledger_id), situation_of(failure, accepted, back)
        if known is None or order.index(left) < order.index(known[0]):
            worst[failure.ledger_id] = (left, failure)
    found: dict[Left, list[LedgerFailure]] = {}
    for left, failure in worst.values():
        found.setdefault(left, []).append(failure)
    groups = [_group(each, found[each], leaving, accepted, shortage) for each in order if each in found]
    untried = tuple(sorted(set(others) - worst.keys()))
    if not untried:
        return groups
    if groups and groups[-1].left is Left.AGAIN:
        last = groups.pop()
        return [*groups, msgspec.structs.replace(last, ledger_ids=tuple(sorted((*last.ledger_ids, *untried))))]
    return [*groups, LeftGroup(left=Left.AGAIN, severity=Left.AGAIN.severity, ledger_ids=untried)]


def _group(
    left: Left,
    failures: Sequence[LedgerFailure],
    leaving: Collection[str],
    accepted: Mapping[int, GivenUpLedger],
    shortage: Shortage,
) -> LeftGroup:
    ledger_ids = tuple(sorted(failure.ledger_id for failure in failures))
    remedy, command, to_start = _REMEDIES.get(left, ""), _COMMANDS.get(left), tuple[str, ...]()
    if left is Left.NO_TARGET:
        idle = targets_to_gain(shortage.idle, leaving)
        remedy, command = more_targets(idle, shortage.only_to)
        to_start = tuple(sorted(idle)) if not shortage.only_to and idle.keys() <= set(leaving) else ()
    failed = next((each for each in failures if each.is_refused or each.reason in _SAID), None)
    if failed is not None:
        # such as an expired certificate: another bookie would refuse it as well
        remedy = failed.bare_detail if left is Left.METADATA else failed.cause
    # First the bookies that run and refuse this client, then those that do not run, those that are given up last.
    # No advice says to start a bookie whose loss was accepted, or that is back.
    given_up = {ledger_id: loss.gone for ledger_id, loss in accepted.items()}
    may_help = (
        () if left in {Left.ACCEPTED, Left.BACK} else [each for each in failures if each.absent and not each.is_refused]
    )
    absent = {each.ledger_id: frozenset(each.absent) - given_up.get(each.ledger_id, frozenset()) for each in may_help}
    absent = {ledger_id: each for ledger_id, each in absent.items() if each}
    others = collections.Counter(filter(None, (each.difference(leaving) for each in absent.values())))
    only_given_up = [ledger_id for ledger_id, each in absent.items() if each.issubset(leaving)]
    start = bookies_to_start(others)
    start_last = bookies_to_start(collections.Counter(absent[each] for each in only_given_up))
    if start or start_last:
        remedy = ", then ".join(filter(None, (_start(start), _start(start_last, is_given_up=True))))
        to_start = tuple(each[0] for each in (*start, *start_last))
        command = show_command(chain.from_iterable((*start, *start_last)))
    first = min(failures, key=lambda failure: failure.ledger_id)
    is_end_lost = left is Left.NOT_CLOSED and any(
        each.absent and not (each.lacks_bookies or each.is_refused) for each in failures
    )
    return LeftGroup(
        left=left,
        severity=_severity(left, shortage, is_end_lost=is_end_lost),
        ledger_ids=ledger_ids,
        remedy=remedy,
        command=None if command is None else command.format(ledger_ids[0]),
        to_start=to_start,
        only_given_up=tuple(sorted(only_given_up)),
        needs_bookie=left is Left.NO_TARGET and not shortage.only_to,
        detail=first.bare_detail,
        owner=first.owner,
    )


def _severity(left: Left, shortage: Shortage, *, is_end_lost: bool) -> Severity:
    if is_end_lost:
        return Severity.CRITICAL
    return max(left.severity, shortage.severity) if left in {Left.NO_TARGET, Left.PLACEMENT} else left.severity


def _start(to_start: Sequence[Sequence[str]], *, is_given_up: bool = False) -> str:
    if not to_start:
        return ""
    its = "its" if len(set().union(*to_start)) == 1 else "their"
    return start_words(to_start) + (f" if {its} disks exist" if is_given_up else "")


def what_next(groups: Sequence[LeftGroup], again: str) -> str:
    """The end of a sentence about what is left: first what has to be done before, then ``again``, the same work.

    Without anything that another run would move it names the command for the worst group: a loss is accepted last.
    """
    repeated = [each for each in groups if each.remedy or each.left in {Left.OPEN, Left.AGAIN}]
    if not repeated:
        return f"; see {groups[0].command}" if groups and groups[0].command else ""
    return f"; {'then continue' if all(each.remedy for each in repeated) else 'continue'} with: {again}"


class LastStep(msgspec.Struct, frozen=True):
    """Ledgers whose loss can be accepted, because only lost entries are left of them, and how; empty if there are none.

    No other bookie than those that are given up can have these entries. Ledgers that are not closed are ended first."""

    ledger_ids: tuple[int, ...] = ()
    sentence: str = ""


def last_step(
    failures: Sequence[LedgerFailure],
    leaving: Collection[str],
    accepted: Mapping[int, GivenUpLedger] = {},
    back: Collection[str] = (),
) -> LastStep:
    """The last step after a drain or a recovery. ``leaving``: bookies that are given up."""
    over = {Left.ACCEPTED, Left.BACK}
    left = [each for each in failures if situation_of(each, accepted, back) not in over]
    others = {each.ledger_id for each in left if not each.absent or not set(leaving).issuperset(each.absent)}
    others |= {each.ledger_id for each in left if each.reason not in {FailureReason.LOST, FailureReason.NOT_CLOSED}}
    lost = [each for each in left if each.ledger_id not in others and not each.lacks_bookies]
    if not lost:
        return LastStep()
    ids = tuple(sorted({each.ledger_id for each in lost}))
    bookie_ids = sorted({bookie_id for each in lost for bookie_id in each.absent})
    if open_ids := sorted({each.ledger_id for each in lost if each.reason is FailureReason.NOT_CLOSED}):
        return LastStep(ids, close_lost_step(bookie_ids, open_ids))
    named = ids if any(each.has_live_member for each in lost) else ()
    return LastStep(ids, accept_loss_step(bookie_ids, named))


def after_recovery(
    groups: Sequence[LeftGroup],
    bookie_ids: Sequence[str],
    again: Callable[[Collection[str]], str],
    last: LastStep,
    back: Sequence[str] = (),
) -> str:
    """The same for a recovery of these bookies; ``again`` is the command that continues it without some of them.
    ``last``: what is said after it. ``back``: those of them that serve again, which a recovery refuses.

    One of them that is started is refused by a recovery, and what references it needs none. They come last: what was
    said to have failed is hardly there, and another bookie that is started lets the same recovery go on.
    """
    if groups and back:
        sentence = f"; {enumerated(back, shown_max=SHOWN_MAX)} {'serves' if len(back) == 1 else 'serve'} again: bkctl "
        sentence += f"bookie drain {' '.join(back)} moves what is left there"
        return sentence + ("" if set(back).issuperset(bookie_ids) else f"; for the others: {again(back)}")
    started = list(dict.fromkeys(each for group in groups for each in group.to_start if each in bookie_ids))
    if not started:
        return what_next(groups, again(()))
    names = enumerated(started, shown_max=SHOWN_MAX)
    it, serves = ("it", f"{names} serves") if len(started) == 1 else ("they", f"{names} serve")
    only_given_up = (ledger_id for each in groups for ledger_id in each.only_given_up)
    needing = [each for each in only_given_up if each not in last.ledger_ids]
    explain = f"see bkctl ledger explain {needing[0]}" if needing else ""
    others = [each for group in groups for each in group.to_start if each not in bookie_ids]
    if others:
        others_serve = f"{enumerated(others, shown_max=SHOWN_MAX)} {'serves' if len(others) == 1 else 'serve'}"
        sentence = f"; only {names} can have {len(needing):,} of these: {explain}" if explain else ""
        return f"{sentence}; once {others_serve}, continue with: {again(())}"
    if set(started) != set(bookie_ids):
        sentence = f"; if {names} cannot come back, {explain}" if explain else ""
        return f"{sentence}; once {serves}, continue with: {again(started)}"
    is_movable = any(
        group.remedy or group.left in {Left.OPEN, Left.AGAIN} for group in groups if not group.only_given_up
    )
    more = "add a bookie, then " if any(group.needs_bookie for group in groups) else ""
    absent = f"{more}continue with: {again(())}" if is_movable else explain
    return f"; once {serves}, nothing is left to recover" + (f"; if {it} cannot come back, {absent}" if absent else "")
