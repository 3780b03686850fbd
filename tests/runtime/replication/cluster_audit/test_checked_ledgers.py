"""Which ledgers come first, and what the file keeps, compared with a map of single ids."""

from __future__ import annotations

import random

import pytest

from bkctl.runtime.replication.cluster_audit.checked_ledgers import (
    CheckedLedgers,
    CheckedLedgersFormatError,
    LongestUnchecked,
    decode_checked,
    encode_checked,
    ranges_of,
)

EMPTY = CheckedLedgers(root="/ledgers", instance_id="an-id", way="listed")


@pytest.mark.parametrize("seed", range(20))
def test_each_ledger_has_the_time_of_its_last_run(seed: int) -> None:
    source = random.Random(seed)
    checked, expected, begun = EMPTY, dict[int, int](), dict[int, int]()
    for number in range(1, 8):
        checked_ms = number if number != 4 else 2_000_000_000_000  # a clock that was wrong
        ledger_ids = source.sample(range(60), source.randrange(40))
        tried = [ledger_ids.pop() for _ in range(source.randrange(len(ledger_ids) + 1))]
        checked = checked.with_run(checked_ms, ranges_of(ledger_ids), ranges_of(tried))
        expected |= dict.fromkeys(ledger_ids, checked_ms)
        begun |= dict.fromkeys((*ledger_ids, *tried), number)
    assert decode_checked(encode_checked(checked)) == checked
    kept = {
        ledger_id: run.checked_ms
        for run in checked.runs
        for first, last in run.ranges
        for ledger_id in range(first, last + 1)
    }
    assert kept == expected

    waiting = LongestUnchecked(checked.runs)
    for ledger_id in range(60):
        waiting.add(ledger_id)

    assert list(waiting) == sorted(range(60), key=lambda ledger_id: (begun.get(ledger_id, 0), ledger_id))


def test_a_changed_file_is_refused() -> None:
    data = encode_checked(EMPTY.with_run(7, ranges_of([1, 2, 3, 9]), ranges_of([2, 5, 7])))
    for damaged, reason in (
        (data[:-9], "it is damaged"),
        (b"[]", "it is damaged"),
        (data.replace(b'"3"', b'"4"'), "it has other ranges than those of 4 ledgers"),
        (data.replace(b'"9"', b'"2"'), "its ranges are invalid or overlap"),
        (data.replace(b'"7"', b'"2"'), "its ranges are invalid or overlap"),
        (data.replace(b'"format":1', b'"format":2'), "it has format 2, and this bkctl reads format 1"),
        (data.replace(b"CheckedLedgers", b"LedgerFindings"), "was not written by bkctl audit --checked-file"),
        (data.replace(b'"checked_ms":7', b'"checked_ms":"x"'), "it is damaged"),
    ):
        assert damaged != data
        with pytest.raises(CheckedLedgersFormatError, match=reason):
            decode_checked(damaged)
