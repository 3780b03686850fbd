"""Marks of a bookie that came back, in virtual time: cleared only if nothing that it should have can be missing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.protocol.status import Status
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate
from tests.sim.test_auditor import auditing, come_back, losses, marks

BOOKIES = ("b1", "b2", "b3", "b4", "b5")
LONG, SHORT = 999, 19
"""Last entries of a ledger of which a sample is read, and of one that is read as a whole."""


async def stored(cluster: RepairCluster, last_entry_id: int, *, write_quorum_size: int = 2) -> int:
    metadata = ledger({0: list(BOOKIES[:3])}, write_quorum_size, 2, last_entry_id=last_entry_id, length=100)
    return await cluster.store(metadata)


async def away(cluster: RepairCluster, change: Callable[[dict[int, dict[int, bytes]]], None]) -> None:
    """b1 is away until its ledgers are marked, and comes back with other copies."""
    kept = cluster.copies["b1"]
    await cluster.clock.sleep(1)
    await cluster.stop("b1")
    await cluster.clock.sleep(70)
    assert sorted(await marks(cluster)) == sorted(kept)
    change(kept)
    cluster.requests.clear()
    await come_back(cluster, "b1", kept)
    await cluster.clock.sleep(60)


Scenario = Callable[[RepairCluster], Coroutine[Any, Any, None]]


def run(scenario: Scenario, seed: int = 0) -> None:
    async def audited(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await scenario(cluster)

    simulate(audited, seed=seed)


def test_an_accepted_loss_ends_when_its_bookie_is_back_with_its_entries() -> None:
    """Lost again, it is a new loss. Not for a bookie that is new under the old name, or that its ledger left.

    With its old entries it is not new, although its cookie was made again.
    """

    async def scenario(cluster: RepairCluster) -> None:
        alone, with_new_cookie, emptied = [
            await cluster.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=100)) for _ in range(3)
        ]
        left = await cluster.store(ledger({0: ["b2"]}, 1, 1, last_entry_id=9, length=100))
        since = await cluster.ports.registrations.member_since("b1")
        assert since is not None
        notes = RecoveryNotes(cluster.metadata_store, ROOT).given_up

        async def accept() -> None:
            for ledger_id, cookie_ms in (
                (alone, since),
                (with_new_cookie, since - 1),
                (emptied, since - 1),
                (left, since),
            ):
                note = GivenUpNote(written_ms=1, member_since={"b1": cookie_ms, "b9": None})
                await notes.put(str(ledger_id), note)

        async with auditing(cluster):
            await cluster.clock.sleep(1)
            kept = cluster.copies["b1"]
            await cluster.stop("b1")
            del kept[emptied]
            await cluster.clock.sleep(5)
            await accept()
            await cluster.clock.sleep(70)
            assert await losses(cluster) == {}
            assert await notes.ledger_ids() == {alone, with_new_cookie, emptied, left}
            await come_back(cluster, "b1", kept)
            await cluster.clock.sleep(15)
            for ledger_id, given_up in ((alone, 1), (with_new_cookie, 1), (emptied, 2), (left, 2)):
                found = await notes.find(str(ledger_id))
                assert found is not None
                assert len(found.value.member_since) == given_up, ledger_id
            await cluster.stop("b1")
            await cluster.clock.sleep(100)
            assert list(await losses(cluster)) == [alone, with_new_cookie]
            await come_back(cluster, "b1", kept)
            await accept()
        async with auditing(cluster):  # it came back while no auditor was elected
            await cluster.clock.sleep(15)
            found = await notes.find(str(alone))
            assert found is not None
            assert found.value.member_since == {"b9": None}
            assert await notes.ledger_ids() == {alone, with_new_cookie, emptied, left}

    run(scenario)


@pytest.mark.parametrize("last_entry_id", [LONG, SHORT])
@pytest.mark.parametrize("write_quorum_size", [2, 3])
def test_an_entry_lost_in_the_middle_keeps_the_mark(last_entry_id: int, write_quorum_size: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        bad, good = [await stored(cluster, last_entry_id, write_quorum_size=write_quorum_size) for _ in range(2)]
        lost = sorted(cluster.copies["b1"][bad])[len(cluster.copies["b1"][bad]) // 2]

        def lose_it(copies: dict[int, dict[int, bytes]]) -> None:
            del copies[bad][lost]

        async with auditing(cluster):
            await away(cluster, lose_it)
            assert list(await marks(cluster)) == [bad]
            assert good not in await marks(cluster)

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_entries_behind_a_complete_list_keep_the_mark(seed: int) -> None:
    """A list comes from the index, so it says nothing about the entries themselves. Any sample has some of so many."""

    async def scenario(cluster: RepairCluster) -> None:
        bad, _ = [await stored(cluster, LONG) for _ in range(2)]

        def damage_some(copies: dict[int, dict[int, bytes]]) -> None:
            first = copies[bad][min(copies[bad])]
            copies[bad] |= {each: first for each in copies[bad] if each >= 200}

        async with auditing(cluster):
            await away(cluster, damage_some)
            assert list(await marks(cluster)) == [bad]

    run(scenario, seed)


def test_the_worker_reads_what_a_bookie_without_lists_has() -> None:
    """Java's DbLedgerStorage never answers. Ledgers that are read as a whole need no list."""

    async def scenario(cluster: RepairCluster) -> None:
        long = [await stored(cluster, LONG) for _ in range(30)]
        short = await stored(cluster, SHORT)
        cluster.refuse("list", "b1", Status.TIMEOUT)
        async with auditing(cluster):
            await away(cluster, lambda _: None)
            assert sorted(await marks(cluster)) == long
            assert short not in await marks(cluster)
            assert len(cluster.asked("b1", "list")) == 1
            assert {each.ledger_id for each in cluster.requests if each.kind == "read"} == {short}

    run(scenario)


def test_a_sample_is_read_all_over_the_range() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await stored(cluster, LONG)
        async with auditing(cluster):
            await away(cluster, lambda _: None)
            assert await marks(cluster) == {}
            read = sorted(set(cluster.asked("b1")))
            gaps = [later - former for former, later in itertools.pairwise(read)]
            assert max(gaps) < 150
            assert len(read) < 100

    run(scenario)
