"""The life of a cluster across both sides: looking at Java's changes nothing; what bkctl brings back, Java works on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.interop.java import JavaError, JavaProgram
from tests.interop.java_metadata import JavaMetadata
from tests.interop.metadata_exchange import NEW, NO_SUCH_LEDGER_CODE, bkctl, ids_of, init_by_java, new_metadata, uri_of
from tests.interop.test_metadata_shell import COOKIE, ENDPOINTS, READ_ONLY, WRITABLE
from tests.interop.znodes import Znode, comparable, dump
from tests.until import until

IDS = {
    LedgerTree.FLAT: [50, 2**31],
    LedgerTree.LEGACY_HIERARCHICAL: [50, 2**31],
    LedgerTree.HIERARCHICAL: [50, 2**31 - 2, 2**63 - 2],
    LedgerTree.LONG_HIERARCHICAL: [50, 2**63 - 2],
}


async def fill_by_java(java: JavaMetadata, tree: LedgerTree) -> list[int]:
    """Everything that stays in a tree when all processes are gone; returns the ledger ids."""
    await init_by_java(java, tree)
    instance_id = (await java.shell("whatisinstanceid")).values("readInstanceId")[0]
    for bookie_id in (WRITABLE, READ_ONLY):
        await java.call("cookie_write", bookie_id=bookie_id, instance_id=instance_id, **COOKIE)
    for ledger_id in IDS[tree]:
        await java.call("ledger_create", ledger_id=ledger_id, **NEW, state="CLOSED", last_entry_id=9, length=100)
    generated = [(await java.call("ledger_create", **NEW))["ledger_id"] for _ in range(3)]
    await java.call("ledger_update", ledger_id=50, labels={"application": "pulsar"})
    await java.call("mark", ledger_ids=[50], missing=[WRITABLE])
    await java.call("set_switches", delay_s=30, checks_ms=1_700_000_000_123)
    return sorted([*IDS[tree], *generated])


def lasting(tree: dict[str, Znode]) -> dict[str, Znode]:
    """What does not go with a session."""
    return {path: node for path, node in tree.items() if not node.is_ephemeral}


LOOKS = {
    "cluster info": [],
    "cluster instance-id": [],
    "cluster health-check status": [],
    "bookie list": [],
    "cookie list": [],
    "ledger list": [],
    "ledger list --count": [],
    "ledger show": ["50"],
    "ledger export": ["--all"],
    "autorecovery status": [],
    "autorecovery pending": [],
    "autorecovery running": [],
    "autorecovery auditor": [],
    "autorecovery delay get": [],
    "metadata doctor": [],
}


async def test_looking_at_javas_cluster_changes_nothing(
    java: JavaMetadata, root: str, znodes: KazooClient, tmp_path: Path
) -> None:
    await fill_by_java(java, LedgerTree.HIERARCHICAL)
    await java.call("acquire", ledger_id=50)
    await java.call("campaign", bookie_id=READ_ONLY)
    await java.call("register", bookie_id=WRITABLE, endpoints=ENDPOINTS)
    await java.call("register", bookie_id=READ_ONLY, is_read_only=True, endpoints=ENDPOINTS)

    async def is_elected() -> bool:
        return bool((await java.call("is_elected"))["is_elected"])

    await until(is_elected)
    before = dump(znodes, root)
    await asyncio.gather(
        *(bkctl(java, *command.split(), *arguments) for command, arguments in LOOKS.items() if "doctor" not in command),
        bkctl(java, "cluster", "backup", str(tmp_path / "backup")),
    )
    # Java's mark names a bookie that its own cookie and registration show alive: the tree is sound, writers are not.
    looked = await bkctl(java, "metadata", "doctor", "--severity", "critical", exit_code=10)
    assert [each["rule"] for each in looked.json()["findings"]] == ["writers-stop"]
    assert dump(znodes, root) == before


async def test_looking_at_javas_bare_cluster_changes_nothing(
    java: JavaMetadata, root: str, znodes: KazooClient
) -> None:
    """Not even the LAYOUT, which Java's own read-only commands would create, nor the directories of replication."""
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    znodes.delete(f"{root}/LAYOUT")
    before = dump(znodes, root)
    exit_codes = {"ledger show": 4, "autorecovery auditor": 4, "autorecovery delay get": 4, "metadata doctor": 10}
    await asyncio.gather(
        *(
            bkctl(java, *command.split(), *arguments, exit_code=exit_codes.get(command, 0))
            for command, arguments in LOOKS.items()
        )
    )
    assert dump(znodes, root) == before
    listed = await java.shell("listledgers")
    assert listed.exit_code == 0, listed.text
    assert sorted(set(dump(znodes, root)) - set(before)) == ["/LAYOUT"], "Java's look"


@pytest.mark.parametrize("tree", LedgerTree)
async def test_java_works_on_what_bkctl_brought_back(
    java: JavaMetadata, store: ZooKeeperStore, root: str, znodes: KazooClient, tmp_path: Path, tree: LedgerTree
) -> None:
    java.metadata_uri = uri_of(tree, java.metadata_uri)
    ledger_ids = await fill_by_java(java, tree)
    await java.call("register", bookie_id=WRITABLE, endpoints=ENDPOINTS)
    instance_id = (await java.shell("whatisinstanceid")).values("readInstanceId")[0]
    backup = str(tmp_path / "backup")
    await bkctl(java, "cluster", "backup", backup)
    for verb in ("format", "nuke"):
        refused = await bkctl(java, "cluster", verb, "--confirm", instance_id, exit_code=3)
        assert WRITABLE in refused.stderr
    await java.close()
    before = lasting(dump(znodes, root))
    await bkctl(java, "cluster", "nuke", "--confirm", instance_id)
    assert dump(znodes, root) == {}
    await bkctl(java, "cluster", "restore", backup, "--confirm", instance_id)

    after = lasting(dump(znodes, root))
    # Marks, switches and the like are not in a backup: they come anew. Ledgers, cookies and identity are the same.
    kept = {path: node for path, node in before.items() if not path.startswith("/underreplication")}
    assert {path: after[path].data for path in kept} == {path: node.data for path, node in kept.items()}
    assert (await java.shell("whatisinstanceid")).values("readInstanceId") == [instance_id]
    assert await java.list_ledgers() == ledger_ids
    assert (await java.call("ledger_read", ledger_id=50))["labels"]
    await java.call("cookie_verify", bookie_id=WRITABLE, instance_id=instance_id, **COOKIE)
    created = (await java.call("ledger_create", **NEW))["ledger_id"]
    generated = [each for each in ledger_ids if each not in IDS[tree]]
    assert created > max(generated), "no id is given out twice"
    await java.call("mark", ledger_ids=[50], missing=[WRITABLE])
    await java.call("register", bookie_id=WRITABLE, endpoints=ENDPOINTS)
    ledgers = await open_ledger_store(store, root)
    assert await ids_of(ledgers) == sorted([*ledger_ids, created])
    await java.close()
    nuked = await java.shell("nukeexistingcluster", "-p", root, "-i", instance_id)
    assert nuked.exit_code == 0, nuked.text
    assert dump(znodes, root) == {}


@pytest.mark.parametrize("tree", LedgerTree)
async def test_formatting_leaves_what_javas_formatting_leaves(
    java: JavaMetadata,
    java_program: JavaProgram,
    store: ZooKeeperStore,
    root: str,
    znodes: KazooClient,
    tree: LedgerTree,
) -> None:
    java.metadata_uri = uri_of(tree, java.metadata_uri)
    twin, twin_root = JavaMetadata(java_program, f"{java.metadata_uri}-bkctl"), f"{root}-bkctl"
    for each in (java, twin):
        await fill_by_java(each, tree)
        await each.call("set_health_check", is_enabled=False)
        await each.close()
    instance_id = (await twin.shell("whatisinstanceid")).values("readInstanceId")[0]
    # Without the class Java would leave the default layout behind, whatever the cluster and the URI say.
    formatted = await java.shell("metaformat", "-n", "-f", ledgerManagerFactoryClass=tree.factory)
    assert formatted.exit_code == 0, formatted.text
    await bkctl(twin, "cluster", "format", "--confirm", instance_id)
    by_java, by_bkctl = comparable(dump(znodes, root)), comparable(dump(znodes, twin_root))
    assert by_bkctl == by_java

    assert (await twin.shell("whatisinstanceid")).values("readInstanceId") not in ([], [instance_id])
    assert await twin.list_ledgers() == []
    with pytest.raises(JavaError) as refused:
        await twin.call("ledger_read", ledger_id=50)
    assert refused.value.code == NO_SUCH_LEDGER_CODE
    ours, _ = await (await open_ledger_store(store, twin_root)).create(new_metadata())
    theirs = (await twin.call("ledger_create", **NEW))["ledger_id"]
    assert await twin.list_ledgers() == sorted([ours, theirs])
    await twin.close_all()


async def test_formatting_takes_long_ids_of_the_flat_layout_that_java_leaves(
    java: JavaMetadata, java_program: JavaProgram, root: str, znodes: KazooClient
) -> None:
    """Java's formatting knows ledgers of ten digits alone; what it leaves is a ledger of the new cluster."""
    java.metadata_uri = uri_of(LedgerTree.FLAT, java.metadata_uri)
    twin, twin_root = JavaMetadata(java_program, f"{java.metadata_uri}-bkctl"), f"{root}-bkctl"
    for each in (java, twin):
        await init_by_java(each, LedgerTree.FLAT)
        await each.call("ledger_create", ledger_id=2**63 - 2, **NEW)
    await java.shell("metaformat", "-n", "-f", ledgerManagerFactoryClass=LedgerTree.FLAT.factory)
    instance_id = (await twin.shell("whatisinstanceid")).values("readInstanceId")[0]
    await bkctl(twin, "cluster", "format", "--confirm", instance_id)
    assert f"/L{2**63 - 2}" in dump(znodes, root)
    assert f"/L{2**63 - 2}" not in dump(znodes, twin_root)
    await twin.close_all()
