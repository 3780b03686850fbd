"""Ledgers that are not closed and have no entry anywhere: the way to delete them, or to leave them behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.errors import LedgerError, LedgerFencedError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from tests.processes import HALTED_SESSION_MS, Cluster, TerminalSession
from tests.until import until


@asynccontextmanager
async def client_of(cluster: Cluster) -> AsyncIterator[LedgerClient]:
    client = await LedgerClient.connect(cluster.metadata_uri)
    try:
        yield client
    finally:
        await client.close()


async def open_ledger_on(client: LedgerClient, *bookie_ids: str) -> int:
    """An open ledger without entries that nothing can close once the first of its bookies is gone."""
    ledger_id, _ = await client.ports.ledgers.create(new_ledger(bookie_ids, 2, 1, DigestType.CRC32C, b""))
    return ledger_id


async def test_the_decommission_of_its_bookie_ends_only_when_it_is_deleted_or_its_loss_accepted(
    cluster: Cluster, tmp_path: Path
) -> None:
    dead, other, _ = (bookie.id for bookie in cluster.bookies)
    async with client_of(cluster) as client:
        first, second = [await open_ledger_on(client, dead, other) for _ in range(2)]
        run = cluster.run
        await asyncio.to_thread(cluster.stop_bookie, dead)

        stuck = await asyncio.to_thread(run, "decommission", dead, "--open-ledgers", "fence", "--yes")
        assert stuck.exit_code in {1, 9}
        assert f"0 ledgers moved, 2 left: 2 cannot be closed (start {dead} if its disks exist)" in stuck.stderr
        closes = f"bkctl ledger close {first} {second} --accept-loss {dead} closes those that are not closed"
        assert f"if the disks of {dead} are lost, {closes}" in stuck.stderr

        number = str(first)
        assert (await asyncio.to_thread(run, "ledger", "delete", number, "--confirm", number)).exit_code == 3
        assert (await asyncio.to_thread(run, "ledger", "delete", number, "--force-open")).exit_code == 3
        before = await client.ports.ledgers.read(first)
        planned = await asyncio.to_thread(run, "ledger", "delete", number, "--force-open", "--dry-run", "-o", "json")
        assert planned.exit_code == 0
        assert f"Not asked because they are down: {dead}" in planned.stdout
        assert await client.ports.ledgers.read(first) == before
        deleted = await asyncio.to_thread(run, "ledger", "delete", number, "--force-open", "--confirm", number)
        assert deleted.exit_code == 0, deleted.stderr
        assert Path(deleted.json()["trash"]).exists()

        ids = tmp_path / "ids"
        ids.write_text(f"{first}\n{second}\n")
        seen = await client.ports.ledgers.read(second)
        accepted = ["--accept-loss", dead, "--from-file", str(ids)]
        done = await asyncio.to_thread(run, "decommission", dead, *accepted, "--yes", "-o", "json")
        assert done.exit_code == 0, done.stderr
        report = done.json()
        assert (report["is_complete"], report["accepted_losses"]) == (True, [str(second)])
        assert f"loss of entries of 1 ledger is accepted, whose metadata still names bookie {dead}: {second}" in (
            done.stderr
        )
        for options in (accepted, []):
            again = await asyncio.to_thread(run, "decommission", dead, *options, "--yes", "-o", "json")
            assert (again.exit_code, "1 ledger still names it, whose loss was accepted" in again.stderr) == (4, True)
        assert await client.ports.ledgers.read(second) == seen
        cookies = await asyncio.to_thread(run, "cookie", "list", "-o", "name")
        assert dead not in cookies.stdout.split()


async def test_no_close_is_advised_that_would_be_refused_for_want_of_a_bookie(cluster: Cluster) -> None:
    dead, other, third = (bookie.id for bookie in cluster.bookies)
    async with client_of(cluster) as client:
        narrow, wide, wider = [
            await open_ledger_on(client, *each) for each in ((dead, other), (dead, other, third), (dead, other, third))
        ]
        await asyncio.to_thread(cluster.stop_bookie, dead)
        stuck = await asyncio.to_thread(cluster.run, "decommission", dead, "--open-ledgers", "fence", "--yes")
        assert "3 left: 3 cannot be closed" in stuck.stderr, stuck
        closes = f"bkctl ledger close {narrow} --accept-loss {dead} closes those that are not closed"
        assert f"if the disks of {dead} are lost, {closes}" in stuck.stderr
        why = "no writable bookie is left to take the places of the lost ones: start another, then repeat this"
        assert f"ledgers {wide} and {wider} cannot be closed so now, because {why}" in stuck.stderr
        for ledger_id, is_refused in ((narrow, False), (wide, True)):
            words = ("ledger", "close", str(ledger_id), "--accept-loss", dead, "--grace", "0s")
            closed = await asyncio.to_thread(cluster.run, *words, "--confirm", str(ledger_id))
            assert closed.exit_code == (3 if is_refused else 0), closed
            explained = await asyncio.to_thread(cluster.run, "ledger", "explain", str(ledger_id))
            assert ("once another bookie is writable" in explained.stdout) is is_refused


async def test_a_loss_that_is_not_proven_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    dead, other, _ = (bookie.id for bookie in cluster.bookies)
    async with client_of(cluster) as client:
        ledger_id = await open_ledger_on(client, dead, other)
        await asyncio.to_thread(cluster.stop_bookie, dead)
        ids = tmp_path / "ids"
        ids.write_text(f"{ledger_id}\n")
        os.kill(cluster.bookie(other).pid, signal.SIGSTOP)
        try:
            arguments = ["decommission", dead, "--accept-loss", dead, "--from-file", str(ids), "--yes"]
            refused = await asyncio.to_thread(cluster.run, *arguments)
        finally:
            os.kill(cluster.bookie(other).pid, signal.SIGCONT)
        assert refused.exit_code == 3, refused
        assert f"ledger {ledger_id}: bookie {other}" in refused.stderr
        assert dead in (await asyncio.to_thread(cluster.run, "cookie", "list", "-o", "name")).stdout.split()


async def started_writer(client: LedgerClient, *, entries: int) -> LedgerWriter:
    writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    for _ in range(entries):
        await writer.append(b"an entry")
    return writer


async def test_a_ledger_with_entries_is_refused_and_its_writer_goes_on(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        writer = await started_writer(client, entries=3)
        number = str(writer.ledger_id)
        refused = await asyncio.to_thread(cluster.run, "ledger", "delete", number, "--force-open", "--confirm", number)
        assert refused.exit_code == 3
        assert "has entry 2" in refused.stderr
        assert await writer.append(b"one more") == 3


async def test_a_registered_bookie_that_is_silent_may_have_entries(start_cluster: Callable[..., Cluster]) -> None:
    cluster = await asyncio.to_thread(start_cluster, 3, session_ms=HALTED_SESSION_MS)
    async with client_of(cluster) as client:
        writer = await started_writer(client, entries=0)
        number = str(writer.ledger_id)
        silent = cluster.bookies[2]
        os.kill(silent.pid, signal.SIGSTOP)
        try:
            refused = await asyncio.to_thread(
                cluster.run, "ledger", "delete", number, "--force-open", "--confirm", number
            )
        finally:
            os.kill(silent.pid, signal.SIGCONT)
        assert refused.exit_code == 3
        assert f"bookie {silent.id}" in refused.stderr
        await client.ports.ledgers.read(writer.ledger_id)


async def test_the_last_look_finds_an_entry_that_was_written_while_the_operator_was_asked(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        writer = await started_writer(client, entries=0)
        number = str(writer.ledger_id)
        terminal = await asyncio.to_thread(
            TerminalSession, "ledger", "delete", number, "--force-open", BKCTL_METADATA_URI=cluster.metadata_uri
        )
        with terminal as session:
            await asyncio.to_thread(session.wait_for, f"Type {number} to continue")
            await writer.append(b"just in time")
            session.type(f"{number}\n")
            assert await asyncio.to_thread(session.exit_code) == 5
        assert "has entry 0" in session.screen
        assert await writer.append(b"and it was not fenced") == 1


async def test_bookies_that_went_down_while_the_operator_was_asked_may_have_entries(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        writer = await started_writer(client, entries=0)
        number = str(writer.ledger_id)
        registration = RegistrationClient(client.store, client.ports.ledgers.root)
        terminal = await asyncio.to_thread(
            TerminalSession, "ledger", "delete", number, "--force-open", BKCTL_METADATA_URI=cluster.metadata_uri
        )
        with terminal as session:
            await asyncio.to_thread(session.wait_for, f"Type {number} to continue")
            await writer.append(b"acknowledged")
            for bookie in cluster.bookies:
                await asyncio.to_thread(cluster.stop_bookie, bookie.id)

            async def all_are_down() -> bool:
                return not (await registration.snapshot()).live

            await until(all_are_down)
            session.type(f"{number}\n")
            assert await asyncio.to_thread(session.exit_code) == 5
        assert "is down now" in session.screen
        await client.ports.ledgers.read(writer.ledger_id)


async def test_a_writer_of_a_deleted_ledger_gets_no_acknowledgement(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        writer = await started_writer(client, entries=0)
        number = str(writer.ledger_id)
        deleted = await asyncio.to_thread(cluster.run, "ledger", "delete", number, "--force-open", "--confirm", number)
        assert deleted.exit_code == 0, deleted.stderr
        with pytest.raises(LedgerError) as raised:
            await writer.append(b"too late")
        assert isinstance(raised.value, LedgerFencedError)


async def test_a_ledger_that_is_being_repaired_is_left(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        writer = await started_writer(client, entries=0)
        number = str(writer.ledger_id)
        locks = ReplicationLocks(client.store, client.ports.ledgers.root, "another host")
        lock = await locks.acquire(writer.ledger_id)
        assert lock is not None
        left = await asyncio.to_thread(cluster.run, "ledger", "delete", number, "--force-open", "--confirm", number)
        assert left.exit_code == 5
        assert "another process holds its replication lock" in left.stderr
        await client.ports.ledgers.read(writer.ledger_id)
        await lock.release()
