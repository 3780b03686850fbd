"""What is left on bookies that a drain made read-only, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.pulsar_owner import topic_of_broker
from bkctl.runtime.replication.judge.advice import STATUS_WATCH, Advice, explain_command, these_bookies
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, counted, listed

LEAVES_CLUSTER = "leaves the cluster"
"""What a drain notes at a bookie as the reason for read-only mode, before the operator's name in parentheses."""
LEAVES_AT_RISK = f"{LEAVES_CLUSTER}, risk accepted"
"""The same, of a drain with ``--accept-risk``."""
_ACCEPT_RISK = " --accept-risk"
_NEEDED_NOW, _AS_BEGUN = "it is needed while others are down or ledgers are marked", "as the drain had it"
_TOPICS_NAMED_MAX = 10


def is_drain_order(order: str) -> bool:
    """Whether the reason for read-only mode is that of a drain."""
    return order.startswith((f"{LEAVES_CLUSTER} (", f"{LEAVES_AT_RISK} ("))


class DrainedBookie(msgspec.Struct, frozen=True):
    """One of them. A drain moves none of the ledgers that reference it if they are ``waiting`` for their writers, or
    ``stuck``, without another bookie to copy to; otherwise both are empty. ``topics``: the Pulsar topics whose brokers
    close some of those that wait."""

    is_referenced: bool = False
    waiting: frozenset[int] = frozenset()
    topics: frozenset[str] = frozenset()
    stuck: frozenset[int] = frozenset()


class DrainedTally:
    """Collects what ledgers say about drained bookies. ``writable``: the bookies that can take copies."""

    def __init__(self, bookie_ids: Collection[str], writable: Collection[str]) -> None:
        self._writable = frozenset(writable).difference(bookie_ids)
        self._movable: set[str] = set()
        self._waiting: dict[str, dict[int, str | None]] = {each: {} for each in bookie_ids}
        self._stuck: dict[str, set[int]] = {each: set() for each in bookie_ids}
        self._are_some_unreadable = False

    @property
    def is_done(self) -> bool:
        """Whether other ledgers would not change the result."""
        return self._movable == self._waiting.keys()

    def add(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Note the metadata of one ledger. Of an open one, the last segment waits for the writer."""
        bookies = self._waiting.keys() & metadata.bookies() - self._movable
        if not bookies:
            return
        to_move = metadata.segments[:-1] if metadata.state is LedgerState.OPEN else metadata.segments
        for bookie_id in bookies:
            ensembles = [each.ensemble for each in to_move if bookie_id in each.ensemble]
            if not ensembles:
                self._waiting[bookie_id][ledger_id] = topic_of_broker(dict(metadata.custom_metadata))
            elif any(self._writable.difference(each) for each in ensembles):
                self._movable.add(bookie_id)
            else:
                self._stuck[bookie_id].add(ledger_id)

    def add_unreadable(self) -> None:
        """Note that one ledger cannot be read, which may reference any of them."""
        self._are_some_unreadable = True

    def result(self, *, is_complete: bool) -> dict[str, DrainedBookie]:
        """Without the bookies of which it is unknown. ``is_complete``: whether all ledgers were looked at."""
        found: dict[str, DrainedBookie] = {}
        for bookie_id, waiting in self._waiting.items():
            stuck = self._stuck[bookie_id]
            is_referenced = bool(waiting or stuck)
            if bookie_id in self._movable or (is_referenced and not is_complete):
                found[bookie_id] = DrainedBookie(is_referenced=True)
            elif is_complete and (is_referenced or not self._are_some_unreadable):
                topics = frozenset(filter(None, waiting.values()))
                found[bookie_id] = DrainedBookie(is_referenced, frozenset(waiting), topics, frozenset(stuck))
        return found


def closing_step(ledger_ids: Sequence[int], topics: Collection[str]) -> tuple[str, str | None]:
    """What ends the wait for the writers of open ledgers, as a sentence, and the command that helps."""
    if topics:
        names = listed(sorted(topics), _TOPICS_NAMED_MAX)
        sentence = f"Pulsar keeps ledgers of {counted(len(topics), 'topic')} open: {names}: run pulsar-admin topics "
        return f"{sentence}unload TOPIC, which makes the broker close them", explain_command(ledger_ids)
    command = f"bkctl ledger close {' '.join(map(str, ledger_ids[:SHOWN_MAX]))}"
    return f"open ledgers that have no writer are closed by {command}", command


class LeavingBookie(msgspec.Struct, frozen=True, kw_only=True):
    """A bookie that a drain made read-only, or one that is down and that an operator gave up."""

    bookie_id: str
    is_moved: bool = False
    """Whether a command moves its ledgers now, or waits to move them."""
    is_removed: bool = False
    """Whether that command removes it from the cluster at last, once it is stopped."""
    is_referenced: bool | None = None
    """Whether ledgers reference it; null: it is not known."""
    waiting_ledgers: tuple[str, ...] = ()
    """All ledgers that reference it and wait for their writers, if a drain moves none of the others either."""
    stuck_ledgers: tuple[str, ...] = ()
    """The same of those that have no other bookie to copy to."""
    waiting_topics: tuple[str, ...] = ()
    """The Pulsar topics whose brokers close some of these."""
    is_risk_accepted: bool = False
    """Whether its drain was begun with ``--accept-risk``."""
    given_up_ledgers: tuple[str, ...] = ()
    """Of one that is down: ledgers whose loss was accepted, and which could get entries back from it."""

    @classmethod
    def given_up(cls, bookie_id: str, ledger_ids: Iterable[int]) -> LeavingBookie:
        """One that is down and was given up for these ledgers."""
        return cls(bookie_id=bookie_id, given_up_ledgers=tuple(map(str, ledger_ids)))

    @property
    def is_waiting_for_stop(self) -> bool:
        """Whether a decommission has emptied it, and waits until it is stopped."""
        return self.is_removed and self.is_referenced is False


def leaving_bookies_of(
    orders: Mapping[str, str],
    drained: Mapping[str, DrainedBookie],
    moved: Collection[str],
    removed: Collection[str],
) -> tuple[LeavingBookie, ...]:
    """Those that a drain made read-only, each with the reason that it gives. ``drained``: what is left there, as
    far as it is known. ``moved``: those whose ledgers a command moves; ``removed``: those of them that it removes."""
    found = []
    for each, order in orders.items():
        left = drained.get(each)
        known = LeavingBookie(
            bookie_id=each,
            is_moved=each in moved,
            is_removed=each in removed,
            is_risk_accepted=order.startswith(LEAVES_AT_RISK),
        )
        if left is not None:
            known = msgspec.structs.replace(
                known,
                is_referenced=left.is_referenced,
                waiting_ledgers=tuple(map(str, sorted(left.waiting))),
                waiting_topics=tuple(sorted(left.topics)),
                stuck_ledgers=tuple(map(str, sorted(left.stuck))),
            )
        found.append(known)
    return tuple(found)


def leaving_findings(bookies: Sequence[LeavingBookie], *, is_short: bool, is_at_risk: bool) -> Iterator[Advice]:
    """What a command does with them now, or what is left to do. ``is_short``: too few bookies are writable.
    ``is_at_risk``: others are down, or ledgers are marked, so that a bookie leaves only with ``--accept-risk``."""
    bookies = [
        # Nothing that was accepted is about a bookie without ledgers: only the rest of the cluster is checked.
        msgspec.structs.replace(
            each, is_risk_accepted=is_at_risk or (each.is_risk_accepted and each.is_referenced is not False)
        )
        for each in bookies
    ]
    for advise in (_stopping, _moved, _written, _left, _short, _stuck, _waiting, _empty):
        group = [each for each in bookies if _advice_for(each, is_short=is_short) is advise]
        if group:
            ids = [each.bookie_id for each in group]
            advice = advise(group, ids)
            sentence = f"{these_bookies(ids, 'leaves', 'leave')} the cluster, read-only{advice.sentence}"
            if _ACCEPT_RISK in sentence:
                sentence += f" ({_ACCEPT_RISK.strip()}: {_NEEDED_NOW if is_at_risk else _AS_BEGUN})"
            if not any(each.is_moved or each.is_waiting_for_stop for each in group):
                sentence += f"; to keep {_the_first(ids)}: bkctl bookie undrain {ids[0]}"
            yield msgspec.structs.replace(advice, sentence=sentence)


def _advice_for(bookie: LeavingBookie, *, is_short: bool) -> Callable[[Sequence[LeavingBookie], Sequence[str]], Advice]:
    """The sentence that fits a bookie; bookies with the same one share it."""
    if bookie.is_waiting_for_stop:
        return _stopping
    if bookie.is_moved:
        return _written if bookie.waiting_ledgers else _moved
    if bookie.waiting_ledgers:
        return _waiting
    if bookie.stuck_ledgers:
        return _stuck
    if bookie.is_referenced is False:
        return _empty
    return _short if is_short else _left


def _the_first(ids: Sequence[str]) -> str:
    return "it" if len(ids) == 1 else "the first"


def _advice(sentence: str, command: str | None, severity: Severity = Severity.INFORMATION) -> Advice:
    return Advice(severity, "bookies_leaving", sentence, command)


def _stopping(_: Sequence[LeavingBookie], ids: Sequence[str]) -> Advice:
    them, are = ("it", "it is") if len(ids) == 1 else ("them", "they are")
    command = f"bkctl bookie stop {' '.join(ids)}"
    return _advice(f", and no ledger references {them}; a decommission waits until {are} stopped: {command}", command)


def _moved(_: Sequence[LeavingBookie], ids: Sequence[str]) -> Advice:
    return _advice(f"; a command is moving {'its' if len(ids) == 1 else 'their'} ledgers", STATUS_WATCH)


def _written(group: Sequence[LeavingBookie], _: Sequence[str]) -> Advice:
    number, step, command = _closing_step(group)
    writers = "writer" if number == 1 else "writers"
    return _advice(f"; a command waits for the {writers} of {counted(number, 'ledger')}: {step}", command)


def _waiting(group: Sequence[LeavingBookie], ids: Sequence[str]) -> Advice:
    number, step, command = _closing_step(group)
    wait = "ledger waits for its writer" if number == 1 else "ledgers wait for their writers"
    drain = f"bkctl bookie drain {' '.join(ids[:SHOWN_MAX])}{_option(group)}"
    stuck = f"; {_without_bookie(group)}" if any(each.stuck_ledgers for each in group) else ""
    sentence = f"; {number:,} {wait}: {step}{stuck}; then {drain} moves what is left"
    return _advice(sentence, command, Severity.WARNING)


def _stuck(group: Sequence[LeavingBookie], ids: Sequence[str]) -> Advice:
    drain = f"bkctl bookie drain {' '.join(ids[:SHOWN_MAX])}{_option(group)}"
    return _advice(
        f"; {_without_bookie(group)}; then {drain} moves what is left", "bkctl bookie list", Severity.WARNING
    )


def _without_bookie(group: Sequence[LeavingBookie]) -> str:
    ledger_ids = sorted(frozenset(map(int, chain.from_iterable(each.stuck_ledgers for each in group))))
    have = counted(len(ledger_ids), "ledger has", "ledgers have")
    return f"{have} no bookie to copy to ({listed(ledger_ids)}): add a bookie, or start one"


def _empty(group: Sequence[LeavingBookie], ids: Sequence[str]) -> Advice:
    command, them = f"bkctl decommission {ids[0]}{_option(group[:1])}", "it" if len(ids) == 1 else "them"
    return _advice(f", and no ledger references {them}: stop {_the_first(ids)}, and {command} removes it", command)


def _short(_: Sequence[LeavingBookie], ids: Sequence[str]) -> Advice:
    its = "its" if len(ids) == 1 else "their"
    sentence = f"; no command moves {its} ledgers now, and too few bookies are writable for a drain"
    return _advice(sentence, f"bkctl bookie undrain {ids[0]}")


def _left(group: Sequence[LeavingBookie], ids: Sequence[str]) -> Advice:
    option = _option(group[:1])
    its, drain = "its" if len(ids) == 1 else "their", f"bkctl bookie drain {ids[0]}{option}"
    sentence = f"; no command moves {its} ledgers now: {drain} moves any that are left, and decommission also removes "
    if group[0].is_referenced is None:
        return _advice(sentence + _the_first(ids), f"bkctl decommission {ids[0]}{option}")
    return _advice(sentence + _the_first(ids), drain, Severity.WARNING)


def _option(group: Sequence[LeavingBookie]) -> str:
    """What a command for these bookies needs, if the check of the cluster refused it without."""
    return _ACCEPT_RISK if any(each.is_risk_accepted for each in group) else ""


def _closing_step(waiting: Sequence[LeavingBookie]) -> tuple[int, str, str | None]:
    """How many ledgers wait for their writers, what ends that, and the command."""
    ledger_ids = sorted(frozenset(map(int, chain.from_iterable(each.waiting_ledgers for each in waiting))))
    topics = frozenset(chain.from_iterable(each.waiting_topics for each in waiting))
    return len(ledger_ids), *closing_step(ledger_ids, topics)
