"""A process that holds a replication lock, for a test that stops it: prints what it knows, line by line.

python -m tests.runtime.metadata.lock_holder SERVERS ROOT LEDGER_ID
"""

from __future__ import annotations

import asyncio
import sys

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.store import ANY_VERSION
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore


async def hold(servers: str, root: str, ledger_id: int) -> None:
    config = ZooKeeperConfig(session_timeout_ms=2000, operation_timeout_s=30.0)
    async with await ZooKeeperStore.connect(servers, config) as store:
        locks = ReplicationLocks(store, root, "holder")
        lock = await locks.acquire(ledger_id)
        assert lock is not None
        print("acquired", flush=True)
        while lock.is_held:
            # The write that relies on the lock: begun while it was held, it must not be carried out after it was lost.
            try:
                await store.set(f"{root}/guarded", b"holder", ANY_VERSION)
            except MetadataUnavailableError as error:
                print(type(error).__name__, flush=True)
            await asyncio.sleep(0.02)
        print("lost", flush=True)


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2], int(sys.argv[3])))
