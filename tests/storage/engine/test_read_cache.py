from __future__ import annotations

from bkctl.storage.engine.read_cache import OVERHEAD_BYTES, ReadCache

ROOM_FOR_ONE = OVERHEAD_BYTES + 4


def test_the_least_recently_used_goes_first() -> None:
    cache = ReadCache(3 * ROOM_FOR_ONE)
    for entry_id in range(3):
        cache.put(5, entry_id, b"%4d" % entry_id)
    assert cache.find(5, 0) == b"   0"
    cache.put(5, 3, b"   3")
    assert [cache.find(5, entry_id) is not None for entry_id in range(4)] == [True, False, True, True]


def test_bytes_are_counted() -> None:
    cache = ReadCache(10 * ROOM_FOR_ONE)
    cache.put(5, 1, b"1234")
    cache.put(5, 1, b"12")
    assert cache.used_bytes == OVERHEAD_BYTES + 2
    cache.drop(5, 1)
    cache.drop(5, 1)
    assert cache.used_bytes == 0


def test_drop_ledger() -> None:
    cache = ReadCache(10 * ROOM_FOR_ONE)
    cache.put(5, 1, b"1234")
    cache.put(6, 1, b"1234")
    cache.drop_ledger(5)
    assert cache.find(5, 1) is None
    assert cache.find(6, 1) == b"1234"
    assert len(cache) == 1


def test_what_is_larger_than_the_cache_does_not_empty_it() -> None:
    cache = ReadCache(1000)
    cache.put(5, 0, bytes(100))
    cache.put(5, 1, bytes(1000))
    assert (5, 0) in cache
    assert (5, 1) not in cache
    cache.put(5, 0, bytes(1000))
    assert (5, 0) not in cache, "the older copy is not kept either"
    assert cache.used_bytes == 0


def test_a_dropped_ledger_leaves_the_others() -> None:
    cache = ReadCache(10_000)
    for ledger_id in (5, 6):
        for entry_id in range(3):
            cache.put(ledger_id, entry_id, b"x")
    cache.drop(5, 1)
    cache.drop_ledger(5)
    cache.drop_ledger(5)
    assert len(cache) == 3
    assert (6, 2) in cache
