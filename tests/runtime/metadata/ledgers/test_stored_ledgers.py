from __future__ import annotations

import random

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.ledgers.stored_ledgers import find_references
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore


async def test_every_segment_counts_and_nonsense_is_told(store: ZooKeeperStore, root: str) -> None:
    await init_cluster(store, root, None, random.Random(1))
    ledgers = await open_ledger_store(store, root)
    for number in range(12):
        await ledgers.create(new_ledger(("b1", "b2"), 2, 2, DigestType.CRC32C, b""), ledger_id=number)
    await ledgers.create(to_closed(new_ledger(("b2", "b3"), 2, 2, DigestType.CRC32C, b""), 0, 1), ledger_id=2**40)
    await store.create(f"{root}/00/0000/L0099", b"junk")
    steps: list[int] = []
    found = await find_references(store, ledgers, ["b1", "b3", "b4"], steps.append)
    assert found.ledgers_scanned == steps[-1] == 14
    assert found.counts == {"b1": 12, "b3": 1, "b4": 0}
    assert found.first_ledger_ids == {"b1": tuple(range(10)), "b3": (2**40,), "b4": ()}
    assert (found.unreadable_count, found.first_unreadable_ids) == (1, (99,))
