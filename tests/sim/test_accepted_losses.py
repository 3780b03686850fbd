"""Entries whose loss was accepted when their ledger was closed, and that are there again: no operation leaves them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.cookies import CookieStore, CookieVersion
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.recovery_notes import CollectionNote, RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import find_given_up, read_given_up
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.close.given_up_record import GivenUpRecord
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.check_scope import WHOLE, CheckScope
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.verdict import ReplicationState, judge_metadata
from bkctl.runtime.replication.run.decommission import Decommission
from bkctl.runtime.replication.run.drain import DrainHooks
from bkctl.runtime.replication.run.in_place_repair import InPlaceRepair
from bkctl.runtime.replication.survey.checker import LedgerChecker
from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import marked_ids, marks_of, serving, worker_on
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

LOST = ((2, 3), (7, 7))
LOST_IDS = (2, 3, 7)
OTHERS = [0, 1, 4, 5, 6, 8, 9]
CLOSED = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=100)
STRIPED = ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=9, length=100)


async def closed_with_loss(cluster: RepairCluster, metadata: LedgerMetadata = CLOSED) -> int:
    """A ledger of b1, b2 and b3 without the entries that only d1 had, which is back, and is no member."""
    await cluster.start("b1", "b2", "b3", "b4", "d1")
    ledger_id = await cluster.store(metadata)
    cluster.copies["d1"][ledger_id] = {}
    for bookie_id in ("b1", "b2", "b3"):
        for entry_id in LOST_IDS:
            if entry_id in cluster.copies[bookie_id].get(ledger_id, {}):
                cluster.copies["d1"][ledger_id][entry_id] = cluster.copies[bookie_id][ledger_id].pop(entry_id)
    note = GivenUpNote(written_ms=1, member_since={"d1": 1}, closed_without=("d1",), lost=LOST)
    await RecoveryNotes(cluster.metadata_store, ROOT).given_up.put(str(ledger_id), note)
    return ledger_id


async def note_of(cluster: RepairCluster, ledger_id: int) -> Versioned[GivenUpNote]:
    found = await RecoveryNotes(cluster.metadata_store, ROOT).given_up.find(str(ledger_id))
    assert found is not None
    return found


async def leave(cluster: RepairCluster, bookie_id: str) -> None:
    del cluster.copies[bookie_id]
    await cluster.withdraw(bookie_id)


@pytest.mark.parametrize("by", ["recovery", "drain", "worker"])
def test_an_entry_that_was_copied_is_no_longer_an_accepted_loss(by: str) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster)
        await cluster.set_mode("d1", BookieMode.READ_ONLY)
        if by != "drain":
            await leave(cluster, "b1")
        if by == "worker":
            await marks_of(cluster).mark(ledger_id, ["b1"])
            async with serving(worker_on(cluster)):
                await cluster.clock.sleep(60)
            assert await marked_ids(cluster) == []
        else:
            report = await cluster.recover("b1", unreachable=["b1"] if by == "recovery" else ())
            assert report.is_complete, report.failures
        assert (await cluster.ensembles(ledger_id))[0] == ("b4", "b2", "b3")
        assert cluster.holds("b4", ledger_id) == list(range(10))
        assert (await note_of(cluster, ledger_id)).value.lost == ()

        await leave(cluster, "d1")
        await leave(cluster, "b4")  # the only copies of the entries
        await cluster.start("b5")
        report = await cluster.recover("b4")
        assert not report.is_complete
        assert (await cluster.ensembles(ledger_id))[0] == ("b4", "b2", "b3")

    simulate(scenario)


def test_a_bookie_that_gets_copies_again_is_no_longer_given_up() -> None:
    """Without an auditor, which ends that too. If it is lost again, it is missed like any other."""

    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster)
        await leave(cluster, "b1")
        await cluster.set_mode("b4", BookieMode.READ_ONLY)
        assert (await cluster.recover("b1")).is_complete
        assert (await cluster.ensembles(ledger_id))[0] == ("d1", "b2", "b3")
        assert await RecoveryNotes(cluster.metadata_store, ROOT).given_up.keys() == []

    simulate(scenario)


def test_only_the_entries_that_were_copied_are_no_longer_accepted() -> None:
    """Each bookie has a stripe; the other entries are still on none of the members."""

    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster, STRIPED)
        await leave(cluster, "b2")  # stores 0, 1, 3, 4, 6, 7, 9
        await cluster.set_mode("d1", BookieMode.READ_ONLY)
        del cluster.copies["d1"][ledger_id][7]
        assert (await cluster.recover("b2")).is_complete
        assert cluster.holds("b4", ledger_id) == [0, 1, 3, 4, 6, 9]
        assert (await note_of(cluster, ledger_id)).value.lost == ((2, 2), (7, 7))
        await leave(cluster, "d1")
        await cluster.start("b5")
        await leave(cluster, "b1")
        assert (await cluster.recover("b1")).is_complete, "what is on none of them is left out as before"
        assert (await note_of(cluster, ledger_id)).value.lost == ((2, 2), (7, 7))

    simulate(scenario)


def test_a_bookie_that_ran_again_and_is_lost_again_is_missed() -> None:
    """No auditor saw it. A new, empty bookie with its id had nothing of the ledger."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 1, 1, last_entry_id=3, length=40))
        notes = RecoveryNotes(cluster.metadata_store, ROOT)
        cookies = CookieStore(cluster.metadata_store, ROOT)
        record = GivenUpRecord(notes, cluster.clock, "ops")

        async def verdict() -> ReplicationState:
            live = (await cluster.ports.registrations.snapshot()).live
            note = (await read_given_up(notes)).get(ledger_id)
            assert (await find_given_up(notes, ledger_id)).get(ledger_id) == note
            stored = await cluster.ports.ledgers.read(ledger_id)
            return judge_metadata(ledger_id, stored.value, live, note).replication

        for run in range(3):
            await leave(cluster, "b1")
            assert await verdict() is ReplicationState.UNAVAILABLE
            await record.note_all({ledger_id: ["b1"]})
            assert await verdict() is ReplicationState.GIVEN_UP
            await cluster.start("b1")
            await notes.collection.put("b1", CollectionNote(step=run))
        await record.note_all({ledger_id: ["b1"]})
        await cookies.delete("b1", await cookies.read("b1"))
        await leave(cluster, "b1")
        await cluster.clock.sleep(0.01)
        await cluster.start("b1")
        await notes.collection.put("b1", CollectionNote(step=9))
        await leave(cluster, "b1")
        assert await verdict() is ReplicationState.GIVEN_UP

    simulate(scenario)


def test_a_loss_is_accepted_only_while_no_other_process_copies_the_ledger() -> None:
    """It may be copying what is to be proven lost. Only bookies that the ledger names are given up with it."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 1, 1, last_entry_id=3, length=40))
        await leave(cluster, "b1")
        await leave(cluster, "b3")
        cookies, notes = CookieStore(cluster.metadata_store, ROOT), RecoveryNotes(cluster.metadata_store, ROOT)
        record = GivenUpRecord(notes, cluster.clock, "ops")
        operation, hooks = (
            Decommission(cluster.recovery, cookies, cluster.ports),
            DrainHooks(losses=lambda: record),
        )
        plan = await operation.plan(["b1", "b3"], accepted_losses=[ledger_id])
        other = ReplicationLocks(await cluster.connect(), ROOT, "another host")
        lock = await other.acquire(ledger_id)
        assert lock is not None
        for is_locked in (True, False):
            if not is_locked:
                await lock.release()
            report = await operation.finish(plan, await operation.move(plan, 0.0, hooks), hooks)
            assert report.is_complete is not is_locked, report.refusal
            assert await notes.given_up.keys() == ([] if is_locked else [str(ledger_id)])
            assert [each for each in ("b1", "b3") if await cookies.find(each)] == (["b1", "b3"] if is_locked else [])
        assert (await note_of(cluster, ledger_id)).value.member_since.keys() == {"b1"}

    simulate(scenario)


def test_a_bookie_that_comes_back_while_its_cookie_is_deleted_gets_it_again() -> None:
    """The answer to the deletion is lost, so it cannot be told from a refusal before it."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 1, 1, last_entry_id=3, length=40))
        await leave(cluster, "b1")
        notes = RecoveryNotes(cluster.metadata_store, ROOT)
        cookies = CookieStore(cluster.metadata_store, ROOT)
        record = GivenUpRecord(notes, cluster.clock, "ops")
        operation = Decommission(cluster.recovery, cookies, cluster.ports)
        hooks = DrainHooks(losses=lambda: record)
        plan = await operation.plan(["b1"], accepted_losses=[ledger_id])
        moved = await operation.move(plan, 0.0, hooks)
        original = cookies.delete

        async def delete(bookie_id: str, found: CookieVersion) -> None:
            await original(bookie_id, found)
            await cluster.clock.sleep(0.01)
            await cluster.start("b1")
            raise MetadataUnavailableError("ZooKeeper does not answer")

        cookies.delete = delete  # type: ignore[method-assign]
        report = await operation.finish(plan, moved, hooks)
        assert report.refusal is not None
        assert "it came back" in report.refusal
        assert "the cookie was written again" in report.refusal
        assert not report.is_cookie_deleted
        cookie = await cookies.find("b1")
        assert cookie is not None
        assert (await note_of(cluster, ledger_id)).value.member_since == {"b1": cookie.ctime_ms}

    simulate(scenario)


def test_a_stripe_without_any_entry_is_moved() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster, ledger({0: ["b1", "b2"]}, 1, 1, last_entry_id=3, length=40))
        for entry_id in (1, 3):
            cluster.copies["b2"][ledger_id].pop(entry_id, None)
        await leave(cluster, "d1")
        notes, noted = RecoveryNotes(cluster.metadata_store, ROOT).given_up, await note_of(cluster, ledger_id)
        await notes.put(str(ledger_id), msgspec.structs.replace(noted.value, lost=((1, 1), (3, 3))))
        assert (await cluster.recover("b2", unreachable=())).is_complete
        assert not {*(await cluster.ensembles(ledger_id))[0]} & {"b2"}

    simulate(scenario)


def test_a_note_that_changes_during_the_copies_is_read_again() -> None:
    """Another process copied an accepted entry, and ended its note, after the note was read here."""

    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster)
        await cluster.start("d1")
        await leave(cluster, "b1")
        notes, writes = RecoveryNotes(cluster.metadata_store, ROOT).given_up, 0

        async def end() -> None:
            found = await note_of(cluster, ledger_id)
            await notes.replace(str(ledger_id), msgspec.structs.replace(found.value, lost=()), found.version)

        def on_first_add(request: BookieRequest) -> None:
            nonlocal writes
            if request.kind == "add":
                writes += 1
                if writes == 1:
                    ending.append(asyncio.create_task(end()))

        ending: list[asyncio.Task[None]] = []
        cluster.rules.append(on_first_add)
        report = await cluster.recover("b1")
        assert ending
        assert not report.is_complete, "the loss is not accepted now"
        assert (await cluster.ensembles(ledger_id))[0] == ("b1", "b2", "b3")

    simulate(scenario)


def test_bad_copies_that_are_written_again_are_no_longer_accepted() -> None:
    """A member has an entry again: its disk was restored."""

    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster)
        cluster.copies["b2"][ledger_id] |= cluster.copies["d1"][ledger_id]
        await leave(cluster, "d1")
        repair = InPlaceRepair(cluster.ports, cluster.locks, cluster.recovery.policy, lambda _: None)
        given_up = {ledger_id: (await note_of(cluster, ledger_id)).value}
        plan = await repair.plan([ledger_id], {}, lambda *_: None, given_up)
        assert plan.copies == 6
        assert (await repair.run(plan, lambda _: None)).is_complete
        assert cluster.holds("b1", ledger_id) == cluster.holds("b3", ledger_id) == list(range(10))
        assert (await note_of(cluster, ledger_id)).value.lost == ()

    simulate(scenario)


def test_the_loss_of_entries_stays_accepted_when_other_bookies_are_given_up() -> None:
    """b1 and b2 were removed later, with entries of which they had the only copies. The ledger still names them."""

    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster, STRIPED)
        await leave(cluster, "d1")
        note = (await note_of(cluster, ledger_id)).value
        note = msgspec.structs.replace(note, member_since=dict.fromkeys(("d1", "b1", "b2"), 1))
        for live in (("b3",), ("b1", "b2", "b3")):
            checker = LedgerChecker(cluster.ports, live, ReplicationConfig(), given_up={ledger_id: note})
            assert (await checker.check(ledger_id)).is_clean, live

    simulate(scenario)


def test_an_accepted_loss_needs_the_answers_of_all_members() -> None:
    """One bookie that has no copy excuses nothing while another one has one, or may have one."""
    long = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=299, length=3000)

    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await closed_with_loss(cluster, long)
        note = (await note_of(cluster, ledger_id)).value
        for bookie_id in ("b1", "b2", "b3"):
            for entry_id in range(100, 300):
                del cluster.copies[bookie_id][ledger_id][entry_id]
        note = msgspec.structs.replace(note, lost=(*LOST, (100, 299)))

        async def check(*live: str, scope: CheckScope = WHOLE) -> object:
            checker = LedgerChecker(cluster.ports, live, ReplicationConfig(), given_up={ledger_id: note})
            found = await checker.check(ledger_id, scope)
            return found.is_clean or found.lost or found.unreadable

        members = ("b1", "b2", "b3")
        assert await check(*members) is True
        assert await check(*members, scope=CheckScope(bookie_ids=frozenset({"b1"}))) is not True
        assert await check("b1", "b2") == (EntryRange(2, 3), EntryRange(7, 7), EntryRange(100, 299))
        cluster.copies["b2"][ledger_id] |= cluster.copies["d1"][ledger_id]
        assert await check(*members) == (), "two copies of each are bad"

    simulate(scenario)
