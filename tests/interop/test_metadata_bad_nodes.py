"""Nodes that stop Java, or mislead it: bkctl says what is wrong with them and works on.

That Java hangs at them was seen on running processes; it is not run into again here. What is checked of Java is that
it works once the nodes are gone that bkctl names.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from kazoo.client import KazooClient

from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.interop.java_metadata import JavaMetadata
from tests.interop.metadata_exchange import NEW, bkctl, create_ledger, ids_of, init_by_java, new_metadata
from tests.interop.test_metadata_shell import COOKIE, ENDPOINTS, READ_ONLY, WRITABLE
from tests.until import until

FORBIDDEN_LEDGER = "922/3372/0368/5477/L5807"
HANGING_NODES = {
    "available/a,b:3181": b"",  # no bookie id: every starting client waits for ever
    "available/readonly/10.0.0.8 :3181": b"",
    "available/garbage:3181": b"\xff\xff\xff",  # no service info
    "available/readonly/garbage-2:3181": b"\x32\x02\x0a",
    "available/custom-id": b"",  # an empty one needs an id that is an address
    "cookies/c,d:3181": b"",
    "underreplication/auditorelection/vote": b"",  # ends every elector
}
MISLEADING_NODES = {
    FORBIDDEN_LEDGER: b"",  # lets every collector delete all ledgers
    "00/0000/L0077": b"garbage",  # stops all marking
    "underreplication/ledgers/0000/0000/0000/0005/urL0000000005": b"garbage",  # an empty mark to a worker
    "underreplication/locks/urL0000000005": b"\xff",
    "underreplication/lostBookieRecoveryDelay": b"soon",
    "underreplication/checkallledgersctime": b"garbage",
}


def plant(znodes: KazooClient, root: str) -> None:
    """Put all of them into the tree."""
    for path, data in (HANGING_NODES | MISLEADING_NODES).items():
        znodes.create(f"{root}/{path}", data, makepath=True)


def pull_out(znodes: KazooClient, root: str) -> None:
    """Take them away, as the doctor tells."""
    for path in HANGING_NODES | MISLEADING_NODES:
        znodes.delete(f"{root}/{path}")


async def test_bkctl_survives_what_java_does_not(
    java: JavaMetadata, store: ZooKeeperStore, root: str, znodes: KazooClient, tmp_path: Path
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await java.call("register", bookie_id=WRITABLE, endpoints=ENDPOINTS)
    await java.call("cookie_write", bookie_id=WRITABLE, **COOKIE)
    await java.call("ledger_create", **NEW)
    await java.call("mark", ledger_ids=[0], missing=[READ_ONLY])
    plant(znodes, root)

    listed = await bkctl(java, "bookie", "list", "-o", "json")
    rows = {row["id"]: row["state"] for row in listed.json()["items"]}
    assert rows[WRITABLE] == "writable"
    assert "a,b:3181" in listed.stderr
    assert "10.0.0.8 :3181" in listed.stderr
    info = await bkctl(java, "cluster", "info", "-o", "json")
    assert info.json()["cluster_under_replicated"]
    await bkctl(java, "cookie", "list")
    ledgers = await bkctl(java, "ledger", "list", "-o", "json")
    assert {row["ledger_id"]: row["state"] for row in ledgers.json()["items"]} == {"0": "open", "77": "unreadable"}
    pending = await bkctl(java, "autorecovery", "pending", "-o", "json")
    assert {row["ledger_id"]: row["problem"] is None for row in pending.json()["items"]} == {"0": True, "5": False}
    running = await bkctl(java, "autorecovery", "running", "-o", "json")
    assert running.json()["items"][0]["problem"]
    status = await bkctl(java, "autorecovery", "status", "-o", "json")
    assert status.json()["lost_bookie_recovery_delay_s"] is None
    assert "soon" in status.stderr
    await bkctl(java, "cluster", "backup", str(tmp_path / "backup"))

    found = await bkctl(java, "metadata", "doctor", "-o", "json", exit_code=10)
    reported = {finding["path"].removeprefix(f"{root}/") for finding in found.json()["findings"]}
    assert set(HANGING_NODES) | set(MISLEADING_NODES) <= reported

    # Our own parts work on among them.
    store_of_ledgers = await open_ledger_store(store, root)
    created, _ = await create_ledger(store_of_ledgers, new_metadata())
    assert await ids_of(store_of_ledgers) == [0, created, 77]
    election = AuditorElection(store, root, READ_ONLY, lambda _: None)
    await asyncio.wait_for(election.campaign(), 60)
    await election.resign()

    pull_out(znodes, root)
    healed = await java.shell("listbookies", "-rw")
    assert [each.split(",")[0] for each in healed.values("bookieAddr")] == [f"BookieID:{WRITABLE}"]
    assert await java.list_ledgers() == [0, created]
    assert [mark["ledger_id"] for mark in (await java.call("marks"))["marks"]] == [0]
    await java.call("campaign", bookie_id=WRITABLE)

    async def is_elected() -> bool:
        return bool((await java.call("is_elected"))["is_elected"])

    await until(is_elected)
