"""``bkctl audit orphans`` on ledgers with entries: compacted topics, whose references are in entries, and deletion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.client import LedgerClient, LedgerWriter
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.commands.audit.conftest import NAMESPACE, labels_of
from tests.processes import BkctlResult, Cluster
from tests.runtime.metadata.pulsar.pulsar_bytes import cursor, cursor_entry, topic

pytestmark = pytest.mark.cluster

NOT_CURRENT = "its topic names another compacted ledger"
IN_DOUBT = {"metadata of its owner cannot be decoded": 1}
TWO_DAYS_MS = 48 * 3600 * 1000


class TopicLedgers:
    """Ledgers of Pulsar topics on real bookies."""

    def __init__(self, cluster: Cluster, client: LedgerClient) -> None:
        self.cluster = cluster
        self.client = client
        uri = parse_metadata_uri(cluster.metadata_uri)
        self.servers = uri.servers
        self.chroot = f"{uri.root}-pulsar"

    async def write(
        self, labels: dict[str, str], entries: Sequence[bytes] = (b"entry",), *, is_closed: bool = True
    ) -> LedgerWriter:
        """A ledger that is two days old."""
        custom = {key: value.encode() for key, value in labels.items()}
        writer = await self.client.create(custom_metadata=custom)
        for entry in entries:
            await writer.append(entry)
        if is_closed:
            await writer.close()
        ledgers = self.client.ports.ledgers
        stored = await ledgers.read(writer.ledger_id)
        aged = msgspec.structs.replace(stored.value, ctime_ms=int(time.time() * 1000) - TWO_DAYS_MS)
        await ledgers.write(writer.ledger_id, aged, stored.version)
        return writer

    def path(self, name: str) -> str:
        """Node of a topic."""
        return f"{self.chroot}/managed-ledgers/{NAMESPACE}/persistent/{name}"

    async def topic(self, name: str, data: bytes = b"", compaction: bytes | None = None) -> None:
        path = self.path(name)
        await self.client.store.create(path, data, make_parents=True)
        if compaction is not None:
            await self.client.store.create(f"{path}/__compaction", compaction)

    async def compacted_topic(self, name: str, entries: Sequence[bytes], *, is_closed: bool = True) -> LedgerWriter:
        """A topic whose cursor for compaction has a ledger with these entries; the writer of that."""
        path = f"{NAMESPACE}/persistent/{name}"
        own = await self.write(labels_of("data", path, "__compaction"), entries, is_closed=is_closed)
        await self.topic(name, compaction=cursor(own.ledger_id))
        return own

    async def compacted(self, name: str) -> int:
        """A compacted ledger of a topic."""
        return (await self.write(labels_of("compacted", f"persistent://{NAMESPACE}/{name}"))).ledger_id

    async def orphans(self, *arguments: str) -> Any:
        place = ("--pulsar-metadata", f"zk:{self.servers}{self.chroot}", "--settle", "1s", "-o", "json")
        result = await self.run("audit", "orphans", *place, *arguments)
        assert result.exit_code in {0, 10}, result
        body = result.json()
        body["reasons"] = {int(each["ledger_id"]): each["reason"] for each in body["orphan_ledgers"]}
        body["kept"] = {each["reason"]: each["ledgers"] for each in body["kept"]}
        return body

    async def run(self, *arguments: str) -> BkctlResult:
        return await asyncio.to_thread(self.cluster.run, *arguments)


async def test_compacted_ledgers_of_existing_topics(cluster: Cluster) -> None:
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        topics = TopicLedgers(cluster, client)
        stale, current, newest = [await topics.compacted("t") for _ in range(3)]
        entries = [cursor_entry(stale), cursor_entry(), cursor_entry(newest)]
        writer = await topics.compacted_topic("t", entries, is_closed=False)
        await client.store.set(
            f"{topics.path('t')}/__compaction",
            cursor(writer.ledger_id, compacted=current),
            0,
        )
        assert (await topics.orphans())["reasons"] == {}, "they are in doubt without --compacted"
        body = await topics.orphans("--compacted")
        assert body["reasons"] == {stale: NOT_CURRENT}, "node and last entry, which is not confirmed, both count"
        assert body["problems"] == []
        assert (await client.ports.ledgers.read(writer.ledger_id)).value.state is LedgerState.OPEN
        await writer.append(cursor_entry(stale))
        assert (await topics.orphans("--compacted"))["reasons"] == {}, "a recovery may end it at either entry"
        await writer.close()
        assert (await topics.orphans("--compacted"))["reasons"] == {newest: NOT_CURRENT}


async def test_a_compaction_cursor_that_is_not_clear_keeps_the_ledgers_of_its_topic(cluster: Cluster) -> None:
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        topics = TopicLedgers(cluster, client)
        old = await topics.compacted("t")
        await topics.topic("t")
        path = f"{topics.path('t')}/__compaction"
        assert (await topics.orphans("--compacted"))["kept"] == IN_DOUBT, "there is no cursor"
        await client.store.create(path, cursor())
        assert (await topics.orphans("--compacted"))["kept"] == IN_DOUBT, "it names no compacted ledger"
        await client.store.set(path, cursor(compacted=old + 1), 0)
        assert (await topics.orphans("--compacted"))["reasons"] == {old: NOT_CURRENT}
        labels = labels_of("data", f"{NAMESPACE}/persistent/t", "__compaction")
        problems = {
            "there is no such ledger": 10**9,
            "it has no entry": (await topics.write(labels, [])).ledger_id,
            "it has no entry ": (await topics.write(labels, [], is_closed=False)).ledger_id,
            "not a protobuf message": (await topics.write(labels, [cursor_entry(old + 1), b"\xff"])).ledger_id,
            "does not know": (await topics.write(labels, [cursor_entry(old + 1) + b"\x78\x01"])).ledger_id,
        }
        for problem, ledger_id in problems.items():
            await client.store.set(path, cursor(ledger_id, compacted=old + 1), -1)
            body = await topics.orphans("--compacted")
            assert (old in body["reasons"], body["kept"].keys() & IN_DOUBT) == (False, IN_DOUBT.keys()), problem
            assert f"compaction cursor of persistent://{NAMESPACE}/t: " in body["problems"][0]
            assert problem.strip() in body["problems"][0]
        good = await topics.write(labels, [cursor_entry(old + 1)], is_closed=False)
        await client.store.set(path, cursor(good.ledger_id), -1)
        assert (await topics.orphans("--compacted"))["reasons"][old] == NOT_CURRENT
        for bookie in cluster.bookies[1:]:
            cluster.kill_bookie(bookie.id)
        body = await topics.orphans("--compacted")
        assert (old in body["reasons"], len(body["problems"])) == (False, 1), (
            "the last entry may be on bookies that are down"
        )


async def test_orphans_are_deleted_and_the_others_stay(cluster: Cluster, tmp_path: Path) -> None:
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        topics = TopicLedgers(cluster, client)
        path = f"{NAMESPACE}/persistent/t"
        ids = [(await topics.write(labels_of("data", path))).ledger_id for _ in range(4)]
        other = await topics.write({"application": "other"})
        await topics.topic("t", topic(ids[:2]))
        out = tmp_path / "orphans.txt"
        assert (await topics.orphans("--out", str(out)))["reasons"] == dict.fromkeys(
            ids[2:], "its topic does not name it"
        )
        deleted = await topics.run("ledger", "delete", "--from-file", str(out), "--confirm", "2")
        assert (deleted.exit_code, deleted.json()["deleted"]) == (0, 2), deleted
        assert (await topics.orphans())["reasons"] == {}
        left = [each async for each in client.ports.ledgers.list_ids()]
        assert left == sorted([*ids[:2], other.ledger_id])
        for ledger_id in left:
            assert [each.payload async for each in await client.open(ledger_id)] == [b"entry"]


async def test_an_open_ledger_that_grows_and_that_no_node_names_shows_another_cluster(cluster: Cluster) -> None:
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        topics = TopicLedgers(cluster, client)
        labels = labels_of("data", f"{NAMESPACE}/persistent/t")
        await topics.topic("t")
        await topics.write(labels)
        writer = await topics.write(labels, is_closed=False)
        assert len((await topics.orphans())["reasons"]) == 1, "an idle one may be left by a broker that failed"
        is_over = asyncio.Event()

        async def write() -> None:
            while not is_over.is_set():
                await writer.append(b"more")

        writing = asyncio.create_task(write())
        place = ("--pulsar-metadata", f"zk:{topics.servers}{topics.chroot}", "--settle", "1s", "--all-clusters-given")
        result = await topics.run("audit", "orphans", *place)
        is_over.set()
        await writing
        assert (result.exit_code, result.stdout) == (3, "")
        assert f"such as {writer.ledger_id} of topic persistent://{NAMESPACE}/t" in result.stderr
