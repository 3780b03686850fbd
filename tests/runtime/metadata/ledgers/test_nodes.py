from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.runtime.metadata.ledgers.layout import (
    SHORT_ID_LIMIT,
    LedgerNode,
    LedgerTree,
    interior_children,
    ledgers_in,
    node_at,
    root_node,
)
from bkctl.storage.ids import LEDGER_ID_MAX

LEGACY = LedgerTree.LEGACY_HIERARCHICAL
HIERARCHICAL = LedgerTree.HIERARCHICAL
LONG = LedgerTree.LONG_HIERARCHICAL


@pytest.mark.parametrize(
    ("tree", "path", "first", "last", "digits_below"),
    [
        (HIERARCHICAL, "", 0, LEDGER_ID_MAX, None),
        (LedgerTree.FLAT, "", 0, LEDGER_ID_MAX, ()),
        (HIERARCHICAL, "00", 0, 99_999_999, (4,)),
        (HIERARCHICAL, "00/0001", 10_000, 19_999, ()),
        (HIERARCHICAL, "21", 2_100_000_000, SHORT_ID_LIMIT - 1, (4,)),
        (HIERARCHICAL, "21/4748", 2_147_480_000, SHORT_ID_LIMIT - 1, ()),
        (HIERARCHICAL, "000", SHORT_ID_LIMIT, 10**16 - 1, (4, 4, 4)),
        (HIERARCHICAL, "000/0000/0021/4748", SHORT_ID_LIMIT, 2_147_489_999, ()),
        (HIERARCHICAL, "922/3372/0368/5477", 9223372036854770000, LEDGER_ID_MAX, ()),
        (LEGACY, "21/4748", 2_147_480_000, 2_147_489_999, ()),
        (LEGACY, "99/9999", 9_999_990_000, 9_999_999_999, ()),
        (LONG, "000/0000/0000/0000", 0, 9999, ()),
        (LONG, "922", 922 * 10**16, LEDGER_ID_MAX, (4, 4, 4)),
    ],
)
def test_what_a_node_stands_for(
    tree: LedgerTree, path: str, first: int, last: int, digits_below: tuple[int, ...] | None
) -> None:
    assert node_at(tree, path) == LedgerNode(path, first, last, digits_below)


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        (HIERARCHICAL, "22"),
        (HIERARCHICAL, "21/4749"),
        (HIERARCHICAL, "000/0000/0000"),
        (HIERARCHICAL, "923"),
        (HIERARCHICAL, "922/3372/0368/5478"),
        (HIERARCHICAL, "0"),
        (HIERARCHICAL, "00/0000/0000"),
        (HIERARCHICAL, "idgen"),
        (LEGACY, "000"),
        (LONG, "00"),
        (LONG, "\u0661\u0662\u0663"),
        (LedgerTree.FLAT, "00"),
    ],
)
def test_where_no_ledgers_are(tree: LedgerTree, path: str) -> None:
    assert node_at(tree, path) is None


@given(st.sampled_from([LEGACY, HIERARCHICAL, LONG]), st.integers(0, LEDGER_ID_MAX))
def test_every_node_above_a_ledger_stands_for_it(tree: LedgerTree, ledger_id: int) -> None:
    ledger_id %= 10**10 if tree is LEGACY else 2**63
    names = tree.ledger_path(ledger_id).split("/")
    for depth in range(len(names)):
        node = node_at(tree, "/".join(names[:depth]))
        assert node is not None
        assert node.first_ledger_id <= ledger_id <= node.last_ledger_id
    assert node is not None
    assert node.digits_below == ()
    assert ledgers_in(tree, node, [names[-1]], pytest.fail) == [ledger_id]


@settings(max_examples=30)  # each has thousands of children on every level
@given(st.sampled_from([LEGACY, HIERARCHICAL, LONG]), st.integers(0, LEDGER_ID_MAX))
def test_children_ascend_and_stay_inside(tree: LedgerTree, ledger_id: int) -> None:
    ledger_id %= 10**10 if tree is LEGACY else 2**63
    path = tree.ledger_path(ledger_id).rpartition("/")[0]
    while path:
        path = path.rpartition("/")[0]
        node = node_at(tree, path)
        assert node is not None
        every_name = [f"{number:0{digits}}" for digits in (2, 3, 4) for number in range(10**digits)]
        children = interior_children(tree, node, every_name, lambda _: None)
        assert children[0].first_ledger_id == node.first_ledger_id
        limit = 10**10 - 1 if tree is LEGACY else LEDGER_ID_MAX
        assert children[-1].last_ledger_id == min(node.last_ledger_id, limit), "all children leave no room"
        for before, after in itertools.pairwise(children):
            assert before.last_ledger_id + 1 == after.first_ledger_id


def test_what_is_no_ledger_in_a_bucket_is_told() -> None:
    told: list[str] = []
    bucket = node_at(HIERARCHICAL, "21/4748")
    assert bucket is not None
    names = ["L3645", "L3646", "L3647", "L00001", "junk", "L364", "ID-1", "l3645"]
    assert ledgers_in(HIERARCHICAL, bucket, names, told.append) == [2147483645, 2147483646]
    assert told == [f"21/4748/{name}" for name in names[2:]]


def test_the_largest_number_is_no_ledger() -> None:
    told: list[str] = []
    bucket = node_at(LONG, "922/3372/0368/5477")
    assert bucket is not None
    assert ledgers_in(LONG, bucket, ["L5806", "L5807", "L5808"], told.append) == [2**63 - 2]
    assert told == ["922/3372/0368/5477/L5807", "922/3372/0368/5477/L5808"]
    assert ledgers_in(LONG, bucket, ["L5807"], told.append) == []


def test_the_root_of_the_flat_layout_holds_more_than_ledgers() -> None:
    told: list[str] = []
    names = ["INSTANCEID", "ID-0000000007", "L0000000005", "L10000000000", "L2147483648", "L5", "LAYOUT", "available"]
    ids = ledgers_in(LedgerTree.FLAT, root_node(LedgerTree.FLAT), names, told.append)
    assert ids == [5, 2147483648, 10000000000]
    assert told == ["L5"]
