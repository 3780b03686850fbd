"""When a child process that sends nothing is reported and killed (a real one: test_with_autorecovery.py)."""

from __future__ import annotations

from bkctl.runtime.autorecovery.child import KILL_STEPS, WARN_STEPS, ProcessSilence, SilenceEvent

NONE, WARN, KILL, IS_OVER = SilenceEvent.NONE, SilenceEvent.WARN, SilenceEvent.KILL, SilenceEvent.IS_OVER
UNTIL_WARNED = [NONE] * (WARN_STEPS - 1) + [WARN]


def steps(silence: ProcessSilence, count: int) -> list[SilenceEvent]:
    return [silence.step() for _ in range(count)]


def test_a_silent_process_is_reported_once_and_then_killed() -> None:
    expected = [*UNTIL_WARNED, *[NONE] * (KILL_STEPS - WARN_STEPS - 1), KILL, KILL]
    assert steps(ProcessSilence(), KILL_STEPS + 1) == expected


def test_the_limits_count_from_the_last_message() -> None:
    silence = ProcessSilence()
    assert steps(silence, WARN_STEPS - 1) == [NONE] * (WARN_STEPS - 1)
    silence.is_heard = True
    assert steps(silence, WARN_STEPS + 1) == [NONE, *UNTIL_WARNED]
    silence.is_heard = True
    assert steps(silence, WARN_STEPS + 1) == [IS_OVER, *UNTIL_WARNED]
