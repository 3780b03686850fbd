"""Fills positions of an ensemble from candidates, so that the fewest rules break. Pure.

A search with backtracking over classes of bookies: bookies of one rack that break the same rules are interchangeable.
Candidates come in order of preference. Of all fillings that break the fewest rules, the first found is the one whose
earlier positions have the more preferred bookies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

STEPS_MAX = 20_000
"""Most bookies that one search tries. Only ensembles that cannot keep the rules in large clusters reach it; the best
filling so far is then the result."""

Cost: TypeAlias = tuple[int, ...]
"""What a filling breaks, most serious first: bookies outside the ledger's groups, bookies without a rack, missing
regions, missing racks, bookies that are a last resort."""


class SearchCandidate(NamedTuple):
    """A bookie that may fill a position, and what it breaks wherever it is placed."""

    bookie_id: str
    rack: str | None
    region: str | None
    is_outside: bool = False
    has_no_rack: bool = False
    is_last_resort: bool = False


class WindowGoal(NamedTuple):
    """Different regions or racks that one write quorum should span.

    ``slots``: its positions to fill, as numbers of the search; ``kept``: places of its other members.
    """

    is_region: bool
    slots: tuple[int, ...]
    kept: frozenset[str]
    wanted: int


class _Class(NamedTuple):
    """Places and flags that all bookies of a class share."""

    rack: str | None
    region: str | None
    flags: tuple[bool, bool, bool]


def fill_positions(
    count: int, candidates: Sequence[SearchCandidate], goals: Sequence[WindowGoal], kept_racks: Collection[str]
) -> list[str]:
    """Ids for ``count`` positions; there are at least as many candidates.

    ``kept_racks``: the racks of the members that stay.
    """
    assert len(candidates) >= count
    search = _Search(count, candidates, goals, kept_racks)
    search.run()
    return search.best


class _Search:
    def __init__(
        self,
        count: int,
        candidates: Sequence[SearchCandidate],
        goals: Sequence[WindowGoal],
        kept_racks: Collection[str],
    ) -> None:
        self.best: list[str] = []
        self._best_cost: Cost | None = None
        self._count = count
        self._ranks: dict[_Class, list[int]] = {}
        for rank, each in enumerate(candidates):
            flags = (each.is_outside, each.has_no_rack, each.is_last_resort)
            self._ranks.setdefault(_Class(each.rack, each.region, flags), []).append(rank)
        self._candidates = candidates
        self._used: dict[_Class, int] = dict.fromkeys(self._ranks, 0)
        self._by_rack: dict[str | None, list[_Class]] = {}
        for each_class in self._ranks:
            self._by_rack.setdefault(each_class.rack, []).append(each_class)
        self._kept_racks = frozenset(kept_racks)
        self._has_regions = any(goal.is_region for goal in goals)
        self._goals_ending_at: dict[int, list[tuple[WindowGoal, int]]] = {}
        self._least_missing = [0, 0]
        self._note_goals(goals)
        self._least_flags = tuple(
            max(0, count - sum(not each[3 + flag] for each in candidates))
            for flag in range(len(SearchCandidate._fields) - 3)
        )
        self._chosen: list[_Class] = []
        self._steps = 0

    def _note_goals(self, goals: Sequence[WindowGoal]) -> None:
        """Index the goals by the position that completes them, with what each must miss in any filling."""
        places = {
            True: {each.region for each in self._ranks} - {None},
            False: {each.rack for each in self._ranks} - {None},
        }
        for goal in goals:
            reachable = min(len(goal.kept) + len(goal.slots), len(goal.kept | places[goal.is_region]))
            least = max(0, goal.wanted - reachable)
            self._goals_ending_at.setdefault(max(goal.slots), []).append((goal, least))
            self._least_missing[not goal.is_region] += least

    def run(self) -> None:
        self._fill((0, 0, 0), (self._least_missing[0], self._least_missing[1]))

    def _cost(self, flags: tuple[int, int, int], missing: tuple[int, int]) -> Cost:
        """A bound for all fillings that continue the current one; its cost, if it is complete."""
        outside, unracked, last_resort = map(max, flags, self._least_flags)
        return (outside, unracked, *missing, last_resort)

    @property
    def _is_over(self) -> bool:
        if self._best_cost is None:
            return False
        least = self._cost((0, 0, 0), (self._least_missing[0], self._least_missing[1]))
        return self._best_cost == least or self._steps >= STEPS_MAX

    def _fill(self, flags: tuple[int, int, int], missing: tuple[int, int]) -> None:
        """Try every class for the next position, most preferred first."""
        cost = self._cost(flags, missing)
        if self._best_cost is not None and cost >= self._best_cost:
            return
        slot = len(self._chosen)
        if slot == self._count:
            self._best_cost, self.best = cost, self._chosen_ids()
            return
        tried = set()
        for each in sorted(self._free_classes(), key=self._next_rank):
            signature = self._signature(each)
            if signature in tried:
                continue
            tried.add(signature)
            self._steps += 1
            self._chosen.append(each)
            self._used[each] += 1
            outside, unracked, last_resort = map(int.__add__, flags, map(int, each.flags))
            self._fill((outside, unracked, last_resort), self._missing_after(slot, missing))
            self._used[each] -= 1
            self._chosen.pop()
            if self._is_over:
                return

    def _free_classes(self) -> list[_Class]:
        return [each for each, ranks in self._ranks.items() if self._used[each] < len(ranks)]

    def _next_rank(self, each: _Class) -> int:
        return self._ranks[each][self._used[each]]

    def _signature(self, each: _Class) -> object:
        """Equal for classes whose choice has the same consequences: of racks that are not in use, any one will do."""
        is_in_use = each.rack in self._kept_racks or any(chosen.rack == each.rack for chosen in self._chosen)
        if each.rack is None or is_in_use:
            return each
        others = sorted((other.flags, self._room(other)) for other in self._by_rack[each.rack])
        return (each.region if self._has_regions else None, each.flags, self._room(each), tuple(others))

    def _room(self, each: _Class) -> int:
        return min(len(self._ranks[each]) - self._used[each], self._count)

    def _missing_after(self, slot: int, missing: tuple[int, int]) -> tuple[int, int]:
        """Missing regions and racks, now that the position has a bookie."""
        counts = list(missing)
        for goal, least in self._goals_ending_at.get(slot, ()):
            chosen = (self._chosen[each] for each in goal.slots)
            places = goal.kept | {each.region if goal.is_region else each.rack for each in chosen} - {None}
            counts[not goal.is_region] += max(0, goal.wanted - len(places)) - least
        return counts[0], counts[1]

    def _chosen_ids(self) -> list[str]:
        taken: dict[_Class, int] = {}
        ids = []
        for each in self._chosen:
            number = taken.get(each, 0)
            taken[each] = number + 1
            ids.append(self._candidates[self._ranks[each][number]].bookie_id)
        return ids
