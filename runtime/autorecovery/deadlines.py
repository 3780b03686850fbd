"""When the ledgers of a lost bookie are marked. Pure; times in ms since 1970.

Each lost bookie waits for its own delay, so two bookies that restart at the same time cost nothing. Java's auditor has
one delay for all of them and ignores it as soon as a second bookie is lost (replication section 7.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote

EARLY_SHARE = 0.1
"""Share of the delay that two lost bookies must be gone together before ledgers with one copy left are marked."""

_LOST_TOGETHER_MIN = 2


class LostVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about lost bookies.

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
