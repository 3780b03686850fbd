"""Distributes the copies of a run over the writable bookies."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import msgspec

from bkctl.runtime.client.placement import Placement
from bkctl.runtime.client.ports import SuspectBookies
from bkctl.runtime.placement.choice import Choice, NoChoice
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.config import PlacementMode
from bkctl.runtime.replication.judge.targets import CopyNeed, choose_target, outside, rules_of_run
from bkctl.runtime.replication.turn.live_bookies import LiveBookies


@dataclasses.dataclass(eq=False)
class TargetChooser:
    """Of the bookies that keep the rules it chooses the one with the fewest entries so far.

    ``only``: choose from these bookies; empty: from all. ``avoided``: a last resort, because they leave.
    """

    live_bookies: LiveBookies
    suspects: SuspectBookies
    clock: Clock
    placement: Placement
    mode: PlacementMode = PlacementMode.STRICT
    only: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._assigned: Counter[str] = Counter()
        self._bytes = _BytesOnTheWay()

    @property
    def count(self) -> int:
        """How many bookies are targets, by the last list."""
        writable = self.live_bookies.writable
        return len(self.only.intersection(writable) if self.only else writable)

    async def choose(self, need: CopyNeed, preferred: str | None = None) -> Choice | NoChoice:
        """A writable bookie for one copy, or why there is none; MetadataError, ConfigurationError.

        Uses suspects (recently failed bookies) only if the rules leave no other bookie. ``preferred`` is chosen if the
        rules allow it: it has a part of the copy.
        """
        writable = (await self.live_bookies.refresh()).writable
        found: Choice | NoChoice | None = None
        by_rules = msgspec.structs.replace(need, is_data_first=False)
        if preferred in writable:
            barred = need.excluded | (set(writable) - {preferred})
            found = await self._choose(writable, msgspec.structs.replace(by_rules, excluded=barred))
        if not isinstance(found, Choice):
            found = await self._choose(writable, by_rules)
        if isinstance(found, NoChoice):  # before giving up, check whether one has returned
            found = await self._choose((await self.live_bookies.refresh(0)).writable, need)
        if isinstance(found, Choice):
            target = found.bookies[0]
            self._assigned[target] += max(1, need.entry_count)
            self._bytes.start(target, need.bytes_needed)
        return found

    async def try_to_choose(self, need: CopyNeed) -> Choice | NoChoice:
        """Like ``choose``, but nothing will be copied."""
        return await self._choose((await self.live_bookies.refresh()).writable, need)

    def finish(self, target: str, need: CopyNeed) -> None:
        """A copy has ended, whether it succeeded or not."""
        self._bytes.finish(target, need.bytes_needed)

    async def _choose(self, writable: Sequence[str], need: CopyNeed) -> Choice | NoChoice:
        survey = await self.placement.survey(writable)
        self._bytes.note_survey(survey)
        if self.only:
            need = msgspec.structs.replace(need, excluded=need.excluded | outside(self.only, writable))
        return choose_target(
            survey,
            rules_of_run(survey, self.mode),
            need,
            self.clock.random,
            last_resort=self.suspects.current() | self.avoided,
            assigned=self._assigned,
            bytes_assigned=self._bytes.total,
        )


class _BytesOnTheWay:
    """Bytes of copies that targets do not report as used: unfinished ones, and those finished after the survey."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._space: object = None

    def start(self, target: str, count: int) -> None:
        self.total[target] += count

    def finish(self, target: str, count: int) -> None:
        self._finished[target] += count

    def note_survey(self, survey: BookieSurvey) -> None:
        """A new survey includes the copies that were finished before it."""
        if survey.space is not self._space:
            self.total.subtract(self._finished)
            self._finished.clear()
            self._space = survey.space
