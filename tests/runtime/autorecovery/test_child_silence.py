"""When a child process that sends nothing is reported and killed (a real one: test_with_autorecovery.py)."""

from __future__ import annotations

from runtime.autorecovery.child_silence import ProcessSilence, SilenceEvent, SilenceLimits

LIMITS = SilenceLimits(step_s=1, warn_s=3, kill_s=5)
NONE, WARN, KILL, IS_OVER = SilenceEvent.NONE, SilenceEvent.WARN, SilenceEvent.KILL, SilenceEvent.IS_OVER


def steps(silence: ProcessSilence, count: int) -> list[SilenceEvent]:
    return [silence.step() for _ in range(count)]


def test_a_silent_process_is_reported_once_and_then_killed() -> None:
    assert steps(ProcessSilence(LIMITS), 6) == [NONE, NONE, WARN, NONE, KILL, KILL]


def test_the_limits_count_from_the_last_message() -> None:
    silence = ProcessSilence(LIMITS)
    assert steps(silence, 2) == [NONE, NONE]
    silence.note_message()
    assert steps(silence, 4) == [NONE, NONE, NONE, WARN]
    silence.note_message()
    assert steps(silence, 4) == [IS_OVER, NONE, NONE, WARN]
