"""A Java bookie boots on a journal that bkctl wrote, checksums in the padding included, and serves what is in it."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

import pytest

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.filenames import current_directory, parse_journal_file_name
from bkctl.storage.journal.format import encode_fence_record, encode_ledger_key_record
from bkctl.storage.journal.writer import JournalWriter
from tests.interop.java import JavaBookie, write_server_conf
from tests.processes import free_port, run_bkctl
from tests.until import until

KEY = b"k" * 20
COUNT = 120


def entry(ledger_id: int, entry_id: int) -> bytes:
    """Of many sizes, so that padding begins everywhere in a sector, and spills."""
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + b"x" * (13 * entry_id)


def write_journal(directory: str, version: int) -> None:
    """Behind those that a Java bookie has begun there: ledger 7, fenced, and ledger 8."""
    config = JournalConfig(format_version=version, preallocation_bytes=1 << 16, size_bytes_max=40_000)
    writer = JournalWriter.open(OsFileSystem(), directory, config, now_ms=0)
    writer.write_group([encode_ledger_key_record(ledger_id, KEY) for ledger_id in (7, 8)])
    for number in range(COUNT):
        writer.write_group([entry(7, number), entry(8, number)][: 1 + number % 2])
        if number % 2 == 0:
            writer.write_group([entry(8, number)])
    writer.write_group([encode_fence_record(7)])
    writer.close()


@pytest.mark.parametrize("version", [4, 6])
async def test_a_java_bookie_serves_what_our_journal_holds(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, version: int
) -> None:
    uri = f"zk+hierarchical://{zookeeper.connect_string}/replayed-{version}"
    initialised = await asyncio.to_thread(run_bkctl, "cluster", "init", "--metadata-uri", uri)
    assert initialised.exit_code == 0, initialised.stderr
    port = free_port()
    conf_path, log_path = str(tmp_path / "conf"), str(tmp_path / "log")
    storage_class = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
    write_server_conf(conf_path, uri, str(tmp_path), port, ledgerStorageClass=storage_class, zkTimeout="2000")
    async with await ZooKeeperStore.connect(parse_metadata_uri(uri).servers) as store:
        registrations = RegistrationClient(store, parse_metadata_uri(uri).root)
        journal = current_directory(str(tmp_path / "journal"))
        bookie = JavaBookie(conf_path, log_path)  # stamps the directories
        try:
            await _registered(bookie, registrations)
        finally:
            await asyncio.to_thread(bookie.stop)

        async def is_gone() -> bool:
            return not await registrations.writable()

        await until(is_gone)
        write_journal(journal, version)
        written = [name for name in os.listdir(journal) if parse_journal_file_name(name) is not None]
        assert len(written) > 3, "the journal was to roll"
        bookie = JavaBookie(conf_path, log_path)
        pool = BookiePool(lambda _: _here(port), ClientConfig(), LoopClock())
        try:
            await _registered(bookie, registrations)
            for ledger_id in (7, 8):
                for entry_id in range(COUNT):
                    reply = await pool.read("java", ledger_id, entry_id, fence_with=None)
                    assert reply.body == entry(ledger_id, entry_id)
            assert await _add(pool, 7, COUNT) is Status.FENCED
            assert await _add(pool, 8, COUNT) is Status.OK
        finally:
            await pool.close()
            await asyncio.to_thread(bookie.stop)


async def _registered(bookie: JavaBookie, registrations: RegistrationClient) -> None:
    async def is_registered() -> bool:
        assert bookie.is_running, "the Java bookie ended: see its log"
        return bool(await registrations.writable())

    await until(is_registered)


async def _here(port: int) -> tuple[str, int]:
    return "127.0.0.1", port


async def _add(pool: BookiePool, ledger_id: int, entry_id: int) -> Status:
    answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
    pool.add("java", ledger_id, entry_id, KEY, entry(ledger_id, entry_id), answer.set_result)
    return await answer
