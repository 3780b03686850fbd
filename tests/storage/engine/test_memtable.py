from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.engine.memtable import ENTRY_OVERHEAD_BYTES, Memtable

IDS = st.tuples(st.integers(0, 6), st.integers(0, 40))


def test_last_add_wins() -> None:
    memtable = Memtable(4096)
    assert memtable.put(5, 1, b"old")
    assert memtable.put(5, 1, b"new")
    assert memtable.find(5, 1) == b"new"
    assert memtable.find(5, 2) is None
    assert memtable.find(6, 1) is None


def test_what_does_not_fit_changes_nothing() -> None:
    """H17: Java's fill offset advances, and the cache is wedged."""
    memtable = Memtable(2 * ENTRY_OVERHEAD_BYTES + 20)
    assert not memtable.put(5, 1, bytes(1000))
    assert memtable.used_bytes == 0
    assert memtable.put(5, 1, bytes(10))
    assert not memtable.put(5, 2, bytes(11))
    assert memtable.put(5, 2, bytes(10))
    assert memtable.used_bytes == memtable.limit_bytes


@given(st.lists(IDS, min_size=1))
def test_find_last_is_the_highest(ids: list[tuple[int, int]]) -> None:
    memtable = Memtable(1 << 20)
    for ledger_id, entry_id in ids:
        memtable.put(ledger_id, entry_id, b"%d" % entry_id)
    for ledger_id in range(7):
        mine = [entry_id for ledger, entry_id in ids if ledger == ledger_id]
        assert memtable.find_last(ledger_id) == ((max(mine), b"%d" % max(mine)) if mine else None)
        assert sorted(memtable.list_entries(ledger_id)) == sorted(set(mine))


@given(st.lists(IDS), st.integers(1, 9), st.integers(1, 30), st.integers(2, 5))
def test_slices_hold_everything_in_order(
    ids: list[tuple[int, int]], entry_count_max: int, bytes_max: int, run_count: int
) -> None:
    memtable = Memtable(1 << 20)
    expected: dict[tuple[int, int], bytes] = {}
    for number, (ledger_id, entry_id) in enumerate(ids):
        memtable.put(ledger_id, entry_id, bytes(number % 5))
        expected[ledger_id, entry_id] = bytes(number % 5)
    slices = list(memtable.slices(entry_count_max, bytes_max, sort_run_count=run_count))
    found: list[tuple[int, int]] = []
    for part in slices:
        found += list(zip(part.ledger_ids, part.entry_ids, strict=True))
        assert len(part.bodies) == len(part.entry_ids) <= entry_count_max
        assert part.body_bytes == sum(map(len, part.bodies))
        assert sum(map(len, part.bodies[:-1])) < bytes_max
    assert found == sorted(expected)
    bodies = [body for part in slices for body in part.bodies]
    assert bodies == [expected[pair] for pair in sorted(expected)]


def test_a_deleted_ledger_gives_its_room_back() -> None:
    memtable = Memtable(10_000)
    memtable.put(5, 0, bytes(100))
    before = memtable.used_bytes
    for entry_id in range(3):
        memtable.put(7, entry_id, bytes(1000))
    memtable.delete_ledger(7)
    assert memtable.used_bytes == before
    memtable.delete_ledger(7)
    assert memtable.used_bytes == before


def test_delete_ledger() -> None:
    memtable = Memtable(4096)
    memtable.put(5, 1, b"a")
    memtable.put(6, 1, b"b")
    memtable.delete_ledger(5)
    assert memtable.find_last(5) is None
    memtable.delete_ledger(7)
    assert [(part.ledger_ids, part.entry_ids) for part in memtable.slices(10, 10)] == [([6], [1])]


def test_release_leaves_nothing() -> None:
    memtable = Memtable(4096)
    memtable.put(5, 1, b"a")
    memtable.put(6, 1, b"b")
    memtable.release()
    assert list(memtable.slices(10, 10)) == []


def test_many_entries_at_once_are_those_put_one_by_one() -> None:
    single, at_once = Memtable(10_000), Memtable(10_000)
    ids, bodies = [4, 7, 4, 2], [b"a" * 10, b"b" * 20, b"c" * 30, b"d"]
    for entry_id, body in zip(ids, bodies, strict=True):
        assert single.put(5, entry_id, body)
    assert at_once.put_many(5, ids, bodies)
    for table in (single, at_once):
        assert table.find(5, 4) == b"c" * 30, "the last of an id wins"
        assert table.find_last(5) == (7, b"b" * 20)
        assert sorted(table.list_entries(5)) == [2, 4, 7]
    assert at_once.used_bytes == single.used_bytes
    assert at_once.put_many(5, [1], [b"x"])
    assert at_once.find_last(5) == (7, b"b" * 20)


def test_many_entries_without_room_leave_the_table_as_it_was() -> None:
    table = Memtable(400)
    assert table.put(5, 0, b"x")
    assert not table.put_many(5, [1, 2], [b"y", b"z" * 200])
    assert table.list_entries(5) == [0]
    assert table.put_many(5, [1], [b"y"])
