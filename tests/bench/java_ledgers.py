"""Ledgers that Java's client writes to Java bookies (Apache BookKeeper 4.18), and how to undo a recovery of them."""

from __future__ import annotations

import os

import msgspec
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.java import JavaClient
from tests.interop.java_cluster import JavaCluster

BOOKIE_FLAGS = ("-Xmx512m", "-XX:MaxDirectMemorySize=768m", "-XX:TieredStopAtLevel=4")
TOOL_FLAGS = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:TieredStopAtLevel=4")
"""With a JVM's usual compilers."""
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


class WrittenNodes:
    """Nodes of ledgers that Java's client has written and closed, with the bytes that they had then."""

    def __init__(self, cluster: JavaCluster, zookeeper: KazooClient, data_set: DataSet) -> None:
        self._zookeeper = zookeeper
        root = parse_metadata_uri(cluster.metadata_uri).root
        ledger_ids = _fill(cluster, data_set)
        assert len(ledger_ids) == data_set.ledgers
        self._nodes = {path: zookeeper.get(path)[0] for path in (_node_path(root, each) for each in ledger_ids)}

    def naming(self, bookie_id: str) -> list[str]:
        """Nodes of the ledgers that reference the bookie now."""
        answers = {path: self._zookeeper.get_async(path) for path in self._nodes}
        return [path for path, answer in answers.items() if bookie_id.encode() in answer.get()[0]]

    def restore(self) -> None:
        """Write the first bytes back; let the disk finish what it does."""
        for answer in [self._zookeeper.set_async(path, data) for path, data in self._nodes.items()]:
            answer.get()
        os.sync()


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
