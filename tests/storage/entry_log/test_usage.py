"""What is left of a log, and which logs are chosen: small inputs enumerated."""

from __future__ import annotations

import itertools

import pytest

from bkctl.storage.entry_log.usage import BUCKET_COUNT, LogUsage, logs_to_compact, usage_bucket, usage_buckets


def log(log_id: int, remaining_bytes: int, total_bytes: int = 100) -> LogUsage:
    """Ledger 7 is left, ledger 8 is gone."""
    ledger_bytes = {7: remaining_bytes, 8: total_bytes - remaining_bytes}
    whole = LogUsage.of_new(log_id, {ledger_id: size for ledger_id, size in ledger_bytes.items() if size})
    return whole.of_existing({7: "row"}.get)


@pytest.mark.parametrize("remaining_bytes", range(101))
def test_bucket_is_the_tenth_below(remaining_bytes: int) -> None:
    assert usage_bucket(log(1, remaining_bytes).usage()) == min(9, remaining_bytes // 10)


def test_every_subset_of_ledgers_left() -> None:
    ledger_bytes = {1: 10, 2: 20, 5: 30, 2**63 - 2: 40}
    whole = LogUsage.of_new(3, ledger_bytes)
    for count in range(5):
        for existing in itertools.combinations(ledger_bytes, count):
            left = whole.of_existing(dict.fromkeys(existing, "row").get)
            assert left.total_bytes == 100
            assert left.remaining_bytes == sum(ledger_bytes[ledger_id] for ledger_id in existing)
            assert left.is_empty == (not existing)
            assert left.usage() == left.remaining_bytes / 100
            assert (left is whole) == (count == 4)
            assert left.of_existing(lambda _: "row") is left


def test_a_target_size_counts_small_logs_as_little_used() -> None:
    assert log(1, 50).usage(target_bytes=1000) == 0.05
    assert log(1, 50, 2000).usage(target_bytes=1000) == 0.025
    assert log(1, 100).usage(target_bytes=1000) == 1.0  # nothing to be won by copying all of it
    assert log(1, 0, 0).usage(target_bytes=1000) == 0.0


def test_an_empty_log_is_unused() -> None:
    assert LogUsage.of_new(1, {}).usage() == 0.0
    assert LogUsage.of_new(1, {}).is_empty


def test_lowest_tenth_first_then_oldest() -> None:
    logs = [log(4, 19), log(3, 11), log(2, 5), log(1, 35), log(0, 90)]
    assert [each.log_id for each in logs_to_compact(logs, 0.8)] == [2, 3, 4, 1]


@pytest.mark.parametrize("threshold_percent", range(0, 101, 10))
def test_only_what_is_below_the_threshold(threshold_percent: int) -> None:
    logs = [log(remaining, remaining) for remaining in range(101)]
    chosen = logs_to_compact(logs, threshold_percent / 100)
    assert [each.log_id for each in chosen] == list(range(threshold_percent))


def test_bucket_counts() -> None:
    counts = usage_buckets([log(1, 5), log(2, 5), log(3, 99), log(4, 100)])
    assert counts == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert len(usage_buckets([])) == BUCKET_COUNT
