"""Ledgers with entries of which no live bookie has a copy, and the bookies whose start brings them back. Pure."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from bkctl.runtime.metadata.replication.recovery_status import NotedLosses
from bkctl.runtime.replication.judge.verdict import ReplicationRow, ReplicationState
from bkctl.storage.words import SHOWN_MAX, enumerated

_IDS_KEPT_MAX = 10
LOSS_IDS_MAX = 50
"""Ledgers in a command that accepts a loss."""


class NoLiveCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Ledgers with entries of which no live bookie has a copy: how many, and the first of them.

    ``to_start``: of each element one bookie brings ledgers back, the most useful first. ``is_exact``: there are no
    others. ``is_part``: one of them has, or may have, a live copy of other entries. ``open_ids``: the first that are
    not closed.
    """

    ledgers: int = 0
    first_ids: tuple[int, ...] = ()
    to_start: tuple[tuple[str, ...], ...] = ()
    is_exact: bool = True
    is_part: bool = False
    open_ids: tuple[int, ...] = ()


class NoLiveCopyTally:
    """Collects such ledgers. Its memory grows with the bookies and not with the ledgers."""

    def __init__(self, startable: Collection[str]) -> None:
        """``startable``: bookies that are down and could be started, not those that have left the cluster."""
        self._startable = startable
        self._ledgers = 0
        self._first_ids: list[int] = []
        self._holders: collections.Counter[frozenset[str]] = collections.Counter()
        self._is_part = False
        self._open_ids: list[int] = []

    def add(self, ledger_id: int, rows: Collection[ReplicationRow]) -> None:
        """Note the judged write sets of one ledger; it counts if a start brings copies of one of them back."""
        holders = startable_holders(rows, self._startable.__contains__)
        if not holders:
            return
        self._ledgers += 1
        is_closed = any(row.write_set.ledger_state == "closed" for row in rows)
        self._is_part = self._is_part or any(row.live_copies for row in rows)
        self._holders.update(holders)
        for ids, kept_max in ((self._first_ids, _IDS_KEPT_MAX), (self._open_ids, 0 if is_closed else LOSS_IDS_MAX)):
            if len(ids) < kept_max:
                ids.append(ledger_id)

    def result(self, *, is_exact: bool = True) -> NoLiveCopy:
        """What was found."""
        ids, to_start = tuple(self._first_ids), bookies_to_start(self._holders)
        return NoLiveCopy(
            ledgers=self._ledgers,
            first_ids=ids,
            to_start=to_start,
            is_exact=is_exact,
            is_part=self._is_part,
            open_ids=tuple(self._open_ids),
        )


def startable_holders(rows: Iterable[ReplicationRow], is_startable: Callable[[str], bool]) -> frozenset[frozenset[str]]:
    """Of each judged write set without a live copy, the bookies that can be started; sets without any are left out."""
    without_copy = (row.missing_bookies for row in rows if row.replication is ReplicationState.UNAVAILABLE)
    return frozenset(filter(None, (frozenset(filter(is_startable, each)) for each in without_copy)))


def noted_without_copy(losses: NotedLosses, startable: frozenset[str]) -> NoLiveCopy:
    """Of the noted losses, those that the start of these bookies could bring back."""
    found = {key: startable.intersection(note.missing_bookies) for key, note in losses.first}
    holders = collections.Counter(each for each in found.values() if each)
    return NoLiveCopy(
        ledgers=holders.total(),
        first_ids=tuple(int(key) for key, each in found.items() if each and key.isdecimal()),
        to_start=bookies_to_start(holders),
        is_exact=losses.count == len(losses.first),
        is_part=True,
    )


def bookies_to_start(holders: Mapping[frozenset[str], int]) -> tuple[tuple[str, ...], ...]:
    """Few bookies of which each of the sets has one, the most useful first, each with those that are as useful.

    One member of a set is enough, because each has the same entries. The value of a set is how often it occurs.
    """
    left = {each: count for each, count in holders.items() if each}
    chosen: list[tuple[str, ...]] = []
    while left:
        weights: collections.Counter[str] = collections.Counter()
        for each, count in left.items():
            weights.update(dict.fromkeys(each, count))
        best = min(weights, key=lambda bookie_id: (-weights[bookie_id], bookie_id))
        chosen.append(tuple(sorted(frozenset.intersection(*(each for each in left if best in each)))))
        left = {each: count for each, count in left.items() if best not in each}
    return tuple(chosen)


def start_words(to_start: Sequence[Sequence[str]]) -> str:
    """What to start, like "start a or b", or "start a or b, and c or d"."""
    which = [enumerated(each, "or", SHOWN_MAX) for each in to_start]
    if all(len(each) == 1 for each in to_start):
        return f"start {enumerated(which, shown_max=SHOWN_MAX)}"
    more = [f"{len(which) - SHOWN_MAX:,} more"] if len(which) > SHOWN_MAX else []
    return f"start {', and '.join([*which[:SHOWN_MAX], *more])}"
