"""Ledgers and nodes as Pulsar makes them, in a real ZooKeeper, without a broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import BkctlResult, Cluster, bkctl_command, bkctl_environment, run_bkctl

BOOKIES = ("b1:3181", "b2:3181", "b3:3181")
NAMESPACE = "public/default"
_chroots = itertools.count()


def labels_of(use: str, name: str, cursor: str | None = None) -> dict[str, str]:
    """Custom metadata of a ledger; ``name`` as Pulsar spells it for this use."""
    component, key = {
        "data": ("managed-ledger", "pulsar/managed-ledger"),
        "compacted": ("compacted-ledger", "pulsar/compactedTopic"),
        "schema": ("schema", "pulsar/schemaId"),
        "bucket": ("delayed-index-bucket", "pulsar/delayedIndexTopic"),
    }[use]
    labels = {"application": "pulsar", "component": component, key: name}
    return labels if cursor is None else labels | {"pulsar/cursor": cursor}


class PulsarCluster:
    """A Pulsar cluster's metadata with the ledgers root in its chroot, and bkctl run against it."""

    def __init__(self, store: ZooKeeperStore, ledgers: LedgerStore, uri: str, chroot: str, directory: Path) -> None:
        self.store = store
        self.ledgers = ledgers
        self.uri = uri
        self.chroot = chroot
        self.directory = directory

    async def ledger(
        self, ledger_id: int, labels: dict[str, str], *, age_h: float = 48, is_closed: bool = True
    ) -> None:
        """A ledger of 1,000 bytes."""
        metadata = new_ledger(
            BOOKIES, 2, 2, DigestType.CRC32C, b"", custom_metadata=tuple((k, v.encode()) for k, v in labels.items())
        )
        metadata = to_closed(metadata, 9, 1000) if is_closed else metadata
        metadata = msgspec.structs.replace(metadata, ctime_ms=int((time.time() - age_h * 3600) * 1000))
        await self.store.create(self.ledgers.path(ledger_id), encode_ledger_metadata(metadata), make_parents=True)

    async def node(self, path: str, data: bytes = b"", *, chroot: str | None = None) -> None:
        """A node of Pulsar's metadata."""
        await self.store.create((self.chroot if chroot is None else chroot) + path, data, make_parents=True)

    async def topic(self, path: str, data: bytes = b"", **cursors: bytes) -> None:
        """A topic with its cursors; ``path`` below the topics, like ``public/default/persistent/t``."""
        await self.node(f"/managed-ledgers/{path}", data)
        for name, content in cursors.items():
            await self.node(f"/managed-ledgers/{path}/{name}", content)

    @property
    def environment(self) -> dict[str, str]:
        return {"BKCTL_METADATA_URI": self.uri, "BKCTL_STATE_DIR": str(self.directory / "state")}

    async def bkctl(self, *arguments: str) -> BkctlResult:
        environment: dict[str, Any] = dict(self.environment)
        return await asyncio.to_thread(run_bkctl, *arguments, **environment)

    async def orphans(self, *arguments: str) -> BkctlResult:
        """The command with a short time between its two readings."""
        return await self.bkctl("audit", "orphans", "--settle", "1s", *arguments)

    async def found(self, *arguments: str) -> dict[int, str]:
        """Reasons of the orphans, by ledger."""
        result = await self.orphans("-o", "json", *arguments)
        body = result.json()
        assert result.exit_code == (10 if body["orphans"] else 0), result
        assert body["orphans"] == len(body["orphan_ledgers"])
        return {int(each["ledger_id"]): each["reason"] for each in body["orphan_ledgers"]}

    async def kept(self, *arguments: str) -> dict[str, int]:
        """Numbers of the other ledgers, by reason."""
        return {
            each["reason"]: each["ledgers"] for each in (await self.orphans("-o", "json", *arguments)).json()["kept"]
        }

    async def begin(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start the command and leave it running."""
        return await asyncio.create_subprocess_exec(
            *bkctl_command("audit", "orphans", *arguments),
            env=bkctl_environment(**self.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )


@contextlib.asynccontextmanager
async def pulsar_cluster(servers: str, directory: Path) -> AsyncIterator[PulsarCluster]:
    """A cluster with a namespace, and no topic and no ledger."""
    chroot = f"/audited-pulsar-{next(_chroots)}"
    uri = f"metadata-store:zk:{servers}{chroot}"
    parsed = parse_metadata_uri(uri)
    async with await ZooKeeperStore.connect(parsed.servers) as store:
        await store.create(chroot)
        await init_cluster(store, parsed.root, parsed.tree, random.Random(1))
        ledgers = await open_ledger_store(store, parsed.root, parsed.tree)
        pulsar = PulsarCluster(store, ledgers, uri, chroot, directory)
        await pulsar.node(f"/managed-ledgers/{NAMESPACE}/persistent")
        yield pulsar


@pytest.fixture
async def of_bookie(start_cluster: Callable[[int], Cluster]) -> bytes:
    """The data of the registration of a real bookie: others that are registered with it answer too."""
    cluster = await asyncio.to_thread(start_cluster, 1)
    uri = parse_metadata_uri(cluster.metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        return (await store.get(Paths(uri.root).writable_bookie(cluster.bookies[0].id))).data


@pytest.fixture
async def pulsar(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> AsyncIterator[PulsarCluster]:
    async with pulsar_cluster(zookeeper.connect_string, tmp_path) as pulsar:
        yield pulsar
