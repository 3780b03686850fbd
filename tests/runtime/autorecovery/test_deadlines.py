"""When the ledgers of lost bookies are marked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.autorecovery.liveness import LostVerdict, follow_bookies, judge_lost, restart_deadlines
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote

KNOWN = frozenset({"b1", "b2", "b3", "b4", "b5"})


def note(lost_s: float, due_s: float) -> LostBookieNote:
    return LostBookieNote(lost_ms=int(lost_s * 1000), due_ms=int(due_s * 1000))


def judge(
    notes: dict[str, LostBookieNote],
    now_s: float,
    *,
    excused_until_s: dict[str, float] | None = None,
    counted: frozenset[str] = KNOWN,
    share_max: float = 0.5,
) -> LostVerdict:
    """With a delay of 60 s."""
    excused = {each: int(time_s * 1000) for each, time_s in (excused_until_s or {}).items()}
    return judge_lost(notes, excused, counted, int(now_s * 1000), 60_000, share_max)


def test_a_deadline_begins_when_a_bookie_is_lost_and_ends_when_it_returns() -> None:
    first = follow_bookies({}, KNOWN, KNOWN - {"b1"}, 1000, 60_000)
    assert first == {"b1": note(1, 61)}
    second = follow_bookies(first, KNOWN, KNOWN - {"b1", "b2"}, 11_000, 60_000)
    assert second == {"b1": note(1, 61), "b2": note(11, 71)}
    assert follow_bookies(second, KNOWN, KNOWN - {"b2"}, 12_000, 60_000) == {"b2": note(11, 71)}


def test_a_shorter_delay_shortens_a_deadline_and_a_longer_one_does_not() -> None:
    notes = {"b1": note(1, 61)}
    live = KNOWN - {"b1"}
    assert follow_bookies(notes, KNOWN, live, 10_000, 5_000) == {"b1": note(1, 15)}
    assert follow_bookies(notes, KNOWN, live, 10_000, 600_000) == notes
    assert follow_bookies(notes, KNOWN, live, 10_000, 0) == {"b1": note(1, 10)}


def test_a_write_of_another_delay_counts_from_now() -> None:
    notes = {"b1": note(1, 61), "b2": note(1, 9)}
    assert restart_deadlines(notes, 10_000, 5_000) == {"b1": note(1, 15), "b2": note(1, 9)}
    assert restart_deadlines(notes, 10_000, 600_000) == {"b1": note(1, 610), "b2": note(1, 9)}


def test_each_bookie_is_due_at_its_own_deadline() -> None:
    notes = {"b1": note(1, 61), "b2": note(31, 91)}
    assert judge(notes, 61) == LostVerdict(
        due=frozenset({"b1"}), early=frozenset({"b1", "b2"}), next_ms=91_000, counted=5, gone=2
    )
    assert judge(notes, 91) == LostVerdict(due=frozenset({"b1", "b2"}), counted=5, gone=2)


def test_two_bookies_that_are_gone_together_for_a_tenth_of_the_delay() -> None:
    notes = {"b1": note(0, 60), "b2": note(20, 80)}
    before = judge(notes, 25)
    assert (before.early, before.next_ms) == (frozenset(), 26_000)
    after = judge(notes, 26)
    assert (after.due, after.early, after.next_ms) == (frozenset(), frozenset({"b1", "b2"}), 60_000)
    assert judge({"b1": note(0, 60)}, 59).early == frozenset()
    assert judge(notes, 26, counted=KNOWN - {"b1"}).early == frozenset(), "no ledger names b1"


def test_a_bookie_in_maintenance_is_neither_due_nor_early_nor_counted_as_gone() -> None:
    notes = {"b1": note(0, 60), "b2": note(0, 60), "b3": note(50, 110)}
    excused = {"b1": 100.0, "b2": 100.0}
    assert judge(notes, 70, excused_until_s=excused) == LostVerdict(next_ms=100_000, counted=5, gone=1)
    ended = judge(notes, 100, excused_until_s=excused, share_max=0.8)
    assert (ended.due, ended.next_ms, ended.gone) == (frozenset({"b1", "b2"}), 110_000, 3)


def test_the_alarm_begins_above_the_share() -> None:
    notes = {each: note(0, 60) for each in ("b1", "b2")}
    assert not judge(notes, 60, counted=frozenset({"b1", "b2", "b3", "b4"})).is_alarm
    alarm = judge(notes, 60, counted=frozenset({"b1", "b2", "b3"}))
    assert alarm == LostVerdict(counted=3, gone=2, is_alarm=True)
    assert not judge(notes, 60, counted=frozenset({"b1", "b3"})).is_alarm, "b2 does not count: no ledger names it"
    assert not judge({}, 60, counted=frozenset()).is_alarm


times = st.integers(0, 200)
bookie_notes = st.builds(lambda lost, wait: note(lost, lost + wait), times, times)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), bookie_notes), times)
def test_a_verdict_names_the_time_at_which_it_changes(notes: dict[str, LostBookieNote], now_s: int) -> None:
    verdict = judge(notes, now_s, share_max=1)
    if verdict.next_ms is None:
        assert judge(notes, 10_000, share_max=1) == verdict
        return
    assert verdict.next_ms > now_s * 1000
    before = judge(notes, (verdict.next_ms - 1) / 1000, share_max=1)
    after = judge(notes, verdict.next_ms / 1000, share_max=1)
    assert (before.due, before.early) == (verdict.due, verdict.early)
    assert (after.due, after.early) != (verdict.due, verdict.early)
