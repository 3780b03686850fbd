"""The check of copies: reads a sample of the entries of every ledger from every bookie that should have them.

It reads the first and the last entry of each stripe of each segment, and a share of the others, and checks digests. It
asks no bookie for a list of its entries, because many do not answer that (replication section 7.4). The open segment of
a ledger is left out: its writer still changes it, and a mark would make Java's workers close the ledger.

Ledgers with bad copies on bookies that answer are marked, so that a worker writes the copies again. A second check must
confirm them. Bookies that are not registered are not asked. A copy that was not read is unknown: it is counted, its
ledger is read again, with growing pauses, and a round with unknown copies stores no time of a check, which other
auditors would believe. A round reaches each ledger once and is spread over the period.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.autorecovery.metadata_check import (
    DISABLED,
    DUE_CHECK_INTERVAL_S,
    NOT_YET,
    last_check_ms,
    repeat_in_s,
    wait_s,
)
from bkctl.runtime.autorecovery.publisher import DisabledError, MarkRequest, Publisher
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import MetadataUnavailableError, SessionExpiredError
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.replication.recovery_notes import (
    FIRST_IDS_MAX,
    CopyCheckCounts,
    CopyCheckNote,
    LedgerCount,
    RecoveryNotes,
)
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.limits import CopyRate, SharedPacer, for_each_bounded
from bkctl.runtime.replication.copy.reader import BATCH_BYTES
from bkctl.runtime.replication.judge.check_scope import CheckScope, Sample
from bkctl.runtime.replication.judge.copies import CopyDefect, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange, format_ranges, in_and_out_of
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.runtime.replication.turn.bookies import LiveBookies
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import counted

logger = logging.getLogger(__name__)

LEDGERS_AT_ONCE = 64
CATCH_UP_MAX = 10
"""A round that is late runs at most this many times faster than a round that is on time."""
REPEATS_MAX = 8
"""After these the next round begins: all ledgers are due again."""
AGAIN_MAX = 5_000
"""Ledgers that a note can hold: with more, the round is repeated as a whole."""
CONFIRM_AFTER_S = 2.0
"""Pause before the second check of bad copies: an add or a repair may be in progress."""
TURN_S = 900.0
"""A run of the lane ends after this time, and the next one goes on: so its status is never much older."""
SAVE_EVERY_S = 60.0
"""How often the position is stored: a failover repeats no more."""
IDS_AT_ONCE = 50_000
LEDGERS_IN_PARALLEL = 16
NO_GOOD_COPY = "all bookies of the write set answer, and none has a good copy of entries"
"""How the reason of a loss begins that this check noted. Later rounds read such a ledger whole, and remove the note if
no entry is lost."""
LIMITS = ReplicationConfig(bytes_in_flight_max=16 * 1024 * 1024, entries_in_flight_max=128)
"""Low limits, because clients of the bookies come first."""


def current_round(note: CopyCheckNote | None, last_ms: int | None, now_ms: int, period_s: float) -> CopyCheckNote:
    """The round to go on with, or the next one. ``last_ms``: when a check of all ledgers last reached its end.

    A round that began before another auditor finished a check is not needed.
    """
    period_ms = round(period_s * 1000)
    is_due = not wait_s(last_ms, now_ms, period_s)
    is_replaced = note is not None and last_ms is not None and note.began_ms < last_ms <= now_ms
    if note is None or is_replaced or note.began_ms > now_ms + period_ms:
        began_ms = now_ms if is_due or last_ms is None else min(last_ms, now_ms)
        last = (None, None) if note is None else (note.last, note.last_ended_ms)
        return CopyCheckNote(began_ms=began_ms, last=last[0], last_ended_ms=last[1])
    if note.began_ms > now_ms and is_due:
        return msgspec.structs.replace(note, began_ms=now_ms)
    return note


def next_round(note: CopyCheckNote, now_ms: int, period_s: float) -> CopyCheckNote:
    """The round after this one, which has reached all ledgers now."""
    began_ms = max(now_ms, note.began_ms + round(period_s * 1000))
    return CopyCheckNote(began_ms=began_ms, last=note.found, last_ended_ms=now_ms)


def repeat_or_next_round(note: CopyCheckNote, now_ms: int, period_s: float) -> CopyCheckNote:
    """What follows after all ledgers of a round, or of its repeat, were reached, but some copies could not be read."""
    if note.repeats >= REPEATS_MAX or not note.counts.is_complete:
        return next_round(note, now_ms, period_s)
    repeat_ms = now_ms + round(repeat_in_s(note.repeats, period_s) * 1000)
    return msgspec.structs.replace(note, repeats=note.repeats + 1, repeat_ms=repeat_ms, last_ledger_id=-1)


def span_of(note: CopyCheckNote, period_s: float) -> tuple[int, float]:
    """When the round or its repeat began, and the time over which it is spread: a repeat takes as long as its pause."""
    if not note.repeats:
        return note.began_ms, period_s
    return note.repeat_ms, repeat_in_s(note.repeats - 1, period_s)


class Pace(NamedTuple):
    """Check ``ledgers`` now, and the next ones after ``seconds``."""

    ledgers: int
    seconds: float


def pace(began_ms: int, now_ms: int, period_s: float, ledgers_left: int) -> Pace:
    """Spread the ledgers that are left over the rest of the period."""
    rest_s = max(period_s - (now_ms - began_ms) / 1000, period_s / CATCH_UP_MAX)
    each_s = rest_s / max(1, ledgers_left)
    count = min(LEDGERS_AT_ONCE, max(1, math.ceil(1 / each_s)))
    return Pace(count, count * each_s)


class CopyVerdict(NamedTuple):
    """``bad_bookies``: they lack entries, or have damaged ones, that are not lost. ``lost``: no bookie has them."""

    bad_bookies: frozenset[str]
    lost: tuple[EntryRange, ...]


def judge_check(check: LedgerCheck) -> CopyVerdict:
    """What the answers prove. A bookie that does not answer, or only may lack entries, proves nothing (bk#1197)."""
    bad = {
        defect.bookie_id
        for defect in check.defects
        if is_proven_bad(defect) and in_and_out_of(defect.entries, check.lost)[1]
    }
    return CopyVerdict(frozenset(bad), check.lost)


def is_proven_bad(defect: CopyDefect) -> bool:
    """Whether the bookie has no good copies, or too few, rather than no answer."""
    return defect.state in {CopyState.MISSING, CopyState.REPEATED} or defect.has_bad_record


def is_unknown(defect: CopyDefect) -> bool:
    """Whether the copies were not read: no answer, or one that says nothing about them."""
    return defect.state is not CopyState.DIFFERENT and not is_proven_bad(defect)


def with_check(note: CopyCheckNote, check: LedgerCheck, verdict: CopyVerdict) -> CopyCheckNote:
    """The round with one more ledger, or with another check of one. ``verdict``: what was confirmed."""
    found = counts_of(check, verdict)
    if found.is_complete and check.ledger_id not in note.again:
        return msgspec.structs.replace(note, counts=note.counts + found)
    again = {ledger_id: former for ledger_id, former in note.again.items() if ledger_id != check.ledger_id}
    if not found.is_complete and len(again) < AGAIN_MAX:
        again[check.ledger_id] = found
        return msgspec.structs.replace(note, again=again)
    return msgspec.structs.replace(note, counts=note.counts + found, again=again)


def counts_of(check: LedgerCheck, verdict: CopyVerdict) -> CopyCheckCounts:
    """What was found in one ledger. ``verdict``: what was confirmed."""
    if check.is_deleted:
        return CopyCheckCounts()
    bad = sum(defect.copies for defect in check.defects if is_proven_bad(defect))
    found = {
        "marked": bool(verdict.bad_bookies),
        "lost": bool(verdict.lost),
        "different": check.copies_different > 0,
        "unreadable": check.problem is not None,
    }
    this = LedgerCount(1, (check.ledger_id,))
    return CopyCheckCounts(
        ledgers=1,
        copies=check.copies_expected,
        copies_bad=bad,
        copies_unknown=check.copies_expected - check.copies_good - check.copies_different - bad,
        bytes_read=check.bytes_read,
        **{name: this for name, applies in found.items() if applies},
    )


class CopyCheck:
    """Checks a sample of the copies of every ledger, once in ``check_period_s``. ``progress``: how far it is."""

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, config: AutorecoveryConfig, publisher: Publisher
    ) -> None:
        self.progress: CopyCheckNote | None = None
        self._ports = ports
        self._config = config
        self._notes = RecoveryNotes(store, ports.ledgers.root)
        self._note = self._notes.copy_check
        self._publisher = publisher
        self._switches = ReplicationSwitches(store, ports.ledgers.root)
        self._live_bookies = LiveBookies(ports.registrations, ports.clock)
        self._rate = _BeatingRate(ports.clock, config.check_bytes_per_s)
        self._checker = LedgerChecker(ports, self._live_bookies, LIMITS, SharedPacer(ports.clock, self._rate))
        self._saved_ns = 0
        # One batch of entries may take this long at the rate; each batch is a sign of life.
        slowest_batch_s = 16 * BATCH_BYTES / config.check_bytes_per_s
        self.lane = Lane(
            "copies", self._run, ports.clock, interval_s=DUE_CHECK_INTERVAL_S, silence_max_s=300 + slowest_batch_s
        )

    async def _run(self, turn: Turn) -> str:
        self._rate.turn = turn
        if not await self._publisher.is_enabled():
            return DISABLED
        clock, period_s = self._ports.clock, self._config.check_period_s
        last_ms = await last_check_ms(self._switches, PeriodicCheck.ALL_LEDGERS)
        progress = self.progress = current_round(await self._note.find(), last_ms, clock.now_ms(), period_s)
        wait_s = (max(progress.began_ms, progress.repeat_ms) - clock.now_ms()) / 1000
        if wait_s > 0:
            self.lane.due_in(min(wait_s, DUE_CHECK_INTERVAL_S))
            turn.result_ms = None if _last_shown(progress) is None else progress.last_ended_ms
            return summary_of(progress)
        try:
            self.lane.due_in(await self._go_on(progress, turn))
        except DisabledError:
            await self._save(self.progress)
            return DISABLED
        return summary_of(self.progress)

    async def _go_on(self, progress: CopyCheckNote, turn: Turn) -> float:
        """Check the next ledgers, for some time. Returns when to go on; DisabledError."""
        clock = self._ports.clock
        progress, ids, left = await self._next_ledgers(progress, turn)
        span_ms, span_s = span_of(progress, self._config.check_period_s)
        lost = await self._publisher.losses.ledger_ids()
        ends_ns = clock.monotonic_ns() + int(TURN_S * 1e9)
        position = 0
        while position < len(ids):
            began_ns = clock.monotonic_ns()
            step = pace(span_ms, clock.now_ms(), span_s, left)
            some = ids[position : position + step.ledgers]
            progress = self.progress = await self._check(some, progress, lost, turn)
            position, left = position + len(some), left - len(some)
            now_ns = clock.monotonic_ns()
            pause_s = step.seconds - (now_ns - began_ns) / 1e9
            is_over = left > 0 and now_ns + pause_s * 1e9 >= ends_ns
            if is_over or now_ns - self._saved_ns >= SAVE_EVERY_S * 1e9:
                await self._save(progress)
            if is_over:
                return pause_s
            if left:
                await sleep_alive(clock, pause_s, turn)
        if left:
            await self._save(progress)
        else:
            await self._publisher.require_enabled()
            await self._end(progress)
        return 0.0

    async def _end(self, progress: CopyCheckNote) -> None:
        """All ledgers of the round were reached, or those that are read again."""
        ended_ms, period_s = self._ports.clock.now_ms(), self._config.check_period_s
        if progress.found.is_complete:
            await self._switches.set_check_time_ms(PeriodicCheck.ALL_LEDGERS, ended_ms)
            await self._save(next_round(progress, ended_ms, period_s))
            logger.info("check of copies finished: %s", summary_of(self.progress))
        else:
            await self._save(repeat_or_next_round(progress, ended_ms, period_s))
            logger.warning("check of copies is not complete: %s", summary_of(self.progress))

    async def _next_ledgers(self, progress: CopyCheckNote, turn: Turn) -> tuple[CopyCheckNote, list[int], int]:
        """The next ledgers of the round, and how many are left of it. Few requests: it reads no metadata."""
        if progress.repeats:
            ids = sorted(each for each in progress.again if each > progress.last_ledger_id)
            return progress, ids, len(ids)
        ids = []
        left, highest, until = 0, -1, progress.until_ledger_id
        async with aclosing(self._ports.ledgers.list_ids()) as listed:
            async for ledger_id in listed:
                turn.beat()
                highest = max(highest, ledger_id)
                if ledger_id > progress.last_ledger_id and (until is None or ledger_id <= until):
                    left += 1
                    if len(ids) < IDS_AT_ONCE:
                        ids.append(ledger_id)
        if until is None:
            progress = msgspec.structs.replace(progress, until_ledger_id=highest)
            await self._save(progress)
        return progress, ids, left

    async def _save(self, progress: CopyCheckNote) -> None:
        self.progress = progress
        await self._note.put(progress)
        self._saved_ns = self._ports.clock.monotonic_ns()

    async def _check(
        self, ledger_ids: Sequence[int], progress: CopyCheckNote, lost: Container[int], turn: Turn
    ) -> CopyCheckNote:
        """Check these ledgers, and mark those with bad copies. ``lost``: those with a note of lost entries.

        DisabledError: they are checked again.
        """
        await self._publisher.require_enabled()
        await self._live_bookies.refresh()
        self._checker.given_up = await read_given_up(self._notes)
        turn.beat()
        found, requests = progress, list[MarkRequest]()
        sample = Sample(self._config.check_entries_percentage / 100, progress.began_ms)

        async def check_one(ledger_id: int) -> None:
            nonlocal found
            is_whole = ledger_id in lost
            check, verdict = await self._check_ledger(
                ledger_id, CheckScope(sample=None if is_whole else sample, has_open_end=False)
            )
            is_news, found = ledger_id not in found.again, with_check(found, check, verdict)
            if is_news and ledger_id in found.again and len(found.again) <= FIRST_IDS_MAX:
                unread = f"has copies that were not read: {_answers(filter(is_unknown, check.defects))}"
                problem = unread if check.problem is None else f"was not checked: {check.problem}"
                logger.warning("ledger %d %s", ledger_id, problem)
            if check.copies_different:
                logger.warning("ledger %d has copies that differ: bkctl ledger verify %d", ledger_id, ledger_id)
            if verdict.lost:
                members = {each.bookie_id for each in check.defects if in_and_out_of(each.entries, verdict.lost)[0]}
                reason = f"{NO_GOOD_COPY} {format_ranges(verdict.lost)}"
                await self._publisher.note_loss(ledger_id, members, reason)
            elif is_whole and check.problem is None and not check.unreadable:
                await self._publisher.withdraw_loss(ledger_id, NO_GOOD_COPY)
            if verdict.bad_bookies:
                requests.append(MarkRequest(ledger_id, tuple(sorted(verdict.bad_bookies))))
                if found.counts.marked.ledgers <= FIRST_IDS_MAX:
                    bad = (each for each in check.defects if each.bookie_id in verdict.bad_bookies)
                    logger.warning("ledger %d has bad copies: %s", ledger_id, _answers(filter(is_proven_bad, bad)))

        await for_each_bounded(each_of(ledger_ids), check_one, LEDGERS_IN_PARALLEL)
        if requests:
            await self._publisher.publish(each_of(requests), turn)
        return msgspec.structs.replace(found, last_ledger_id=max(ledger_ids))

    async def _check_ledger(self, ledger_id: int, scope: CheckScope) -> tuple[LedgerCheck, CopyVerdict]:
        """Check a ledger; if it has bad copies, check it again. A ledger that cannot be checked has a problem."""
        try:
            check = await self._checker.check(ledger_id, scope)
            verdict = judge_check(check)
            if verdict.bad_bookies or verdict.lost:
                await self._ports.clock.sleep(CONFIRM_AFTER_S)
                check = await self._checker.check(ledger_id, scope)
                later = judge_check(check)
                verdict = CopyVerdict(verdict.bad_bookies & later.bad_bookies, later.lost if verdict.lost else ())
        except (MetadataUnavailableError, SessionExpiredError):
            raise  # it concerns all ledgers
        except Exception as error:  # one ledger must not keep the others from being checked
            logger.debug("ledger %d", ledger_id, exc_info=True)
            reason = str(error) if isinstance(error, BkctlError) else f"{type(error).__name__}: {error}"
            check, verdict = LedgerCheck(ledger_id=ledger_id, problem=reason), CopyVerdict(frozenset(), ())
        return check, verdict


def _answers(defects: Iterable[CopyDefect]) -> str:
    return ", ".join(f"{defect.bookie_id} ({defect.reason})" for defect in defects)


def _last_shown(progress: CopyCheckNote) -> CopyCheckCounts | None:
    """What the last round found, while the next has not begun. Pure."""
    return progress.last if progress.last_ledger_id < 0 and not progress.found.ledgers else None


def summary_of(progress: CopyCheckNote | None) -> str:
    """The round, or the last one if the next has not begun, in a few words. Pure."""
    if progress is None:
        return NOT_YET
    counts, last = progress.found, _last_shown(progress)
    if last is not None:
        counts = last
        done = "all ledgers checked" if counts.is_complete else "not all copies were read"
    elif progress.repeats:
        done = f"reading ledgers with unknown copies again (repeat {progress.repeats})"
    else:
        done = f"checked up to ledger {progress.last_ledger_id}"
    unread = f", {counts.unreadable.ledgers} could not be read" if counts.unreadable.ledgers else ""
    return (
        f"{done}: {counted(counts.ledgers, 'ledger')}{unread}, {counted(counts.copies, 'copy')}, "
        f"{counts.copies_bad} bad, {counts.copies_unknown} unknown; "
        f"{counted(counts.marked.ledgers, 'ledger')} marked, {counts.lost.ledgers} with lost entries"
    )


async def sleep_alive(clock: Clock, seconds: float, turn: Turn) -> None:
    """Sleep with signs of life."""
    ends_ns = clock.monotonic_ns() + int(seconds * 1e9)
    while (left_ns := ends_ns - clock.monotonic_ns()) > 0:
        await clock.sleep(min(left_ns / 1e9, 30.0))
        turn.beat()


class _BeatingRate(CopyRate):
    """Each read is a sign of life."""

    turn: Turn | None = None

    async def take(self, amount: float = 0) -> None:
        """See the base class."""
        if self.turn is not None:
            self.turn.beat()
        await super().take(amount)
