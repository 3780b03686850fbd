"""What a run knows of the bookies of its cluster, from a cached list and their cookies; the choice of its targets."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec

from bkctl.runtime.client.placement import Placement
from bkctl.runtime.client.ports import SuspectBookies
from bkctl.runtime.metadata.bookies.registration import RegistrationClient, Registrations
from bkctl.runtime.placement.choice import Choice, NoChoice
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.config import PlacementMode
from bkctl.runtime.replication.judge.targets import CopyNeed, choose_target, outside, rules_of_run

REFRESH_S = 2.0
"""Maximum age of a cached list of registered bookies."""
RETURN_POLL_S = 0.5
"""Time between two reads while waiting for bookies to register again."""


class LiveBookies:
    """The registered bookies, read again if the cached list is older than ``REFRESH_S``."""

    def __init__(
        self,
        registration: RegistrationClient,
        clock: Clock,
        return_wait_s: float = 0.0,
        known: Collection[str] = (),
    ) -> None:
        """``return_wait_s``: longest wait, after an outage, for bookies that were registered before it.

        ``known``: bookies that were registered before the first read here.
        """
        self._registration = registration
        self._clock = clock
        self._return_wait_ns = int(return_wait_s * 1e9)
        self._expected: frozenset[str] = frozenset()
        self._expected_until_ns: float = 0
        self._registrations = Registrations(writable=(), read_only=())
        self._live: frozenset[str] = frozenset()
        self._known = frozenset(known)
        """All bookies that were ever registered, except those that did not return after an outage."""
        self._read_at_ns: int | None = None
        self._reading = asyncio.Lock()
        self._connections_count = registration.connections_count
        self._is_watched = False
        """Whether the store will report the next change of the registrations, and has reported none since the read."""
        self._member_since: dict[str, int] = {}
        self._reading_cookies = asyncio.Lock()

    async def refresh(self, age_max_s: float = REFRESH_S) -> Registrations:
        """The registered bookies, at most ``age_max_s`` old."""
        if self._is_older(age_max_s):
            async with self._reading:
                if self._is_older(age_max_s):
                    await self._update()
        return self._registrations

    async def latest(self) -> Registrations:
        """The registered bookies, with all changes that are older than the last answer of the metadata store.

        Reads nothing while no change was reported: the store reports one before it answers anything later.
        """
        if not self._is_watched or self._reading.locked():
            async with self._reading:
                if not self._is_watched:
                    await self._update()
        return self._registrations

    def _note_change(self) -> None:
        self._is_watched = False

    async def _update(self) -> None:
        now_ns = self._clock.monotonic_ns()
        on_change = None if self._is_watched else self._note_change
        self._is_watched = True
        try:
            self._registrations = await self._read(on_change)
        except BaseException:
            self._is_watched = False
            raise
        self._live = self._registrations.live
        self._read_at_ns = now_ns

    def _is_older(self, age_max_s: float) -> bool:
        if self._read_at_ns is None or self._registration.connections_count != self._connections_count:
            return True
        return self._clock.monotonic_ns() - self._read_at_ns > age_max_s * 1e9

    async def _read(self, on_change: Callable[[], None] | None) -> Registrations:
        while True:
            registrations = await self._registration.snapshot(on_change)
            if self._registration.connections_count != self._connections_count:
                self._connections_count = self._registration.connections_count
                self.note_outage()
            if self._expected and self._clock.monotonic_ns() >= self._expected_until_ns:
                self._expected, self._known = frozenset(), registrations.live
            self._known |= registrations.live
            if self._expected <= registrations.live:
                return registrations
            await self._clock.sleep(RETURN_POLL_S)

    def note_outage(self, *, is_over: bool = True) -> None:
        """The metadata store does not answer, or did not until now (``is_over``): bookies may have lost sessions.

        Called here after each lost connection, too: our own session may outlive an outage in which no operation fails.

        A bookie that lost its session is not in the list until it registers again. Treating it as dead would leave
        ledgers unrepaired. So for some time each refresh repeats until the list has all bookies that were known before.
        This applies not only to the first list, because the server may answer us before it ends the sessions of other
        clients.
        """
        self._expected = self._known
        self._expected_until_ns = self._clock.monotonic_ns() + self._return_wait_ns if is_over else math.inf
        self._read_at_ns = None
        self._is_watched = False

    @property
    def writable(self) -> Collection[str]:
        """Those of the last list that take copies."""
        return self._registrations.writable

    def __contains__(self, bookie_id: object) -> bool:
        """Whether the bookie is in the last list, writable or read-only."""
        return bookie_id in self._live

    async def member_since(self, bookie_id: str) -> int | None:
        """When the cookie of a bookie was created, in ms since 1970; None without one. Read again when it changes.

        A copy that was made before is worth nothing: the bookie was removed meanwhile, and came back empty.
        """
        since = self._member_since.get(bookie_id)
        if since is None:
            async with self._reading_cookies:  # one of those that ask at the same time reads, and watches
                since = self._member_since.get(bookie_id)
                if since is None:
                    since = await self._read_cookie(bookie_id)
        return since

    async def _read_cookie(self, bookie_id: str) -> int | None:
        is_changed = False

        def note_change() -> None:
            nonlocal is_changed
            is_changed = True
            self._member_since.pop(bookie_id, None)

        since = await self._registration.member_since(bookie_id, note_change)
        if since is not None and not is_changed:
            self._member_since[bookie_id] = since
        return since


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
