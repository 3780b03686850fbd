"""Ledgers that Java's client writes to Java bookies (Apache BookKeeper 4.18), for recoveries that are measured."""

from __future__ import annotations

import os
from itertools import islice

import msgspec
from kazoo.client import KazooClient
from kazoo.interfaces import IAsyncResult

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.java import JavaClient
from tests.interop.java_cluster import JavaCluster

BOOKIE_FLAGS = ("-Xmx512m", "-XX:MaxDirectMemorySize=768m", "-XX:TieredStopAtLevel=4")
TOOL_FLAGS = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:TieredStopAtLevel=4")
"""With a JVM's usual compilers."""
BOOKIE_SETTINGS = {"gcWaitTime": "3600000"}
"""No garbage collection for an hour; Java allows no more without other intervals of compaction."""
ENSEMBLE_SIZE, QUORUM_SIZE = 3, 2


class DataSet(msgspec.Struct, frozen=True):
    """Ledgers of one size."""

    ledgers: int
    entries: int
    entry_bytes: int

    @property
    def ledger_bytes(self) -> int:
        """Payload of one ledger."""
        return self.entries * self.entry_bytes

    @property
    def bytes_to_copy(self) -> int:
        """Payload of the copies on one bookie that is in every ensemble."""
        return self.ledgers * self.ledger_bytes * QUORUM_SIZE // ENSEMBLE_SIZE

    def __str__(self) -> str:
        return f"{self.ledgers:,} ledgers x {self.entries} x {self.entry_bytes:,} bytes"


class LedgerSets:
    """Sets of ledgers that Java's client has written and closed; the nodes of one set exist at a time.

    Each run recovers a set of its own. After a second recovery of the same ledgers the targets would have their entries
    already, and what a tool does about those would be measured too. The bookies must not collect the ledgers without a
    node: start them with ``BOOKIE_SETTINGS``.
    """

    def __init__(self, cluster: JavaCluster, zookeeper: KazooClient, data_set: DataSet, count: int) -> None:
        self._zookeeper = zookeeper
        root = parse_metadata_uri(cluster.metadata_uri).root
        ledger_ids = _fill(cluster, msgspec.structs.replace(data_set, ledgers=count * data_set.ledgers))
        nodes = {path: zookeeper.get(path)[0] for path in (_node_path(root, each) for each in ledger_ids)}
        assert len(nodes) == count * data_set.ledgers
        paths = iter(nodes)
        self._sets = [{path: nodes[path] for path in islice(paths, data_set.ledgers)} for _ in range(count)]
        self._current: dict[str, bytes] = nodes
        self.show_next()

    def naming(self, bookie_id: str) -> list[str]:
        """Nodes of the present set that reference the bookie now."""
        answers = {path: self._zookeeper.get_async(path) for path in self._current}
        return [path for path, answer in answers.items() if bookie_id.encode() in answer.get()[0]]

    def show_next(self) -> None:
        """Replace the nodes of the present set by those of the next one; let the disk finish what it does."""
        self._wait([self._zookeeper.delete_async(path) for path in self._current])
        self._current = self._sets.pop()
        self._wait([self._zookeeper.create_async(path, data) for path, data in self._current.items()])
        os.sync()

    @staticmethod
    def _wait(answers: list[IAsyncResult]) -> None:
        for answer in answers:
            answer.get()


def _fill(cluster: JavaCluster, data_set: DataSet) -> list[int]:
    """Write the ledgers; returns their ids."""
    client = JavaClient(cluster.metadata_uri, os.path.join(cluster.directory, "client.log"))
    try:
        written = client.call_and_wait(
            "fill",
            digest_type="CRC32C",
            password="",
            count=data_set.ledgers,
            entries=data_set.entries,
            entry_bytes=data_set.entry_bytes,
            ensemble_size=ENSEMBLE_SIZE,
            write_quorum_size=QUORUM_SIZE,
            ack_quorum_size=QUORUM_SIZE,
        )
    finally:
        client.stop()
    ledger_ids: list[int] = written["ledger_ids"]
    return ledger_ids


def _node_path(root: str, ledger_id: int) -> str:
    digits = f"{ledger_id:010d}"
    return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
