"""The share of a copy process, and when one that sends nothing is killed. With real processes: test_recovery_job.py."""

from __future__ import annotations

from runtime.replication.config import OpenLedgers, ReplicationConfig
from runtime.replication.run.copy_processes import ProcessSilence, SilenceEvent, SilenceLimits, _share
from runtime.replication.turn.messages import RepairSetup

LIMITS = SilenceLimits(step_s=1, warn_s=3, kill_s=5)
NONE, WARN, KILL, IS_OVER = SilenceEvent.NONE, SilenceEvent.WARN, SilenceEvent.KILL, SilenceEvent.IS_OVER


def steps(silence: ProcessSilence, count: int, *, has_work: bool = True) -> list[SilenceEvent]:
    return [silence.step(has_work=has_work) for _ in range(count)]


def test_a_silent_process_is_reported_once_and_then_killed() -> None:
    assert steps(ProcessSilence(LIMITS), 6) == [NONE, NONE, WARN, NONE, KILL, KILL]


def test_the_limits_count_from_the_last_message() -> None:
    silence = ProcessSilence(LIMITS)
    assert steps(silence, 2) == [NONE, NONE]
    silence.note_message()
    assert steps(silence, 4) == [NONE, NONE, NONE, WARN]
    silence.note_message()
    assert steps(silence, 4) == [IS_OVER, NONE, NONE, WARN]


def test_a_process_without_work_may_be_silent() -> None:
    silence = ProcessSilence(LIMITS)
    assert steps(silence, 9, has_work=False) == [NONE] * 9
    assert steps(silence, 3) == [NONE, NONE, WARN]
    assert steps(silence, 1, has_work=False) == [IS_OVER]


def test_a_process_gets_its_share_of_the_limits_and_of_the_targets_space() -> None:
    setup = RepairSetup(
        config=ReplicationConfig(bytes_in_flight_max=900),
        leaving=frozenset(),
        unreachable=frozenset(),
        open_ledgers=OpenLedgers.WAIT,
        known=(),
        only_targets=(),
    )
    share = _share(setup, 3)
    assert (share.config.bytes_in_flight_max, share.process_count) == (300, 3)
