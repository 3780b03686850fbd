"""Entries of the largest size that Pulsar ships: its bookies allow frames of 5,253,120 bytes, above Java's default."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import real_ports
from bkctl.runtime.bookie.boot.server import new_peers
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import BkctlProcess, free_port, kill_and_wait, run_bkctl, start_bkctl

pytestmark = pytest.mark.cluster

PULSAR_FRAME_BYTES_MAX = 5_253_120
FULL_SIZE = bytes(5 * 1024 * 1024 + 8_000)
BOOKIES = ("pulsar-1", "pulsar-2", "pulsar-3")


@pytest.fixture
async def pulsar_bookies(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> AsyncIterator[dict[str, BkctlProcess]]:
    """Bookies with Pulsar's frame limit."""
    processes: dict[str, BkctlProcess] = {}
    settings = ("allowLoopback=true", "zkTimeout=3000", f"nettyMaxFrameSizeBytes={PULSAR_FRAME_BYTES_MAX}")
    try:
        for bookie_id in BOOKIES:
            directory = tmp_path / bookie_id
            directory.mkdir()
            with (directory / "log").open("wb") as log:
                # A port that the system chose could be given to a bookie of another test once this one is killed.
                processes[bookie_id] = start_bkctl(
                    *("bookie", "start", "--metadata-uri", metadata_uri, "--bookie-id", bookie_id),
                    *("--port", str(free_port())),
                    *("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers")),
                    *("--advertised-address", "127.0.0.1", *(word for key in settings for word in ("--set", key))),
                    stdout=log,
                    stderr=log,
                )
        registrations = RegistrationClient(store, parse_metadata_uri(metadata_uri).root)
        async with asyncio.timeout(120):
            while set(await registrations.writable()) != set(BOOKIES):
                for bookie_id, process in processes.items():
                    assert process.poll() is None, (tmp_path / bookie_id / "log").read_text()
                await asyncio.sleep(0.1)
        yield processes
    finally:
        for process in processes.values():
            kill_and_wait(process.pid)
            process.wait()


async def test_a_ledger_with_a_full_size_message_is_read_and_moved(
    pulsar_bookies: dict[str, BkctlProcess], metadata_uri: str
) -> None:
    pulsar = ClientConfig(writer_frame_bytes_max=PULSAR_FRAME_BYTES_MAX)
    async with await LedgerClient.connect(metadata_uri, config=pulsar) as client:
        async with await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2) as writer:
            for payload in (b"before", FULL_SIZE, b"after"):
                await writer.append(payload)
        left_open = await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        await left_open.append(FULL_SIZE)
        left_open.abandon()
    dead = writer.metadata.last_segment.ensemble[0]
    pulsar_bookies[dead].kill()
    await asyncio.to_thread(pulsar_bookies[dead].wait)
    words = ("recover", "failed-bookie", dead, "--open-ledgers", "fence", "--yes")
    repaired = await asyncio.to_thread(run_bkctl, *words, BKCTL_METADATA_URI=metadata_uri)
    assert repaired.exit_code == 0, repaired.stdout + repaired.stderr
    async with await LedgerClient.connect(metadata_uri) as client:
        reader = await client.open(writer.ledger_id)
        assert dead not in reader.metadata.bookies()
        assert [entry.payload for entry in await reader.read(0)] == [b"before", FULL_SIZE, b"after"]
        reader = await client.open(left_open.ledger_id, recover=True)
        assert [entry.payload for entry in await reader.read(0)] == [FULL_SIZE]


async def test_a_bookie_accepts_more_from_its_peers_than_from_clients(
    metadata_uri: str, store: ZooKeeperStore, bookie_config: BookieConfig
) -> None:
    uri = parse_metadata_uri(metadata_uri)
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    for own_limit in (1024, PULSAR_FRAME_BYTES_MAX, 20_000_000):
        peers = new_peers(
            real_ports(), store, ledgers, msgspec.structs.replace(bookie_config, frame_bytes_max=own_limit)
        )
        assert peers.config.frame_bytes_max == max(own_limit, ClientConfig().frame_bytes_max)
        await peers.bookies.close()
