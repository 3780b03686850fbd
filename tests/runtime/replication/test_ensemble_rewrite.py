from __future__ import annotations

import itertools

import msgspec
import pytest

from bkctl.runtime.ledger.changes import find_fault, new_ledger, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, Segment
from bkctl.runtime.replication.run.ensemble_rewrite import rewrite_bookie

BASE = new_ledger(("a", "b"), 2, 2, DigestType.CRC32C, b"")


def ledger(*ensembles: str, is_closed: bool = True) -> LedgerMetadata:
    segments = tuple(Segment(index * 10, tuple(ensemble)) for index, ensemble in enumerate(ensembles))
    rolled = msgspec.structs.replace(BASE, segments=segments, creator_token=7)
    return to_closed(rolled, 100, 1000) if is_closed else rolled


def ensembles(metadata: LedgerMetadata) -> list[str]:
    return ["".join(segment.ensemble) for segment in metadata.segments]


def test_every_segment_of_a_closed_ledger() -> None:
    rewrite = rewrite_bookie(ledger("ab", "bc", "ca"), "a", "z", has_open_ends=False)
    assert rewrite.metadata is not None
    assert ensembles(rewrite.metadata) == ["zb", "bc", "cz"]
    assert (rewrite.segments, rewrite.is_end_left, rewrite.obstacle) == ((0, 2), False, None)
    assert rewrite.metadata.creator_token == 0


@pytest.mark.parametrize("state", ["open", "in recovery"])
def test_the_end_of_one_that_is_not_closed_is_left(state: str) -> None:
    unclosed = ledger("ab", "ba", is_closed=False)
    unclosed = unclosed if state == "open" else to_in_recovery(unclosed)
    rewrite = rewrite_bookie(unclosed, "a", "z", has_open_ends=False)
    assert rewrite.metadata is not None
    assert (ensembles(rewrite.metadata), rewrite.is_end_left) == (["zb", "ba"], True)
    rewrite = rewrite_bookie(unclosed, "a", "z", has_open_ends=True)
    assert rewrite.metadata is not None
    assert (ensembles(rewrite.metadata), rewrite.is_end_left) == (["zb", "bz"], False)
    only_end = rewrite_bookie(ledger("bc", "ba", is_closed=False), "a", "z", has_open_ends=False)
    assert (only_end.metadata, only_end.segments, only_end.is_end_left) == (None, (), True)


def test_all_small_ledgers() -> None:
    """No bookie twice, nothing else changed, nothing left behind, and the way back leads home."""
    pairs = ["".join(pair) for pair in itertools.product("abz", repeat=2)]
    for first, second, has_open_ends, is_closed in itertools.product(pairs, pairs, (False, True), (False, True)):
        before = ledger(first, second, is_closed=is_closed)
        rewrite = rewrite_bookie(before, "a", "z", has_open_ends=has_open_ends)
        clashes = [pair for pair in (first, second) if pair in {"az", "za", "aa"}]
        assert bool(rewrite.obstacle) == bool(clashes)
        if clashes:
            assert rewrite.metadata is None
            continue
        assert rewrite.is_end_left == (not is_closed and not has_open_ends and "a" in second)
        if rewrite.metadata is None:
            assert "a" not in first
            assert "a" not in second or rewrite.is_end_left
            continue
        now = ensembles(rewrite.metadata)
        assert now == [first.replace("a", "z"), second if rewrite.is_end_left else second.replace("a", "z")]
        assert find_fault(rewrite.metadata) is None
        assert msgspec.structs.replace(rewrite.metadata, segments=before.segments, creator_token=7) == before


def test_an_id_that_is_nowhere() -> None:
    rewrite = rewrite_bookie(ledger("ab"), "x", "z", has_open_ends=True)
    assert (rewrite.metadata, rewrite.segments, rewrite.is_end_left, rewrite.obstacle) == (None, (), False, None)
