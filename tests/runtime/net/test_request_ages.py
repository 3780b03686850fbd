"""Time-outs from notes about many requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.net.request_ages import RequestAges


def test_requests_expire_when_they_are_old_enough_and_not_before() -> None:
    ages = RequestAges(100)
    ages.note(0, 10)
    ages.note(50, 20)
    assert ages.expired_below(99, 100) == 0
    assert ages.expired_below(100, 100) == 10
    assert ages.expired_below(100, 50) == 20


@given(steps=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=30), timeout_ns=st.integers(1, 100))
def test_never_too_early_and_late_by_one_interval_at_most(steps: list[tuple[int, int]], timeout_ns: int) -> None:
    ages = RequestAges(100)
    sent_ns: list[int] = []
    note_ns: list[int] = []
    now_ns = 0
    for interval_ns, count in steps:
        now_ns += interval_ns
        ages.note(now_ns, len(sent_ns))
        note_ns.append(now_ns)
        expired = ages.expired_below(now_ns, timeout_ns)
        assert all(sent <= now_ns - timeout_ns for sent in sent_ns[:expired])
        covered = max((noted for noted in note_ns if noted <= now_ns - timeout_ns), default=-1)
        assert all(sent >= covered for sent in sent_ns[expired:])
        sent_ns.extend([now_ns] * count)
