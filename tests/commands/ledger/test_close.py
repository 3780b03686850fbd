"""``ledger close`` on real bookies: live writers, dead bookies, plans and exit codes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import LedgerFencedError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType, LedgerState
from tests.processes import BkctlResult, Cluster


async def test_a_live_writer_is_stopped_and_no_entry_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    async def run(*arguments: str) -> BkctlResult:
        return await asyncio.to_thread(cluster.run, "ledger", "close", *arguments, "-o", "json")

    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        topic = {"application": b"pulsar", "pulsar/managed-ledger": b"t/ns/persistent/orders"}
        writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, custom_metadata=topic)
        for _ in range(3):
            await writer.append(b"an entry")
        number = str(writer.ledger_id)

        assert (await run(number)).exit_code == 3, "it needs a confirmation"
        planned = (await run(number, "--dry-run")).json()
        assert "will fence and close 1 ledger, which stops the writers of those that have one" in planned["summary"]
        assert "owner: topic persistent://t/ns/orders" in planned["summary"]
        assert planned["items"][0]["not_registered"] == []
        assert await writer.append(b"it goes on") == 3

        ids = tmp_path / "ids"
        ids.write_text(f"{number}\n999999\n")
        done = await run("--from-file", str(ids), "--grace", "1s", "--yes")
        assert done.exit_code == 0, done.stderr
        assert f" UTC for the writer of ledger {number} to close it" in done.stderr
        assert "1 of 2 ledgers closed, 1 gone" in done.stderr
        [closed] = done.json()["ledgers"]
        assert (closed["last_entry_id"], closed["outcome"]) == ("3", "closed")
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")

        again = await run(number, "--yes")
        assert again.exit_code == 0
        assert (again.json()["closed_already"], again.json()["closed"]) == (1, 0)
        assert (await run("999999", "--yes")).exit_code == 4


@pytest.mark.battery
async def test_a_ledger_that_waits_for_a_dead_bookie_is_closed_when_it_is_back(cluster: Cluster) -> None:
    first, dead, _ = (bookie.id for bookie in cluster.bookies)
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        metadata = new_ledger((first, dead), 2, 1, DigestType.CRC32C, b"")
        stuck, _ = await client.ports.ledgers.create(metadata)
        good, _ = await client.ports.ledgers.create(new_ledger((first,), 1, 1, DigestType.CRC32C, b""))
        await asyncio.to_thread(cluster.stop_bookie, dead)
        explained = await asyncio.to_thread(cluster.run, "ledger", "explain", str(stuck), "-o", "json")
        assert explained.exit_code == 10, explained
        why = explained.json()
        assert (why["closable"], why["missing_answers"], why["replication"]) == (False, [dead], "under_replicated")
        assert [each["registered"] for each in why["bookies"] if each["bookie_id"] == dead] == ["no"]
        assert f"bookie {dead} is not registered; it is in 1 of 1 segment" in why["problems"]

        tried = await asyncio.to_thread(cluster.run, "ledger", "close", str(stuck), "--dry-run")
        reason = f"nothing was changed: ledger {stuck} cannot be closed now: {dead} not registered"
        assert (tried.exit_code, reason in tried.stderr) == (3, True), tried

        arguments = ["ledger", "close", str(stuck), str(good), "--grace", "0s", "--yes"]
        left = await asyncio.to_thread(cluster.run, *arguments, "-o", "json")
        assert left.exit_code == 9, left
        assert f"ledger {stuck} cannot be closed now: {dead} not registered" in left.stderr
        [failure] = left.json()["failures"]
        assert (failure["ledger_id"], failure["missing_bookies"]) == (str(stuck), [dead])
        assert failure["next_step"] == (
            f"once {dead} is registered, run bkctl ledger close {stuck} again; if its disks are lost, bkctl ledger "
            f"close {stuck} --accept-loss {dead} ends the ledger with what the others have"
        )
        assert (await client.ports.ledgers.read(stuck)).value.state is LedgerState.OPEN
        assert (await client.ports.ledgers.read(good)).value.state is LedgerState.CLOSED

        assert (await asyncio.to_thread(cluster.run, *arguments[:3], "--yes", "--grace", "0s")).exit_code == 1
        await asyncio.to_thread(cluster.start_bookie, dead)
        done = await asyncio.to_thread(cluster.run, *arguments)
        assert done.exit_code == 0, done
        explained = await asyncio.to_thread(cluster.run, "ledger", "explain", str(stuck), "-o", "json")
        assert explained.exit_code == 0, explained
        assert (await client.ports.ledgers.read(stuck)).value.state is LedgerState.CLOSED
