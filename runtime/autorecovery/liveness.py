"""Follows which bookies are registered. Fast: it reads a few nodes, and never waits for a pass over the ledgers.

A check of the bookies follows each change of the registrations and of the recovery delay, and a timer. Writable and
read-only bookies are both alive. Known bookies have a cookie, were seen registered, or are named by the metadata of a
ledger. Each lost bookie waits for its own delay, so two bookies that restart at the same time cost nothing. Java's
auditor has one delay for all of them and ignores it as soon as a second bookie is lost (replication section 7.2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote, NoteDirectory, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import RecoveryDelay, ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.storage.words import listed, percent

logger = logging.getLogger(__name__)

EARLY_SHARE = 0.1
"""Share of the delay that two lost bookies must be gone together before ledgers with one copy left are marked."""
_LOST_TOGETHER_MIN = 2
NoteT = TypeVar("NoteT", bound=msgspec.Struct)
BOOKIE_CHECK_INTERVAL_S = 10.0


class LostVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about lost bookies; times in ms since 1970.

    ``due``: their ledgers are to be marked. ``early``: those of their ledgers are to be marked that have lost two or
    more copies and have a single one left. ``next_ms``: when to judge again, None: only after a change.
    ``counted`` and ``gone``: the bookies that count for the alarm, and those of them that are gone.
    """

    due: frozenset[str] = frozenset()
    early: frozenset[str] = frozenset()
    next_ms: int | None = None
    counted: int = 0
    gone: int = 0
    is_alarm: bool = False


def follow_bookies(
    notes: Mapping[str, LostBookieNote],
    known: Collection[str],
    live: Collection[str],
    now_ms: int,
    delay_ms: int,
) -> dict[str, LostBookieNote]:
    """Notes of all known bookies that are not live. A bookie that was lost before keeps its note.

    No deadline is later than now plus the delay: the delay may have been shortened while there was no auditor.
    """
    due_ms = now_ms + delay_ms
    found = {}
    for bookie_id in sorted(set(known).difference(live)):
        note = notes.get(bookie_id)
        if note is None:
            note = LostBookieNote(lost_ms=now_ms, due_ms=due_ms)
        found[bookie_id] = note if note.due_ms <= due_ms else msgspec.structs.replace(note, due_ms=due_ms)
    return found


def restart_deadlines(notes: Mapping[str, LostBookieNote], now_ms: int, delay_ms: int) -> dict[str, LostBookieNote]:
    """Another delay was written: deadlines count from now on. Those that have passed stay as they are."""
    return {
        bookie_id: note if note.due_ms <= now_ms else msgspec.structs.replace(note, due_ms=now_ms + delay_ms)
        for bookie_id, note in notes.items()
    }


def judge_lost(
    notes: Mapping[str, LostBookieNote],
    excused_until_ms: Mapping[str, int],
    counted: Collection[str],
    now_ms: int,
    delay_ms: int,
    share_max: float,
) -> LostVerdict:
    """Judge the lost bookies.

    ``excused_until_ms``: bookies in maintenance, which are expected to be away. They are due at the later one of the
    two times, and do not count as gone before the end of their maintenance. ``counted``: all known bookies, without
    lost ones that no ledger names.
    """
    due_ms = {each: max(note.due_ms, excused_until_ms.get(each, 0)) for each, note in notes.items()}
    unexcused = {each for each in notes if excused_until_ms.get(each, 0) <= now_ms}
    due = frozenset(each for each, time_ms in due_ms.items() if time_ms <= now_ms)
    times = [time_ms for time_ms in due_ms.values() if time_ms > now_ms]
    together = unexcused.intersection(counted)
    is_alarm = len(together) > share_max * len(counted)
    waiting = together - due
    early = frozenset[str]()
    if waiting and len(together) >= _LOST_TOGETHER_MIN:
        early_ms = max(notes[each].lost_ms for each in waiting) + int(EARLY_SHARE * delay_ms)
        if early_ms <= now_ms:
            early = frozenset(together)
        else:
            times.append(early_ms)
    return LostVerdict(
        due=frozenset() if is_alarm else due,
        early=frozenset() if is_alarm else early,
        next_ms=min(times, default=None),
        counted=len(counted),
        gone=len(together),
        is_alarm=is_alarm,
    )


class Liveness:
    """The bookies as of the last check; the fields are empty before the first one.

    ``on_check`` is called after each check with the bookies that came back, and whether it was hurried.
    """

    def __init__(
        self,
        ports: ClientPorts,
        store: MetadataStore,
        config: AutorecoveryConfig,
        on_check: Callable[[Mapping[str, LostBookieNote], bool], None],
    ) -> None:
        root = ports.ledgers.root
        self._ports = ports
        self._store = store
        self._paths = Paths(root)
        self._config = config
        self._notes = RecoveryNotes(store, root)
        self._switches = ReplicationSwitches(store, root)
        self._on_check = on_check
        self.lane = Lane("liveness", self._check_bookies, ports.clock, interval_s=BOOKIE_CHECK_INTERVAL_S)
        self.has_checked = False
        self.live: frozenset[str] = frozenset()
        self.lost: dict[str, LostBookieNote] = {}
        self.excused: frozenset[str] = frozenset()
        """Bookies in maintenance."""
        self.verdict = LostVerdict()
        self.removed: frozenset[str] = frozenset()
        """Lost bookies whose cookies were deleted since the check before the last one."""
        self._cookies: frozenset[str] = frozenset()
        self._known: set[str] = set()
        """Seen registered, or named by metadata."""
        self._idle: frozenset[str] = frozenset()
        """Lost bookies that no ledger names, by the last pass."""
        self._reported: set[str] = set()
        """Notes that cannot be read."""
        self._are_names_known = False
        self._is_alarm_reported = False
        self._delay_s: float | None = None
        """None: the delay was not read yet."""
        self._is_restart_due = False
        self._is_hurried = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check after each change in this block."""
        wake = self.lane.wake
        watches = [
            self._store.watch_children(self._paths.available, lambda _: wake()),
            self._store.watch_children(self._paths.read_only, lambda _: wake()),
            self._switches.watch_recovery_delay(self._note_delay),
        ]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()

    def hurry(self) -> None:
        """Wait no longer for the bookies that are gone."""
        self._is_hurried = True
        self.lane.wake()

    def note_referenced(self, referenced: set[str], lost_before: frozenset[str]) -> None:
        """A pass over all metadata found these names. ``lost_before``: bookies that were gone when it began."""
        self._known |= referenced
        self._idle = lost_before - referenced
        self._are_names_known = True
        self.lane.wake()

    def _note_delay(self, delay: RecoveryDelay | MetadataFormatError | None) -> None:
        if isinstance(delay, MetadataFormatError):
            if self._delay_s is None:
                self._delay_s = self._config.lost_bookie_delay_s
            logger.warning("%s; the recovery delay stays %g s", delay, self._delay_s)
            self.lane.wake()
            return
        former_s = self._delay_s
        self._delay_s = self._config.lost_bookie_delay_s if delay is None else delay.seconds
        if delay is not None and former_s is not None:
            if delay.seconds in {0, former_s}:
                self._is_hurried = True
            else:
                self._is_restart_due = True
        self.lane.wake()

    async def _check_bookies(self, turn: Turn) -> str:
        await self._store.sync(self._paths.root)  # the server of a new session may lag
        registrations = await self._ports.registrations.snapshot()
        cookies = frozenset(await self._ports.registrations.with_cookie())
        maintenance = await self._readable(
            self._notes.maintenance, "the note of the maintenance of bookie %s is ignored"
        )
        excused_until_ms = {bookie_id: note.end_ms for bookie_id, note in maintenance.items()}
        if not self.has_checked:
            self.lost = await self._readable(self._notes.deadlines, "the deadline of bookie %s begins again")
        turn.beat()
        if self._delay_s is None:
            return "waits for the recovery delay"
        self.live = registrations.live
        self._known |= self.live
        is_hurried, is_restart_due, before = self._is_hurried, self._is_restart_due, self.lost
        self._is_hurried = self._is_restart_due = False  # what is asked from now on is for the next check
        try:
            await self._follow(cookies, excused_until_ms, is_hurried=is_hurried, is_restart_due=is_restart_due)
        except BaseException:
            self._is_hurried |= is_hurried
            self._is_restart_due |= is_restart_due
            raise
        turn.beat()
        self.removed, self._cookies = (self._cookies - cookies).intersection(self.lost), cookies
        now_ms = self._ports.clock.now_ms()
        counted = (cookies | self._known) - self._idle
        self.excused = frozenset(each for each, until_ms in excused_until_ms.items() if until_ms > now_ms)
        delay_ms, share_max = int(self._delay_s * 1000), self._config.lost_bookies_share_max
        self.verdict = judge_lost(self.lost, excused_until_ms, counted, now_ms, delay_ms, share_max)
        self._report_alarm()
        if self.verdict.next_ms is not None:
            self.lane.due_in(min(BOOKIE_CHECK_INTERVAL_S, (self.verdict.next_ms - now_ms) / 1000))
        self.has_checked = True
        self._on_check({each: note for each, note in before.items() if each in self.live}, is_hurried)
        return self._summary()

    async def _follow(
        self, cookies: frozenset[str], excused_until_ms: Mapping[str, int], *, is_hurried: bool, is_restart_due: bool
    ) -> None:
        """Update the deadlines, first in ZooKeeper."""
        assert self._delay_s is not None
        now_ms, delay_ms = self._ports.clock.now_ms(), int(self._delay_s * 1000)
        known = (cookies | self._known | self.lost.keys()) - (self._idle - cookies)
        notes = follow_bookies(self.lost, known, self.live, now_ms, 0 if is_hurried else delay_ms)
        if is_restart_due:
            notes = restart_deadlines(notes, now_ms, delay_ms)
        for bookie_id in self.lost.keys() - notes.keys():
            await self._notes.deadlines.remove(bookie_id)
        for bookie_id, note in notes.items():
            if self.lost.get(bookie_id) != note:
                await self._notes.deadlines.put(bookie_id, note)
        for bookie_id in sorted(self.live.intersection(self.lost)):
            logger.info("bookie %s is registered again", bookie_id)
        self._log_lost(notes, excused_until_ms)
        self.lost = notes
        self._known -= self._idle - cookies - self.live
        self._idle = self._idle.intersection(notes)

    def _log_lost(self, notes: Mapping[str, LostBookieNote], excused_until_ms: Mapping[str, int]) -> None:
        now_ms = self._ports.clock.now_ms()
        for bookie_id in sorted(notes.keys() - self.lost.keys()):
            end_ms = excused_until_ms.get(bookie_id, 0)
            remark = ", in maintenance" if end_ms > now_ms else ""
            wait_s = max(0, notes[bookie_id].due_ms - now_ms, end_ms - now_ms) / 1000
            logger.warning("bookie %s is gone%s: its ledgers will be marked in %.0f s", bookie_id, remark, wait_s)

    def _report_alarm(self) -> None:
        """Report changes. Before the first pass, cookies of bookies that have no ledgers may be the reason."""
        verdict = self.verdict
        if verdict.is_alarm and self._are_names_known and not self._is_alarm_reported:
            self._is_alarm_reported = True
            logger.error("ALARM: %s", self.alarm)
        elif self._is_alarm_reported and not verdict.is_alarm:
            self._is_alarm_reported = False
            logger.warning("the alarm is over: %d of %d bookies are gone", verdict.gone, verdict.counted)

    async def _readable(self, directory: NoteDirectory[NoteT], problem: str) -> dict[str, NoteT]:
        """The notes about bookies. One that cannot be read is reported once, with this ``problem``, and left out."""
        found = {}
        async for bookie_id, note in directory.all():
            if isinstance(note, Versioned):
                found[bookie_id] = note.value
            elif (path := directory.path_of(bookie_id)) not in self._reported:
                self._reported.add(path)
                logger.warning(f"{problem}: %s", bookie_id, note)
        return found

    @property
    def alarm(self) -> str | None:
        """The alarm in a sentence, while there is one."""
        verdict = self.verdict
        if not verdict.is_alarm:
            return None
        return (
            f"{verdict.gone} of {verdict.counted} bookies are gone, more than "
            f"{percent(self._config.lost_bookies_share_max)}: no ledger is marked until some are back"
        )

    def _summary(self) -> str:
        if self.alarm is not None:
            return self.alarm
        text = f"{len(self.live)} bookies are registered"
        if self.lost:
            text += f"; gone: {listed(sorted(self.lost))}"
        return text
