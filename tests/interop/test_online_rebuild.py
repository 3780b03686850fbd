"""The index of a bookie is rebuilt while a Java client reads from it and another one writes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from tests.commands.bookie.admin_bookie import halt_builder
from tests.interop.exchange import PASSWORD, append_all
from tests.interop.java import JavaClient, JavaError
from tests.processes import BkctlResult, Cluster

LEDGERS = 20
ENTRIES_PER_LEDGER = 2_000
NOT_ENOUGH_BOOKIES_CODE = -6


def entries_of(number: int) -> list[bytes]:
    return [b"entry %d of ledger %d" % (entry_id, number) for entry_id in range(ENTRIES_PER_LEDGER)]


@pytest.fixture
def bookie(start_cluster: Callable[[int], Cluster]) -> Cluster:
    return start_cluster(1)


@pytest.fixture
def new_java(bookie: Cluster, tmp_path: Path) -> Iterator[Callable[[str], JavaClient]]:
    clients = []

    def start(name: str) -> JavaClient:
        clients.append(JavaClient(bookie.metadata_uri, str(tmp_path / f"{name}.log")))
        return clients[-1]

    yield start
    for client in clients:
        client.stop()


async def write(bookie: Cluster) -> list[int]:
    """Closed ledgers; entries are not yet in the entry logs."""
    written = []
    async with await LedgerClient.connect(bookie.metadata_uri) as client:
        for number in range(LEDGERS):
            async with await client.create(
                ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, password=PASSWORD.encode()
            ) as writer:
                await append_all(writer, entries_of(number))
            written.append(writer.ledger_id)
    return written


class ReadingForever:
    """A Java client that reads all ledgers again and again; an error or a wrong entry ends it."""

    def __init__(self, java: JavaClient, ledger_ids: list[int]) -> None:
        self._java = java
        self._ledger_ids = ledger_ids
        self.ledgers_read = 0
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            for number, ledger_id in enumerate(self._ledger_ids):
                assert await self._java.read(ledger_id, password=PASSWORD) == entries_of(number)
                self.ledgers_read += 1

    async def wait_for(self, count: int) -> None:
        """Return after this many more reads of a ledger."""
        wanted = self.ledgers_read + count
        while self.ledgers_read < wanted:
            if self.task.done():
                self.task.result()
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()


async def require_refused(java: JavaClient, open_ledger: int) -> None:
    """With this bookie read-only there is no other one: neither for an open writer nor for a new one."""
    with pytest.raises(JavaError) as caught:
        await java.append(open_ledger, [b"too late"])
    assert caught.value.code == NOT_ENOUGH_BOOKIES_CODE
    with pytest.raises(JavaError) as caught:
        await java.create(ensemble=(1, 1, 1), password=PASSWORD)
    assert caught.value.code == NOT_ENOUGH_BOOKIES_CODE


async def test_java_reads_every_entry_during_a_rebuild_and_cannot_write(
    bookie: Cluster, new_java: Callable[[str], JavaClient]
) -> None:
    ledger_ids = await write(bookie)
    writer = new_java("writer")
    open_ledger = await writer.create(ensemble=(1, 1, 1), password=PASSWORD)
    assert await writer.append(open_ledger, [b"in time"]) == [0]

    async def rebuild(*words: str) -> BkctlResult:
        directory = f"{bookie.bookies[0].directory}/ledgers"
        return await asyncio.to_thread(
            bookie.run, "bookie", "index", "rebuild", "--online", "--ledger-dir", directory, "-o", "json", *words
        )

    reading = ReadingForever(new_java("reader"), ledger_ids)
    await reading.wait_for(1)
    begun = await rebuild("--yes", "--detach")
    assert begun.exit_code == 0, begun.stderr
    child = await asyncio.to_thread(halt_builder, bookie.bookies[0].pid)
    await reading.wait_for(3)
    await require_refused(writer, open_ledger)
    os.kill(child, signal.SIGCONT)
    done = await rebuild()
    assert done.exit_code == 0, done.stderr
    result = done.json()
    assert (result["job"], result["state"], result["is_complete"]) == (begun.json()["job"], "done", True)
    count = LEDGERS * ENTRIES_PER_LEDGER + 1
    assert (result["entries"], result["locations"], result["limbo"]) == (count, count, LEDGERS + 1)
    await reading.wait_for(LEDGERS)
    await reading.stop()
    print(f"{count} entries rebuilt in {result['seconds']} s; Java read {reading.ledgers_read} ledgers meanwhile")
    later = await writer.create(ensemble=(1, 1, 1), password=PASSWORD)
    assert await writer.append(later, [b"writable again"]) == [0]
    verified = await asyncio.to_thread(bookie.run, "ledger", "verify", *map(str, ledger_ids))
    assert verified.exit_code == 0, verified.stdout + verified.stderr
