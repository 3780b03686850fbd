from __future__ import annotations

import itertools

from runtime.ledger.ack_set import AckSet


def test_an_index_counts_once() -> None:
    """An acknowledgement counts once per position; a failure takes it back."""
    acks = AckSet(3, 2)
    assert not acks.ack(1)
    assert not acks.ack(1)
    assert acks.ack(4)
    assert not acks.fail(4, "b4")
    assert not acks.is_complete
    assert acks.failed == {4: "b4"}


def test_impossible_once_more_failed_than_may() -> None:
    acks = AckSet(3, 2)
    assert not acks.fail(0, "b0")
    assert not acks.fail(0, "b0")
    assert acks.fail(1, "b1")
    assert acks.ack(0) is False
    assert acks.failed == {1: "b1"}


def test_unset_tells_whether_the_quorum_stands_without_it() -> None:
    acks = AckSet(3, 2)
    for index in range(3):
        acks.ack(index)
    assert acks.unset(0)
    assert not acks.unset(1)
    assert acks.ack(1)


def test_every_sequence_of_three_events_against_plain_sets() -> None:
    events = [(kind, index) for kind in ("ack", "fail", "unset") for index in range(3)]
    for sequence in itertools.product(events, repeat=3):
        acks, acked, failed = AckSet(3, 2), set[int](), set[int]()
        for kind, index in sequence:
            (acked.add if kind == "ack" else acked.discard)(index)
            (failed.add if kind == "fail" else failed.discard)(index)
            if kind == "fail":
                assert acks.fail(index, "b") == (len(failed) > 1)
            else:
                assert (acks.ack if kind == "ack" else acks.unset)(index) == (len(acked) >= 2)
        assert acks.is_complete == (len(acked) >= 2)
        assert set(acks.failed) == failed
