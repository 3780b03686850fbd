"""Ledgers of either side in the hands of the other, under every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient

from bkctl.runtime.errors import BadVersionError, LedgerExistsError, LedgerNotFoundError
from bkctl.runtime.ledger.changes import replace_bookies, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import LedgerState, Segment
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.interop.java import JavaError
from tests.interop.java_metadata import JavaMetadata, as_java_sees
from tests.interop.metadata_exchange import (
    ENSEMBLE,
    LEDGER_EXISTS_CODE,
    METADATA_VERSION_CODE,
    NEW,
    NO_SUCH_LEDGER_CODE,
    bkctl,
    create_ledger,
    ids_of,
    init_by_java,
    new_metadata,
    uri_of,
)
from tests.interop.znodes import comparable, dump

SHORT_IDS = (5, 123456789, 2**31 - 2)
LONG_IDS = (2**31 - 1, 2**31, 2**63 - 2)
IDS = {
    LedgerTree.FLAT: SHORT_IDS + LONG_IDS,
    LedgerTree.LEGACY_HIERARCHICAL: (*SHORT_IDS, 2**31 - 1, 2**31),
    LedgerTree.HIERARCHICAL: SHORT_IDS + LONG_IDS,
    LedgerTree.LONG_HIERARCHICAL: SHORT_IDS + LONG_IDS,
}


MAKERS = [(tree, maker) for tree in LedgerTree for maker in ("java", "bkctl")]
MAKERS.remove((LedgerTree.LEGACY_HIERARCHICAL, "bkctl"))  # only formatting with Java's class setting makes those


@pytest.fixture(params=MAKERS, ids=lambda param: f"{param[0].value}-by-{param[1]}")
async def cluster(request: pytest.FixtureRequest, java: JavaMetadata, store: ZooKeeperStore, root: str) -> LedgerStore:
    """A cluster of each layout, made by either side."""
    tree, maker = request.param
    java.metadata_uri = uri_of(tree, java.metadata_uri)
    if maker == "bkctl":
        await bkctl(java, "cluster", "init")
    else:
        await init_by_java(java, tree)
    ledgers = await open_ledger_store(store, root)
    assert ledgers.tree is tree
    return ledgers


async def test_each_side_finds_reads_changes_and_deletes_what_the_other_made(
    cluster: LedgerStore, java: JavaMetadata, znodes: KazooClient
) -> None:
    empty = dump(znodes, cluster.root)
    by_java = list(IDS[cluster.tree][::2])
    by_bkctl = list(IDS[cluster.tree][1::2])
    for ledger_id in by_java:
        assert (await java.call("ledger_create", ledger_id=ledger_id, **NEW))["version"] == 0
    for ledger_id in by_bkctl:
        await create_ledger(cluster, new_metadata(), ledger_id=ledger_id)
    everything = sorted(by_java + by_bkctl)
    assert await java.list_ledgers() == everything
    assert await ids_of(cluster) == everything
    assert await cluster.count() == len(everything)

    for ledger_id in everything:
        seen = await java.call("ledger_read", ledger_id=ledger_id)
        found = await cluster.read(ledger_id)
        assert seen == {"ledger_id": ledger_id, "version": 0} | as_java_sees(new_metadata())
        assert msgspec.structs.replace(found.value, creator_token=0) == new_metadata()
    with pytest.raises(JavaError) as refused:
        await java.call("ledger_create", ledger_id=by_bkctl[0], **NEW)
    assert refused.value.code == LEDGER_EXISTS_CODE
    with pytest.raises(LedgerExistsError):
        await create_ledger(cluster, new_metadata(), ledger_id=by_java[0])

    await _close_each_others(cluster, java, by_java, by_bkctl)
    for ledger_id in by_java:
        await cluster.delete(ledger_id)
    for ledger_id in by_bkctl:
        await java.call("ledger_delete", ledger_id=ledger_id)
    assert await java.list_ledgers() == await ids_of(cluster) == []
    with pytest.raises(JavaError) as refused:
        await java.call("ledger_read", ledger_id=by_java[0])
    assert refused.value.code == NO_SUCH_LEDGER_CODE
    with pytest.raises(LedgerNotFoundError):
        await cluster.read(by_bkctl[0])
    if cluster.tree.prunes_parents:
        assert dump(znodes, cluster.root) == empty


async def _close_each_others(ledgers: LedgerStore, java: JavaMetadata, by_java: list[int], by_bkctl: list[int]) -> None:
    """Through all states, each step by the other side than the one before, and each step refused at an old version."""
    for ledger_id in by_java:
        found = await ledgers.read(ledger_id)
        changed = replace_bookies(found.value, 10, {1: "10.0.0.9:3181"})
        await ledgers.write(ledger_id, changed, found.version)
        with pytest.raises(JavaError) as refused:
            await java.call("ledger_update", ledger_id=ledger_id, version=found.version, state="IN_RECOVERY")
        assert refused.value.code == METADATA_VERSION_CODE
        answer = await java.call("ledger_update", ledger_id=ledger_id, state="IN_RECOVERY", labels={"by": "java"})
        assert answer["segments"][1] == [10, ["10.0.0.1:3181", "10.0.0.9:3181", "bk-3.example_com"]]
        found = await ledgers.read(ledger_id)
        assert (found.version, found.value.state) == (2, LedgerState.IN_RECOVERY)
        assert found.value.custom_metadata == (("by", b"java"),)
        await ledgers.write(ledger_id, to_closed(found.value, 19, 2000), found.version)
        answer = await java.call("ledger_read", ledger_id=ledger_id)
        assert (answer["state"], answer["last_entry_id"], answer["length"]) == ("CLOSED", 19, 2000)
    for ledger_id in by_bkctl:
        await java.call("ledger_update", ledger_id=ledger_id, new_segments=[[10, ["a:1", "b:2", "c:3"]]])
        with pytest.raises(BadVersionError):
            await ledgers.write(ledger_id, to_in_recovery(new_metadata()), 0)
        found = await ledgers.read(ledger_id)
        assert found.value.segments == (Segment(0, ENSEMBLE), Segment(10, ("a:1", "b:2", "c:3")))
        await ledgers.write(ledger_id, to_in_recovery(found.value), found.version)
        answer = await java.call("ledger_update", ledger_id=ledger_id, state="CLOSED", last_entry_id=19, length=2000)
        assert as_java_sees((await ledgers.read(ledger_id)).value).items() <= answer.items()
        assert answer["version"] == 3


async def test_bkctl_ledger_commands_and_javas_shell_take_each_others_ledgers(
    java: JavaMetadata, store: ZooKeeperStore, root: str, znodes: KazooClient, tmp_path: Path
) -> None:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    closed: dict[str, Any] = {
        "state": "CLOSED",
        "last_entry_id": 19,
        "length": 2000,
        "labels": {"application": "pulsar"},
    }
    short, long = 2**31 - 2, 2**63 - 2
    for ledger_id in (short, long):
        await java.call("ledger_create", ledger_id=ledger_id, **NEW, **closed)
    before = dump(znodes, root)

    listed = (await bkctl(java, "ledger", "list", "-o", "json", "--label", "application=pulsar")).json()["items"]
    assert [row["ledger_id"] for row in listed] == [str(short), str(long)]
    shown = (await bkctl(java, "ledger", "show", str(long), "-o", "json")).json()
    assert (shown["state"], shown["last_entry_id"], shown["length_bytes"]) == ("closed", "19", 2000)
    assert shown["ensembles"] == [{"first_entry_id": "0", "ensemble": list(ENSEMBLE)}]

    # Java's dump and ours are the same bytes, and each side brings back what the other dumped and deleted.
    java_dump, bkctl_dumps = str(tmp_path / "java.dump"), str(tmp_path / "dumps")
    dumped = await java.shell("ledgermetadata", "-l", str(long), "-dumptofile", java_dump)
    assert dumped.exit_code == 0, dumped.text
    await bkctl(java, "ledger", "export", "--all", "--native", "--out", bkctl_dumps)
    assert Path(java_dump).read_bytes() == Path(bkctl_dumps, f"{long}.ledger").read_bytes()
    await bkctl(java, "ledger", "delete", str(short), str(long), "--confirm", "2")
    assert await java.list_ledgers() == []
    imported = await bkctl(java, "ledger", "import", java_dump, "--ledger", str(long), "--create-only", "--yes")
    assert imported.exit_code == 0
    restored = await java.shell(
        "ledgermetadata", "-l", str(short), "-restorefromfile", str(Path(bkctl_dumps, f"{short}.ledger"))
    )
    assert restored.exit_code == 0, restored.text
    assert await java.list_ledgers() == [short, long]
    assert comparable(dump(znodes, root)) == comparable(before)

    # Java's restore overwrites whatever is there; ours is held to a version.
    await java.call("ledger_update", ledger_id=long, labels={"application": "other"})
    confirmed = ("--ledger", str(long), "--confirm", str(long))
    refused = await bkctl(java, "ledger", "import", java_dump, "--if-version", "0", *confirmed, exit_code=5)
    assert "it is at version 1" in refused.stderr
    restored = await java.shell("ledgermetadata", "-l", str(long), "-restorefromfile", java_dump, "-update")
    assert restored.exit_code == 0, restored.text
    ledgers = await open_ledger_store(store, root)
    assert (await ledgers.read(long)).value.custom_metadata == (("application", b"pulsar"),)

    shown_by_java = await java.shell("ledgermetadata", "-l", str(short))
    assert "lastEntryId=19" in shown_by_java.text
    deleted = await java.shell("deleteledger", "-l", str(short), "-f")
    assert deleted.exit_code == 0, deleted.text
    assert await ids_of(ledgers) == [long]


async def test_old_formats_stay_what_they_are(java: JavaMetadata, store: ZooKeeperStore, root: str) -> None:
    """Versions 1 and 2, rewritten by the other side; version 1 keeps neither digest nor password."""
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    ledgers = await open_ledger_store(store, root)
    ours = {1: new_metadata(format_version=1, digest_type=None, password=None), 2: new_metadata(format_version=2)}
    for version, metadata in ours.items():
        by_java = (await java.call("ledger_create", **NEW, format_version=version))["ledger_id"]
        by_bkctl, _ = await ledgers.create(metadata)
        for ledger_id in (by_java, by_bkctl):
            assert (await ledgers.read(ledger_id)).value == metadata
            assert as_java_sees(metadata).items() <= (await java.call("ledger_read", ledger_id=ledger_id)).items()
        found = await ledgers.read(by_java)
        await ledgers.write(by_java, to_closed(found.value, 9, 100), found.version)
        seen = await java.call("ledger_update", ledger_id=by_java, replaced_segments=[[0, ["a:1", "b:2", "c:3"]]])
        assert (seen["format_version"], seen["state"], seen["last_entry_id"]) == (version, "CLOSED", 9)
        await java.call("ledger_update", ledger_id=by_bkctl, state="IN_RECOVERY")
        found = await ledgers.read(by_bkctl)
        assert found.value == msgspec.structs.replace(metadata, state=LedgerState.IN_RECOVERY)
