from __future__ import annotations

import random
import tracemalloc

import pytest

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.mark_listing import CANDIDATES_MAX, WorkQueue, pause_s, urgency
from bkctl.storage.ids import LEDGER_ID_MAX


def drained(queue: WorkQueue, now_ms: int = 0) -> list[int]:
    found = []
    while (ledger_id := queue.take(now_ms)) is not None:
        found.append(ledger_id)
    return found


def test_fewest_copies_come_first_then_the_oldest_mark_and_ledgers_without_a_copy_last() -> None:
    queue = WorkQueue()
    candidates = [(4, 0, 0), (1, 2, 30), (LEDGER_ID_MAX, 1, 2**60), (2, 2, 20), (3, 300, -1), (0, 1, 5)]
    for ledger_id, copies, marked_ms in random.Random(1).sample(candidates, len(candidates)):
        queue.offer(urgency(ledger_id, copies, marked_ms))
    assert drained(queue) == [0, LEDGER_ID_MAX, 2, 1, 3, 4]


def test_a_postponed_ledger_is_taken_when_it_is_due_and_not_offered_before() -> None:
    queue = WorkQueue()
    queue.offer(urgency(1, 1, 1))
    queue.postpone(1, 100)
    queue.postpone(2, 50)
    queue.postpone(2, 200)
    queue.offer(urgency(2, 1, 1))
    assert (drained(queue, 49), queue.next_due_ms()) == ([], 100)
    assert drained(queue, 100) == [1]
    assert (queue.is_postponed(1), queue.is_postponed(2)) == (False, True)
    queue.clear()
    assert drained(queue, 200) == [2]
    assert queue.next_due_ms() is None


def test_a_full_queue_keeps_the_most_urgent() -> None:
    queue = WorkQueue(100)
    ids = list(range(5000))
    random.Random(1).shuffle(ids)
    for ledger_id in ids:
        queue.offer(urgency(ledger_id, 1, ledger_id))
        assert len(queue) < 200
    assert drained(queue)[:100] == list(range(100))


def test_the_memory_of_a_queue_is_bounded() -> None:
    queue = WorkQueue()
    tracemalloc.start()
    for ledger_id in range(3 * CANDIDATES_MAX):
        queue.offer(urgency(ledger_id, 2, 1_700_000_000_000 + ledger_id))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(queue) < 2 * CANDIDATES_MAX
    assert size < 100 * len(queue)


@pytest.mark.parametrize(
    ("attempts", "needs_event", "expected_s"),
    [(1, False, 10), (2, False, 20), (6, False, 300), (10**9, False, 300), (1, True, 3600)],
)
def test_the_pause_after_a_failure_doubles_up_to_a_limit(attempts: int, needs_event: bool, expected_s: float) -> None:
    assert pause_s(AutorecoveryConfig(), attempts, needs_event=needs_event) == expected_s
