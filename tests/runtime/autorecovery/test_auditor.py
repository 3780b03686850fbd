"""An auditor on a real ZooKeeper: the nodes that Java sees are Java's."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re

from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.switches import PeriodicCheck
from bkctl.runtime.metadata.store import Node
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.storage.errors import BkctlError
from tests.runtime.replication.samples import ledger

LOST, LEFT = "10.0.0.1:3181", ("10.0.0.2:3181", "10.0.0.3:3181")


def must_not_fail(error: BkctlError) -> None:
    raise AssertionError(error)


async def test_the_marks_are_java_s_and_so_is_the_delay(metadata_uri: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    paths = Paths(uri.root)
    store = await ZooKeeperStore.connect(uri.servers)
    await init_cluster(store, uri.root, LedgerTree.HIERARCHICAL, random.Random(1))
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(LedgerClient.on_session(store, ledgers, ClientConfig()))
        for bookie_id in LEFT:
            registration = BookieRegistration(
                store,
                uri.root,
                bookie_id,
                rpc_service_info("127.0.0.1", 3181),
                clock=client.ports.clock,
                session_timeout_ms=10_000,
                on_failed=must_not_fail,
            )
            await registration.register(BookieMode.WRITABLE)
        ledger_id, _ = await ledgers.create(ledger({0: [LOST, LEFT[0]]}, 2, 2, last_entry_id=9, length=100))
        notes, config = RecoveryNotes(store, uri.root), AutorecoveryConfig(lost_bookie_delay_s=0)
        auditor = Auditor(client.ports, store, config)
        serving = asyncio.ensure_future(auditor.serve())
        marked: asyncio.Future[Node] = asyncio.get_running_loop().create_future()

        def look(node: Node | None) -> None:
            if node is not None and not marked.done():
                marked.set_result(node)

        store.watch_node(paths.mark(ledger_id), look)
        async with asyncio.timeout(60):
            node = await marked
        assert re.fullmatch(rf'replica: "{LOST}"\nctime: \d{{13}}\n', node.data.decode())
        assert await store.exists(paths.lost_bookie_recovery_delay) is None, "only an operator or Java creates it"
        assert await notes.deadlines.keys() == [LOST]
        names = set(await store.children(paths.under_replication))
        assert names - {check.value for check in PeriodicCheck} == {"LAYOUT", "ledgers", "locks"}
        serving.cancel()
        await asyncio.wait((serving,))
