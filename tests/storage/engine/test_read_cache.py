from __future__ import annotations

from bkctl.storage.engine.read_cache import OVERHEAD_BYTES, BatchKey, KeptBatch, ReadCache

ROOM_FOR_ONE = OVERHEAD_BYTES + 4


def test_the_least_recently_used_goes_first() -> None:
    cache = ReadCache(3 * ROOM_FOR_ONE)
    for entry_id in range(3):
        cache.put(5, {entry_id: b"%4d" % entry_id})
    assert cache.find(5, 0) == b"   0"
    cache.put(5, {3: b"   3"})
    assert [cache.find(5, entry_id) is not None for entry_id in range(4)] == [True, False, True, True]


def test_what_was_read_together_goes_together_unless_that_is_much_of_the_cache() -> None:
    cache = ReadCache(16 * ROOM_FOR_ONE)
    cache.put(5, {0: b"   0", 1: b"   1"})
    cache.put(5, {2: b"   2", 3: b"   3"})
    cache.drop(5, [3])
    assert cache.find(5, 1) == b"   1"
    cache.put(6, {entry_id: b"%4d" % entry_id for entry_id in range(14)})
    assert [(5, entry_id) in cache for entry_id in range(4)] == [True, True, False, False]
    cache.put(6, {14: b"  14"})
    assert [(5, entry_id) in cache for entry_id in range(2)] == [False, False]
    assert cache.used_bytes == len(cache) * ROOM_FOR_ONE == 15 * ROOM_FOR_ONE
    cache.put(6, {entry_id: b"%4d" % entry_id for entry_id in range(100, 120)})
    assert (6, 119) in cache
    assert cache.used_bytes == len(cache) * ROOM_FOR_ONE


def test_bytes_are_counted() -> None:
    cache = ReadCache(10 * ROOM_FOR_ONE)
    cache.put(5, {1: b"1234"})
    cache.put(5, {1: b"12"})
    assert cache.used_bytes == OVERHEAD_BYTES + 2
    cache.drop(5, [1])
    cache.drop(5, [1])
    assert cache.used_bytes == 0


def test_drop_ledger() -> None:
    cache = ReadCache(10 * ROOM_FOR_ONE)
    cache.put(5, {1: b"1234"})
    cache.put(6, {1: b"1234"})
    cache.drop_ledger(5)
    assert cache.find(5, 1) is None
    assert cache.find(6, 1) == b"1234"
    assert len(cache) == 1


def test_what_is_larger_than_the_cache_does_not_empty_it() -> None:
    cache = ReadCache(1000)
    cache.put(5, {0: bytes(100)})
    cache.put(5, {1: bytes(1000)})
    assert (5, 0) in cache
    assert (5, 1) not in cache
    cache.put(5, {0: bytes(1000)})
    assert (5, 0) not in cache, "the older copy is not kept either"
    assert cache.used_bytes == 0


def test_a_dropped_ledger_leaves_the_others() -> None:
    cache = ReadCache(10_000)
    for ledger_id in (5, 6):
        for entry_id in range(3):
            cache.put(ledger_id, {entry_id: b"x"})
    cache.drop(5, [1])
    cache.drop_ledger(5)
    cache.drop_ledger(5)
    assert len(cache) == 3
    assert (6, 2) in cache


def test_batches_use_a_quarter_of_the_cache_and_end_with_a_newer_entry() -> None:
    cache = ReadCache(4 * 3 * (8192 + OVERHEAD_BYTES))
    keys = [BatchKey(5, 100 * place, 100, 1 << 20) for place in range(4)]
    for key in keys[:3]:
        cache.keep_batch(key, KeptBatch(bytes(8192), 100))
    assert cache.find_batch(keys[0]) is not None
    cache.keep_batch(keys[3], KeptBatch(bytes(8192), 100))
    assert [cache.find_batch(key) is not None for key in keys] == [True, False, True, True]
    assert cache.used_bytes == 3 * (8192 + OVERHEAD_BYTES)
    cache.drop(6, [0])
    cache.drop(5, [400, 401])
    assert cache.find_batch(keys[0]) is not None
    cache.drop(5, [399, 400])
    assert cache.find_batch(keys[0]) is None
    assert cache.used_bytes == 0


def test_batches_of_a_deleted_ledger_go() -> None:
    cache = ReadCache(1 << 20)
    cache.put(5, {1: b"1234"})
    cache.keep_batch(BatchKey(5, 0, 10, 1 << 20), KeptBatch(bytes(8192), 10))
    cache.keep_batch(BatchKey(6, 0, 10, 1 << 20), KeptBatch(bytes(8192), 10))
    cache.drop_ledger(5)
    assert cache.find_batch(BatchKey(5, 0, 10, 1 << 20)) is None
    assert cache.find_batch(BatchKey(6, 0, 10, 1 << 20)) is not None
    assert cache.used_bytes == 8192 + OVERHEAD_BYTES


def test_bodies_give_way_to_batches() -> None:
    cache = ReadCache(40_000)
    for entry_id in range(100):
        cache.put(5, {entry_id: bytes(200)})
    cache.keep_batch(BatchKey(6, 0, 10, 1 << 20), KeptBatch(bytes(8192), 10))
    assert cache.used_bytes <= 40_000
    assert (5, 99) in cache
    cache.put(5, {100: bytes(200)})
    assert cache.find_batch(BatchKey(6, 0, 10, 1 << 20)) is not None
