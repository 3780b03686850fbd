"""``bkctl audit orphans`` as a process, over ledgers and Pulsar's nodes in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.commands.audit.conftest import NAMESPACE, PulsarCluster, labels_of, pulsar_cluster
from tests.processes import kill_and_wait
from tests.runtime.metadata.pulsar.pulsar_bytes import compressed, cursor, field, schema, topic

pytestmark = pytest.mark.cluster

GONE, NOT_NAMED = "its topic does not exist", "its topic does not name it"
T = f"{NAMESPACE}/persistent/t"
NAME = "persistent://public/default/t"
WAITING = b"waiting before the references are read again"


async def until_first_reading(running: asyncio.subprocess.Process) -> None:
    """Wait until all references were read once."""
    assert running.stderr is not None
    async for line in running.stderr:
        if WAITING in line:
            return
    raise AssertionError("it ended early")


async def test_every_kind_of_reference_is_found_and_every_unreferenced_ledger_too(pulsar: PulsarCluster) -> None:
    nodes = cursor(20, compacted=40, buckets={"1_5": "60"})
    await pulsar.topic(T, topic([10, 11], copied=[12]), sub=cursor(21), __compaction=nodes, idle=cursor(-1))
    await pulsar.topic(f"{NAMESPACE}/persistent/big", compressed(topic([13, *range(1000, 2000)]), "LZ4"))
    await pulsar.topic(f"{NAMESPACE}/persistent/a%2Fb+c%7Ed", topic([14]))
    await pulsar.topic("public/west/default/persistent/old", topic([15]))
    await pulsar.node(f"/schemas/{NAMESPACE}/t", schema([30, 31]))
    await pulsar.node("/schemas/public/west/default/old", schema([32]))
    for ledger_id in (10, 11, 12):
        await pulsar.ledger(ledger_id, labels_of("data", T))
    await pulsar.ledger(13, labels_of("data", f"{NAMESPACE}/persistent/big"))
    await pulsar.ledger(14, labels_of("data", f"{NAMESPACE}/persistent/a%2Fb+c%7Ed"))
    await pulsar.ledger(15, labels_of("data", "public/west/default/persistent/old"))
    for ledger_id in (20, 21):
        await pulsar.ledger(ledger_id, labels_of("data", T, "sub"))
    for ledger_id in (30, 31):
        await pulsar.ledger(ledger_id, labels_of("schema", f"{NAMESPACE}/t"))
    await pulsar.ledger(32, labels_of("schema", "public/west/default/old"))
    await pulsar.ledger(40, labels_of("compacted", NAME))
    await pulsar.ledger(60, labels_of("bucket", NAME))
    assert await pulsar.found() == {}
    assert await pulsar.kept() == {"named by Pulsar's metadata": 13}

    await pulsar.ledger(110, labels_of("data", T))
    await pulsar.ledger(111, labels_of("data", f"{NAMESPACE}/persistent/gone"))
    await pulsar.ledger(114, labels_of("data", f"{NAMESPACE}/persistent/a%2Fb+c%7Ed"))
    await pulsar.ledger(115, labels_of("data", "public/west/default/persistent/old"))
    await pulsar.ledger(120, labels_of("data", T, "sub"))
    await pulsar.ledger(121, labels_of("data", T, "gone"))
    await pulsar.ledger(130, labels_of("schema", f"{NAMESPACE}/t"))
    await pulsar.ledger(131, labels_of("schema", f"{NAMESPACE}/gone"))
    await pulsar.ledger(140, labels_of("compacted", "persistent://public/default/gone"))
    await pulsar.ledger(160, labels_of("bucket", NAME))
    await pulsar.ledger(161, labels_of("bucket", "persistent://public/default/gone"))
    assert await pulsar.found() == {
        **dict.fromkeys((110, 114, 115, 120, 121, 160), NOT_NAMED),
        **dict.fromkeys((111, 140, 161), GONE),
        130: "its schema does not name it",
        131: "its schema does not exist",
    }


async def test_what_is_in_doubt_is_counted_and_not_listed(pulsar: PulsarCluster) -> None:
    await pulsar.topic(T, topic([1]))
    await pulsar.topic(f"{NAMESPACE}/persistent/damaged", b"\xff\xff")
    await pulsar.topic(f"{NAMESPACE}/persistent/newer", topic([2]), sub=cursor(-1) + field(12, 1))
    await pulsar.topic(f"{NAMESPACE}/persistent/deep", topic([3]), sub=cursor(-1))
    await pulsar.node(f"/managed-ledgers/{NAMESPACE}/persistent/deep/sub/below", b"?")
    await pulsar.node("/managed-ledgers/public/strange/other/x", b"?")
    await pulsar.node(f"/schemas/{NAMESPACE}/t", b"\xff")
    await pulsar.node(f"/schemas/{NAMESPACE}/cut", schema([3, 4], first=2))
    await pulsar.node("/admin/policies/public/empty", b"{}")
    await pulsar.ledger(50, {"application": "table-service"})
    await pulsar.ledger(51, {})
    await pulsar.ledger(52, {"application": "pulsar", "component": "managed-ledger"})
    await pulsar.ledger(53, labels_of("data", T) | labels_of("schema", f"{NAMESPACE}/t"))
    await pulsar.ledger(54, {"application": "pulsar", "pulsar/delayedIndexBucketKey": "public/default/t"})
    await pulsar.ledger(55, labels_of("data", T), is_closed=False)
    await pulsar.ledger(56, labels_of("data", T), age_h=23)
    await pulsar.ledger(57, labels_of("data", "public/elsewhere/persistent/t"))
    for ledger_id, name in ((58, "damaged"), (59, "newer"), (60, "deep")):
        await pulsar.ledger(ledger_id, labels_of("data", f"{NAMESPACE}/persistent/{name}"))
    await pulsar.ledger(61, labels_of("data", "public/strange/persistent/t"))
    await pulsar.ledger(62, labels_of("schema", f"{NAMESPACE}/t"))
    await pulsar.ledger(63, labels_of("schema", f"{NAMESPACE}/cut"))
    await pulsar.ledger(64, labels_of("compacted", NAME))
    await pulsar.store.create(pulsar.ledgers.path(65), b"garbage", make_parents=True)
    await pulsar.ledger(66, labels_of("data", "public/empty/persistent/t"))

    result = await pulsar.orphans("-o", "json")
    assert result.exit_code == 10
    body = result.json()
    assert [each["ledger_id"] for each in body["orphan_ledgers"]] == ["66"], "the namespace exists without a topic"
    assert {each["reason"]: each["ledgers"] for each in body["kept"]} == {
        "compacted ledger of an existing topic": 1,
        "metadata cannot be read": 1,
        "metadata of its owner cannot be decoded": 6,
        "not closed": 1,
        "not written by Pulsar": 2,
        "of another cluster?": 1,
        "owner not known": 3,
        "too young": 1,
    }
    assert body["ledgers"] == 17 == len(body["orphan_ledgers"]) + sum(each["ledgers"] for each in body["kept"])
    assert [each["ledger_id"] for each in body["other_cluster_ledgers"]] == ["57"]
    assert len(body["problems"]) == 6
    assert f"{pulsar.chroot}/managed-ledgers/{NAMESPACE}/persistent/damaged: topic: not a protobuf" in result.stderr
    assert "the namespaces of 1 ledger exist in no given cluster" in result.stderr


async def test_a_node_that_may_be_of_two_topics_keeps_the_ledgers_of_both(pulsar: PulsarCluster) -> None:
    """A cursor of topic "persistent", or a topic of the older namespace public/default/persistent."""
    path = f"{NAMESPACE}/persistent/persistent"
    await pulsar.topic(path, topic([1]))
    await pulsar.topic(f"{path}/x", topic([2]))
    await pulsar.topic(T)
    await pulsar.ledger(3, labels_of("data", path))
    await pulsar.ledger(4, labels_of("data", f"{path}/x"))
    await pulsar.ledger(5, labels_of("data", T))
    assert await pulsar.found() == {5: NOT_NAMED}
    assert await pulsar.kept() == {"metadata of its owner cannot be decoded": 2}


async def test_offloaded_ledgers_that_pulsar_has_deleted(pulsar: PulsarCluster) -> None:
    await pulsar.topic(T, topic([1], offloaded=[2, 4], copied=[3]))
    await pulsar.topic(f"{NAMESPACE}/persistent/shadow", topic([4]))
    for ledger_id in (1, 2, 3, 4):
        await pulsar.ledger(ledger_id, labels_of("data", T))
    assert await pulsar.found() == {2: "offloaded, and its topic says that it is deleted"}


async def test_a_reference_that_appears_between_the_readings_counts(pulsar: PulsarCluster) -> None:
    """Also one that disappears, and a ledger that changes: each reading is as good as the other."""
    await pulsar.topic(T, topic([3]))
    for ledger_id in (1, 2, 3, 4, 5):
        await pulsar.ledger(ledger_id, labels_of("data", T))
    running = await pulsar.begin("--settle", "4s", "-o", "json")
    await until_first_reading(running)
    await pulsar.store.set(f"{pulsar.chroot}/managed-ledgers/{T}", topic([1]), 0)
    await pulsar.store.delete(pulsar.ledgers.path(4))
    node = await pulsar.store.get(pulsar.ledgers.path(5))
    await pulsar.store.set(pulsar.ledgers.path(5), node.data, 0)
    stdout, _ = await running.communicate()
    body = json.loads(stdout)
    assert (running.returncode, [each["ledger_id"] for each in body["orphan_ledgers"]]) == (10, ["2"])
    assert {each["reason"]: each["ledgers"] for each in body["kept"]} == {
        "named by Pulsar's metadata": 2,
        "changed or deleted meanwhile": 2,
    }


async def test_the_list_is_what_ledger_delete_takes(pulsar: PulsarCluster, tmp_path: Path) -> None:
    await pulsar.topic(T, topic([1]))
    for ledger_id in (1, 2, 3):
        await pulsar.ledger(ledger_id, labels_of("data", T))
    await pulsar.ledger(4, labels_of("data", "public/default/persistent/%23%0Aevil"))
    out, again = tmp_path / "orphans.txt", tmp_path / "again.txt"
    assert (await pulsar.orphans("--out", str(out))).exit_code == 10
    assert [line.split()[0] for line in out.read_text().splitlines()] == ["2", "3", "4"]
    taken = await pulsar.orphans("--out", str(out))
    assert (taken.exit_code, "exists" in taken.stderr) == (5, True), taken
    names = await pulsar.orphans("-o", "name")
    assert names.stdout.split() == ["2", "3", "4"]
    assert (await pulsar.orphans("-o", "name", "--limit", "1")).stdout.split() == ["2"]
    rows = list(csv.DictReader(io.StringIO((await pulsar.orphans("-o", "csv")).stdout)))
    assert [row["owner"] for row in rows][:2] == ["topic persistent://public/default/t"] * 2
    table = (await pulsar.orphans("-o", "table")).stdout
    assert "2 days" in table
    assert "named by Pulsar's metadata" in table

    await pulsar.store.set(f"{pulsar.chroot}/managed-ledgers/{T}", topic([1, 3]), 0)
    result = await pulsar.orphans("--from-file", str(out), "--out", str(again), "-o", "json")
    assert (result.json()["ledgers"], result.json()["orphans"]) == (3, 2)
    deleted = await pulsar.bkctl("ledger", "delete", "--from-file", str(again), "--confirm", "2", "-o", "json")
    assert (deleted.exit_code, deleted.json()["deleted"]) == (0, 2), deleted
    assert [each async for each in pulsar.ledgers.list_ids()] == [1, 3]
    assert await pulsar.found() == {}


async def test_ledgers_in_use_of_an_unknown_topic_show_another_cluster(pulsar: PulsarCluster, tmp_path: Path) -> None:
    """Both clusters have the same topic; without the second one, its ledgers would look like orphans of the first."""
    other = pulsar.chroot + "/other"
    await pulsar.topic(T, topic([1]))
    await pulsar.node(f"/managed-ledgers/{T}", topic([2]), chroot=other)
    await pulsar.node(f"/managed-ledgers/{NAMESPACE}/persistent/theirs", topic([3]), chroot=other)
    for ledger_id in (1, 2):
        await pulsar.ledger(ledger_id, labels_of("data", T))
    await pulsar.ledger(3, labels_of("data", f"{NAMESPACE}/persistent/theirs"), is_closed=False)
    out = tmp_path / "orphans.txt"
    refused = await pulsar.orphans("--out", str(out))
    assert (refused.exit_code, refused.stdout, out.exists()) == (3, "", False), refused
    assert "1 ledger in use or young, such as 3 of topic persistent://public/default/theirs" in refused.stderr

    servers = pulsar.uri.removeprefix("metadata-store:").removesuffix(pulsar.chroot)
    both = ("--pulsar-metadata", pulsar.uri, "--pulsar-metadata", f"{servers}{other}")
    assert await pulsar.found(*both) == {}
    assert await pulsar.found("--pulsar-metadata", f"{servers.removeprefix('zk:')}{other}") == {}
    assert await pulsar.found("--all-clusters-given") == {2: NOT_NAMED}
    await pulsar.store.delete(pulsar.ledgers.path(3))
    await pulsar.ledger(4, labels_of("data", f"{NAMESPACE}/persistent/theirs", "sub"), age_h=1)
    assert (await pulsar.orphans()).exit_code == 3


async def test_ledgers_of_the_same_topic_that_another_cluster_writes(pulsar: PulsarCluster) -> None:
    """All topics are in the given cluster; only what happens to the ledgers shows the other one."""
    await pulsar.topic(T, topic([1]))
    for ledger_id in (1, 2):
        await pulsar.ledger(ledger_id, labels_of("data", T))
    await pulsar.ledger(3, labels_of("data", T), is_closed=False)
    assert await pulsar.found() == {2: NOT_NAMED}, "a broker that failed left the third one"
    running = await pulsar.begin("--settle", "4s", "--all-clusters-given", "-o", "json")
    await until_first_reading(running)
    node = await pulsar.store.get(pulsar.ledgers.path(3))
    await pulsar.store.set(pulsar.ledgers.path(3), node.data, 0)
    stdout, stderr = await running.communicate()
    assert (running.returncode, stdout) == (3, b""), stderr
    assert b"1 ledger that no given cluster names, such as 3 of topic persistent://public/default/t" in stderr


async def test_no_metadata_of_pulsar_is_an_error_and_not_an_empty_list(pulsar: PulsarCluster) -> None:
    await pulsar.ledger(1, labels_of("data", T))
    servers = pulsar.uri.removeprefix("metadata-store:").removesuffix(pulsar.chroot)
    for place in (f"{servers}/nowhere", f"{servers}{pulsar.chroot}/ledgers"):
        refused = await pulsar.orphans("--pulsar-metadata", pulsar.uri, "--pulsar-metadata", place)
        assert (refused.exit_code, refused.stdout) == (3, ""), refused
        assert "there is no Pulsar metadata here" in refused.stderr
    for place, exit_code in (("oxia://host:6648", 13), ("zk:", 13)):
        assert (await pulsar.orphans("--pulsar-metadata", place)).exit_code == exit_code
    await pulsar.node("/pulsar/migration-coordinator/migration", b'{"phase": "COMPLETED", "targetUrl": "oxia://x"}')
    refused = await pulsar.orphans()
    assert (refused.exit_code, "no longer has the metadata" in refused.stderr) == (3, True), refused


async def test_a_node_that_cannot_be_read_gives_no_list(
    pulsar: PulsarCluster, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    await pulsar.topic(T, topic([1]))
    await pulsar.ledger(2, labels_of("data", T))
    out = tmp_path / "orphans.txt"
    owner = KazooClient(zookeeper.connect_string, auth_data=[("digest", "other:secret")])
    owner.start()
    try:
        running = await pulsar.begin("--settle", "4s", "--out", str(out))
        await until_first_reading(running)
        closed = [make_digest_acl("other", "secret", all=True)]
        owner.set_acls(f"{pulsar.chroot}/managed-ledgers/public", closed)
        stdout, stderr = await running.communicate()
    finally:
        owner.stop()
        owner.close()
    assert (running.returncode, stdout, list(tmp_path.glob("orphans*"))) == (11, b"", [])
    assert b"/managed-ledgers/public" in stderr


async def test_zookeeper_that_fails_between_the_readings_gives_no_list(tmp_path: Path) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path / "zookeeper"))
    try:
        async with pulsar_cluster(server.connect_string, tmp_path) as pulsar:
            await pulsar.topic(T, topic([1]))
            await pulsar.ledger(2, labels_of("data", T))
            running = await pulsar.begin("--settle", "3s", "--timeout", "4s", "--out", str(tmp_path / "orphans.txt"))
            await until_first_reading(running)
            kill_and_wait(server.pid)
            stdout, _ = await running.communicate()
            assert (running.returncode, stdout, list(tmp_path.glob("orphans*"))) == (6, b"", [])
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--older-than", "23h"),
            "--older-than 23h is too short: Pulsar may still be using the ledgers; use 24h or more",
        ),
        (("--settle", "0"), "'0' is not a duration"),
        (("--settle", "999ms"), "--settle 999ms is too short: Pulsar may be replacing a reference during both"),
        (("--from-file", "nowhere"), "nowhere"),
    ],
)
async def test_bad_options(pulsar: PulsarCluster, arguments: tuple[str, ...], problem: str) -> None:
    refused = await pulsar.bkctl("audit", "orphans", *arguments)
    assert (refused.exit_code in {2, 4}, refused.stdout) == (True, ""), refused
    assert problem in refused.stderr


async def test_older_ledgers_alone(pulsar: PulsarCluster) -> None:
    await pulsar.topic(T)
    await pulsar.ledger(1, labels_of("data", T), age_h=47)
    await pulsar.ledger(2, labels_of("data", T), age_h=49)
    assert await pulsar.found("--older-than", "48h") == {2: NOT_NAMED}
