"""Every request costs until it is answered, once."""

from __future__ import annotations

from runtime.net.memory_budget import MemoryBudget
from runtime.net.requests_under_way import RequestsUnderWay


def test_costs_of_ids_used_twice_are_freed_one_answer_at_a_time() -> None:
    full: list[bool] = []
    requests = RequestsUnderWay(MemoryBudget(400, lambda: full.append(True), lambda: full.append(False)))
    requests.begin(1, 10)
    requests.begin(2, 20)
    requests.begin(1, 40)
    requests.begin(1, 50)
    assert (requests.cost_bytes, full) == (120, [True])
    left = []
    for txn_id in (1, 1, 1, 2, 1, 7):
        requests.end(txn_id)
        left.append(requests.cost_bytes)
    assert left == [110, 60, 20, 0, 0, 0]
    assert full == [True, False]
