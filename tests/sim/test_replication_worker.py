"""The replication worker of the autorecovery daemon, in virtual time. Source: replication section 14."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from bkctl.runtime.autorecovery.config import AutorecoveryConfig, ReplicationTarget
from bkctl.runtime.autorecovery.worker import Worker
from bkctl.runtime.config import PlacementConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.ledger.changes import replace_bookies
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, FailedLedgerNote, RecoveryNotes, daemon_key
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.ledger_result import LedgerResult
from bkctl.runtime.replication.turn.turn import LedgerTurn
from tests.counting_store import CountingStore
from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import (
    marked_ids,
    marks_of,
    process_on,
    serving,
    until,
    until_unmarked,
    worker_of_its_own,
    worker_on,
)
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate
from tests.sim.test_auditor_placement import with_racks

CLOSED = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=100)
OPEN = ledger({0: ["b1", "b2"], 5: ["b3", "b2"], 9: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN)
LONG = msgspec.structs.replace(CLOSED, last_entry_id=999, length=10_000)
GRACE_S = ReplicationConfig().open_ledger_wait_s


async def marked(cluster: RepairCluster, metadata: LedgerMetadata, *missing: str, entries: int = 0) -> int:
    """A ledger with a mark."""
    ledger_id = await cluster.store(metadata, entries=entries)
    await marks_of(cluster).mark(ledger_id, missing)
    return ledger_id


async def metadata_of(cluster: RepairCluster, ledger_id: int) -> LedgerMetadata:
    return (await cluster.ports.ledgers.read(ledger_id)).value


async def version_of(cluster: RepairCluster, ledger_id: int) -> int:
    return (await cluster.ports.ledgers.read(ledger_id)).version


async def locked_ids(cluster: RepairCluster) -> list[str]:
    return await cluster.metadata_store.children(f"{ROOT}/underreplication/locks")


async def failure_of(cluster: RepairCluster, ledger_id: int) -> FailedLedgerNote | None:
    found = await RecoveryNotes(cluster.metadata_store, ROOT).failures.find(str(ledger_id))
    return None if found is None else found.value


async def until_failed(cluster: RepairCluster, ledger_id: int, attempts: int = 1) -> FailedLedgerNote:
    async def has_failed() -> bool:
        note = await failure_of(cluster, ledger_id)
        return note is not None and note.attempts >= attempts

    await until(cluster, has_failed)
    note = await failure_of(cluster, ledger_id)
    assert note is not None
    return note


# -- lost bookies ---------------------------------------------------------------------------------------------------


def test_marked_ledgers_of_a_lost_bookie_are_copied_and_their_marks_cleared() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ids = [await marked(cluster, CLOSED, "b1") for _ in range(20)]
        worker = worker_on(cluster)
        async with serving(worker):
            await until_unmarked(cluster)
        for ledger_id in ids:
            assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}
            assert cluster.holds("b4", ledger_id) == list(range(10))
        status = worker.status()
        assert (status.ledgers_repaired, status.ledgers_failed, status.held) == (20, 0, ())
        assert status.bytes_copied > 0
        assert await locked_ids(cluster) == []

    simulate(scenario)


def test_the_ledger_with_the_fewest_live_copies_comes_first_then_the_oldest_mark() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4", "b5")
        newer_id, older_id = [await cluster.store(CLOSED) for _ in range(2)]
        thin_id = await cluster.store(ledger({0: ["b1", "b0", "b3"]}, 3, 2, last_entry_id=9, length=100))
        lost_id = await cluster.store(ledger({0: ["b0", "b1"]}, 2, 2, last_entry_id=9, length=100))
        for ledger_id in (lost_id, older_id, newer_id, thin_id):
            await marks_of(cluster).mark(ledger_id, ["b0", "b1"])
            await cluster.clock.sleep(1)
        async with serving(worker_on(cluster, replication=ReplicationConfig(ledgers_in_parallel=1))):
            await until_failed(cluster, lost_id)
        written = list(dict.fromkeys(each.ledger_id for each in cluster.requests if each.kind == "add"))
        assert written == [thin_id, older_id, newer_id]

    simulate(scenario)


@pytest.mark.parametrize(("kind", "refusing"), [("read", ["b2", "b3", "b4"]), ("add", ["b4"])])
def test_a_repair_that_bookies_refuse_says_so_and_not_that_they_failed(kind: str, refusing: list[str]) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ledger_id = await marked(cluster, CLOSED, "b1")
        for bookie_id in refusing:
            cluster.refuse(kind, bookie_id, Status.AUTHENTICATION_REQUIRED)
        async with serving(worker_on(cluster)):
            note = await until_failed(cluster, ledger_id)
        assert note.reason == "REFUSES_CLIENT", note
        assert "set bookie_client.tls or bookie_client.sasl" in note.detail

    simulate(scenario)


def test_a_deleted_ledgers_mark_is_cleared_at_once() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        for _ in range(10):
            await cluster.ports.ledgers.delete(await marked(cluster, CLOSED, "b1"))
        async with serving(worker_on(cluster, replication=ReplicationConfig(ledgers_in_parallel=1))):
            await until_unmarked(cluster)
        assert cluster.clock.monotonic_ns() < 2e9

    simulate(scenario)


def test_t24_a_bookie_that_came_back_empty_gets_its_entries_in_place() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        ledger_id = await marked(cluster, CLOSED, "b2")
        cluster.copies["b2"].clear()
        del cluster.copies["b3"][ledger_id][4]  # the mark does not name it
        worker = worker_on(cluster)
        async with serving(worker):
            await until_unmarked(cluster)
        assert cluster.holds("b2", ledger_id) == cluster.holds("b3", ledger_id) == list(range(10))
        assert await version_of(cluster, ledger_id) == 0
        assert worker.status().bytes_copied > 0

    simulate(scenario)


@pytest.mark.parametrize("missing", [(), ("b1",)])
def test_the_second_place_of_a_bookie_in_an_ensemble_moves(missing: tuple[str, ...]) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*{"b1", "b2", "b3", "b4"}.difference(missing))
        metadata = ledger({0: ["b1", "b2", "b2"]}, 3, 2, last_entry_id=9, length=100)
        ledger_id = await marked(cluster, metadata, "b2", *missing)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        ((_, ensemble),) = (await cluster.ensembles(ledger_id)).items()
        assert len(set(ensemble)) == 3
        assert set(ensemble).isdisjoint(missing)
        assert all(cluster.holds(bookie_id, ledger_id) == list(range(10)) for bookie_id in ensemble)

    simulate(scenario)


def test_the_mark_of_a_complete_ledger_is_cleared_without_copying() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        await marked(cluster, CLOSED, "b2")
        await marked(cluster, CLOSED, "not-a-member")
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        assert {each.kind for each in cluster.requests} == {"read"}
        assert {each.bookie_id for each in cluster.requests} == {"b2"}

    simulate(scenario)


def test_a_member_that_lacks_entries_and_is_read_only_is_replaced() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledger_id = await marked(cluster, CLOSED, "b2")
        cluster.copies["b2"].clear()
        await cluster.set_mode("b2", BookieMode.READ_ONLY)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b4", "b3")}
        assert cluster.holds("b4", ledger_id) == list(range(10))

    simulate(scenario)


def test_a_bookie_that_is_lost_while_its_mark_is_cleared_is_marked_again() -> None:
    """An auditor that finds the bookie in the mark writes nothing, so the worker must not forget it."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledger_id = await marked(cluster, CLOSED, "b2")
        worker = worker_on(cluster)
        finish = worker._work.finish

        async def lose_then_finish(picked: object) -> bool:
            if "b2" in cluster.copies:
                await cluster.stop("b2")
            return await finish(picked)  # type: ignore[arg-type]

        worker._work.finish = lose_then_finish  # type: ignore[method-assign]
        async with serving(worker):
            await until(cluster, lambda: is_moved(cluster, ledger_id, "b2"))
            await until_unmarked(cluster)
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b4", "b3")}

    simulate(scenario)


async def is_moved(cluster: RepairCluster, ledger_id: int, bookie_id: str) -> bool:
    return bookie_id not in (await metadata_of(cluster, ledger_id)).bookies()


# -- open ledgers ---------------------------------------------------------------------------------------------------


def test_t6_t9_segments_of_an_open_ledger_are_repaired_at_once_and_the_last_one_after_the_grace() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ledger_id = await marked(cluster, OPEN, "b1", entries=3)
        other_id = await marked(cluster, CLOSED, "b1")
        async with serving(worker_on(cluster, replication=ReplicationConfig(ledgers_in_parallel=1))):
            await cluster.clock.sleep(GRACE_S - 5)
            metadata = await metadata_of(cluster, ledger_id)
            assert (metadata.state, "b1" in metadata.segments[0].ensemble) == (LedgerState.OPEN, False)
            assert metadata.last_segment.ensemble == ("b1", "b2")
            assert await is_moved(cluster, other_id, "b1"), "the one slot is free"
            assert await locked_ids(cluster) == []
            await until_unmarked(cluster)
        metadata = await metadata_of(cluster, ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 11)
        assert "b1" not in metadata.bookies()
        assert cluster.clock.monotonic_ns() >= GRACE_S * 1e9

    simulate(scenario)


def test_t7_a_lost_bookie_in_an_early_segment_does_not_disturb_the_writer() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4", "b5")
        metadata = ledger({0: ["b1", "b2", "b3"], 20: ["b4", "b2", "b3"]}, 3, 2, state=LedgerState.OPEN)
        ledger_id = await marked(cluster, metadata, "b1", entries=5)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        stored = await cluster.ports.ledgers.read(ledger_id)
        assert (stored.value.state, stored.version) == (LedgerState.OPEN, 1)
        target = stored.value.segments[0].ensemble[0]
        assert cluster.holds(target, ledger_id)[:20] == list(range(20))
        assert cluster.clock.monotonic_ns() < 5e9

    simulate(scenario)


def test_t8_a_writer_that_replaces_the_bookie_within_the_grace_is_not_fenced() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ledger_id = await marked(cluster, OPEN, "b1", entries=3)
        async with serving(worker_on(cluster)):
            await cluster.clock.sleep(GRACE_S / 2)
            stored = await cluster.ports.ledgers.read(ledger_id)
            moved = replace_bookies(stored.value, 12, {0: "b4"})
            await cluster.ports.ledgers.write(ledger_id, moved, stored.version)
            await until_unmarked(cluster)
        metadata = await metadata_of(cluster, ledger_id)
        assert (metadata.state, metadata.last_segment.ensemble) == (LedgerState.OPEN, ("b4", "b2"))
        assert "b1" not in metadata.bookies(), "the segment that the writer left is repaired"

    simulate(scenario)


def test_a_writer_that_goes_on_to_another_lost_bookie_gets_the_grace_again() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ledger_id = await marked(cluster, OPEN, "b1", entries=3)
        async with serving(worker_on(cluster)):
            await cluster.clock.sleep(GRACE_S / 2)
            stored = await cluster.ports.ledgers.read(ledger_id)
            moved = replace_bookies(stored.value, 12, {1: "b3"})
            await cluster.ports.ledgers.write(ledger_id, moved, stored.version)
            await cluster.clock.sleep(GRACE_S)
            assert (await metadata_of(cluster, ledger_id)).state is LedgerState.OPEN
            await until_unmarked(cluster)
        assert cluster.clock.monotonic_ns() >= 2 * GRACE_S * 1e9

    simulate(scenario)


def test_t10_a_read_only_bookie_is_alive() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        await cluster.set_mode("b1", BookieMode.READ_ONLY)
        ledger_id = await marked(cluster, OPEN, "b1", "b3", entries=3)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
            await cluster.clock.sleep(2 * GRACE_S)
        stored = await cluster.ports.ledgers.read(ledger_id)
        assert (stored.value.state, stored.version) == (LedgerState.OPEN, 0)

    simulate(scenario)


def test_t11_a_ledger_that_was_never_written_is_closed_or_moved() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b4")
        ledger_id = await marked(cluster, ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=LedgerState.OPEN), "b3")
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        metadata = await metadata_of(cluster, ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, -1)
        assert metadata.bookies() == {"b1", "b2", "b4"}

    simulate(scenario)


def test_a_writer_is_not_fenced_while_no_bookie_could_take_its_copies() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2")
        ledger_id = await marked(cluster, ledger({0: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN), "b1", entries=3)
        async with serving(worker_on(cluster)):
            note = await until_failed(cluster, ledger_id, attempts=3)
        assert note.reason == "OPEN"
        assert (await metadata_of(cluster, ledger_id)).state is LedgerState.OPEN

    simulate(scenario)


# -- marks and locks ------------------------------------------------------------------------------------------------


def test_t16_a_ledger_that_another_process_has_locked_is_skipped_and_tried_later() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        locked_id, free_id = [await marked(cluster, CLOSED, "b1") for _ in range(2)]
        store, _ = await process_on(cluster)
        lock = await ReplicationLocks(store, ROOT, "java-host").acquire(locked_id)
        assert lock is not None
        async with serving(worker_on(cluster)):
            await cluster.clock.sleep(120)
            assert await marked_ids(cluster) == [locked_id]
            assert not await is_moved(cluster, locked_id, "b1")
            assert await is_moved(cluster, free_id, "b1")
            await lock.release()
            await until_unmarked(cluster)
        assert await is_moved(cluster, locked_id, "b1")
        await store.close()

    simulate(scenario)


def test_t26_a_mark_that_is_renewed_during_the_repair_stays_and_is_processed_again() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4", "b5")
        ledger_id = await marked(cluster, CLOSED, "b1")
        is_renewed = False
        worker = worker_on(cluster)
        finish = worker._work.finish

        async def lose_and_mark_then_finish(picked: object) -> bool:
            nonlocal is_renewed
            if not is_renewed:
                is_renewed = True
                await cluster.stop("b3")
                await marks_of(cluster).mark(ledger_id, ["b3"])
                assert not await finish(picked)  # type: ignore[arg-type]
                return False
            return await finish(picked)  # type: ignore[arg-type]

        worker._work.finish = lose_and_mark_then_finish  # type: ignore[method-assign]
        async with serving(worker):
            await until_unmarked(cluster)
        assert (await metadata_of(cluster, ledger_id)).bookies() == {"b2", "b4", "b5"}

    simulate(scenario)


def test_t27_only_the_branch_of_the_mark_is_pruned() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        done_id = await marked(cluster, CLOSED, "b1")
        kept_id = await marked(cluster, ledger({0: ["b0", "b1"]}, 2, 2, last_entry_id=3, length=9), "b0")
        async with serving(worker_on(cluster)):
            await until_failed(cluster, kept_id)
            await until(cluster, lambda: is_moved(cluster, done_id, "b1"))
        paths = Paths(ROOT)
        assert await cluster.metadata_store.exists(paths.mark_directory(done_id)) is None
        assert await cluster.metadata_store.exists(paths.mark(kept_id)) is not None
        assert await marked_ids(cluster) == [kept_id]

    simulate(scenario)


def test_t38_after_its_session_a_worker_changes_nothing_until_it_has_the_lock_again() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ledger_id = await marked(cluster, LONG, "b1")
        store, _ = await process_on(cluster)
        others, _ = await process_on(cluster)
        worker = await worker_of_its_own(cluster, store, AutorecoveryConfig(copy_bytes_per_s=5000))
        async with serving(worker):
            await until(cluster, lambda: holds_some(cluster, "b4", ledger_id))
            cluster.server.end_session(store.session_id)
            lock = await ReplicationLocks(others, ROOT, "java-host").acquire(ledger_id)
            assert lock is not None
            await cluster.clock.sleep(1)
            given_up = worker.status()
            assert given_up.held == ()
            await cluster.clock.sleep(90)
            assert await version_of(cluster, ledger_id) == 0
            assert worker.status().bytes_copied == given_up.bytes_copied
            await lock.release()
            await until_unmarked(cluster)
        assert await version_of(cluster, ledger_id) == 1
        assert await is_moved(cluster, ledger_id, "b1")
        await asyncio.gather(store.close(), others.close())

    simulate(scenario)


async def holds_some(cluster: RepairCluster, bookie_id: str, ledger_id: int) -> bool:
    return bool(cluster.holds(bookie_id, ledger_id))


@pytest.mark.parametrize("outage_s", [5, 40, 900])
def test_a_worker_survives_every_outage_of_zookeeper(outage_s: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ids = [await marked(cluster, CLOSED, "b1") for _ in range(30)]
        store, link = await process_on(cluster)
        async with serving(await worker_of_its_own(cluster, store, AutorecoveryConfig(copy_bytes_per_s=2000))):
            await until(cluster, lambda: is_moved(cluster, ids[0], "b1"))
            link.cut()
            await cluster.clock.sleep(outage_s)
            link.restore()
            await until_unmarked(cluster)
        for ledger_id in ids:
            assert await is_moved(cluster, ledger_id, "b1")
            assert await version_of(cluster, ledger_id) == 1
        await store.close()

    simulate(scenario)


def test_a_cancelled_worker_gives_its_locks_back_within_five_seconds() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        for _ in range(10):
            await marked(cluster, LONG, "b1")
        worker = worker_on(cluster, AutorecoveryConfig(copy_bytes_per_s=1000))
        async with serving(worker):
            await cluster.clock.sleep(5)
            assert len(worker.status().held) == len(await locked_ids(cluster)) == 10
            stopped_ns = cluster.clock.monotonic_ns()
        assert cluster.clock.monotonic_ns() - stopped_ns < 5e9
        assert await locked_ids(cluster) == []

    simulate(scenario)


def test_nothing_is_taken_while_autorecovery_is_disabled() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        await switches.disable()
        async with serving(worker_on(cluster)):
            ledger_id = await marked(cluster, CLOSED, "b1")
            await cluster.clock.sleep(600)
            assert await marked_ids(cluster) == [ledger_id]
            await switches.enable()
            enabled_ns = cluster.clock.monotonic_ns()
            await until_unmarked(cluster)
            assert cluster.clock.monotonic_ns() - enabled_ns < 1e9
            await switches.disable()
            await cluster.clock.sleep(1)
            await marked(cluster, CLOSED, "b1")
            await cluster.clock.sleep(600)
            assert len(await marked_ids(cluster)) == 1

    simulate(scenario)


# -- failures -------------------------------------------------------------------------------------------------------


def test_a_failed_ledger_is_tried_by_all_workers_together_with_pauses_that_double(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ledger_id = await marked(cluster, CLOSED, "b1")
        tried_s: list[float] = []
        workers, stores = [], []
        run_locked = LedgerTurn.run_locked

        async def noted(turn: LedgerTurn, lock: ReplicationLock) -> LedgerResult:
            tried_s.append(cluster.clock.monotonic_ns() / 1e9)
            return await run_locked(turn, lock)

        monkeypatch.setattr(LedgerTurn, "run_locked", noted)
        for number in range(3):
            store, _ = await process_on(cluster)
            stores.append(store)
            worker = await worker_of_its_own(cluster, store, holder=f"host{number}")
            workers.append(worker)
        async with serving(*workers):
            note = await until_failed(cluster, ledger_id)
            assert (note.reason, note.attempts) == ("NOT_ENOUGH_BOOKIES", 1)
            assert "every writable bookie is already in the ensemble" in note.detail
            await until_failed(cluster, ledger_id, attempts=7)
            pauses = [round(later - earlier) for earlier, later in itertools.pairwise(tried_s)]
            assert len(tried_s) == 7
            assert all(low <= pause <= low + 8 for low, pause in zip((10, 20, 40, 80, 160, 300), pauses, strict=True))
            await cluster.start("b4")
            await until_unmarked(cluster)
        assert await failure_of(cluster, ledger_id) is None
        assert await is_moved(cluster, ledger_id, "b1")
        await asyncio.gather(*(store.close() for store in stores))

    simulate(scenario)
    assert caplog.text.count("is not repaired: ") == 1, "it is logged again only for another reason"


def test_many_ledgers_with_the_same_cause_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ledger_ids = [await marked(cluster, CLOSED, "b1") for _ in range(20)]
        async with serving(worker_on(cluster)):
            for ledger_id in ledger_ids:
                await until_failed(cluster, ledger_id)
            assert caplog.text.count("is not repaired: ") == 1
            await cluster.clock.sleep(301)
            assert "19 more ledgers that are not repaired in 300 s: NOT_ENOUGH_BOOKIES: " in caplog.text

    simulate(scenario)


def test_a_ledger_without_a_copy_is_tried_rarely_and_when_a_bookie_returns() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b3", "b4")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100))
        copies = cluster.copies["b1"]
        await cluster.stop("b1")
        await marks_of(cluster).mark(ledger_id, ["b1", "b2"])
        async with serving(worker_on(cluster)):
            note = await until_failed(cluster, ledger_id)
            assert note.retry_ms - note.last_ms == 3_600_000
            await cluster.clock.sleep(3000)
            assert (await until_failed(cluster, ledger_id)).attempts == 1
            assert await marked_ids(cluster) == [ledger_id]
            await cluster.start("b1")
            cluster.copies["b1"] = copies
            await cluster.clock.sleep(120)
            assert await marked_ids(cluster) == []
        assert not {"b1"} - (await metadata_of(cluster, ledger_id)).bookies()
        assert await is_moved(cluster, ledger_id, "b2")
        assert await failure_of(cluster, ledger_id) is None

    simulate(scenario)


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_mark_is_cleared_if_only_accepted_losses_are_left(*, is_accepted: bool) -> None:
    """d1 and d2 were removed from the cluster, and are still in the first segment."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        metadata = ledger({0: ["d1", "d2", "b1"], 6: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=11, length=100)
        ledger_id = await cluster.store(metadata)
        if is_accepted:
            note = GivenUpNote(written_ms=1, member_since={"d1": 1, "d2": 1})
            await RecoveryNotes(cluster.metadata_store, ROOT).given_up.put(str(ledger_id), note)
        await cluster.stop("b2")
        await marks_of(cluster).mark(ledger_id, ["b2"])
        async with serving(worker_on(cluster)):
            await until(cluster, lambda: is_moved(cluster, ledger_id, "b2"))
            await cluster.clock.sleep(60)
            assert await marked_ids(cluster) == ([] if is_accepted else [ledger_id])
            assert (await failure_of(cluster, ledger_id) is None) is is_accepted

    simulate(scenario)


@pytest.mark.parametrize("is_accepted", [True, False])
@pytest.mark.parametrize("missing", ["b1", "b2"])
def test_a_ledger_is_repaired_without_the_entries_that_were_accepted_as_lost(
    missing: str, *, is_accepted: bool
) -> None:
    """It was closed without lost bookies, which it no longer names; a member is lost, or the copies of one in doubt."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledger_id = await cluster.store(CLOSED)
        for copies in cluster.copies.values():
            for entry_id in (2, 3, 7):
                copies.get(ledger_id, {}).pop(entry_id, None)
        if is_accepted:
            note = GivenUpNote(written_ms=1, member_since={"d1": 1}, closed_without=("d1",), lost=((2, 3), (7, 7)))
            await RecoveryNotes(cluster.metadata_store, ROOT).given_up.put(str(ledger_id), note)
        if missing == "b1":
            await cluster.stop("b1")
        else:
            del cluster.copies["b2"][ledger_id][5]
        await marks_of(cluster).mark(ledger_id, [missing])
        async with serving(worker_on(cluster)):
            await cluster.clock.sleep(60)
        assert await marked_ids(cluster) == ([] if is_accepted else [ledger_id])
        if is_accepted:
            held = cluster.holds("b4" if missing == "b1" else "b2", ledger_id)
            assert sorted(held) == [0, 1, 4, 5, 6, 8, 9]

    simulate(scenario)


def test_a_note_about_a_ledger_that_is_no_longer_marked_is_removed() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ledger_id = await marked(cluster, CLOSED, "b1")
        async with serving(worker_on(cluster)):
            await until_failed(cluster, ledger_id)
            await marks_of(cluster).clear(ledger_id, 0)
            await cluster.clock.sleep(200)
        assert await failure_of(cluster, ledger_id) is None

    simulate(scenario)


# -- placement ------------------------------------------------------------------------------------------------------


async def one_rack(cluster: RepairCluster) -> int:
    """A ledger with both copies in one rack, marked for a repair of its placement."""
    metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
    return await marked(cluster, metadata)


def test_t50_a_copy_is_moved_to_another_rack() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2"})
        ledger_id = await one_rack(cluster)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        (ensemble,) = (await cluster.ensembles(ledger_id)).values()
        assert ensemble in {("b4", "b2"), ("b1", "b4")}, "one index is moved"
        assert cluster.holds("b4", ledger_id) == list(range(10))

    simulate(scenario)


def test_t50_without_another_rack_the_mark_stays_and_is_tried_rarely() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2"})
        await cluster.set_mode("b4", BookieMode.READ_ONLY)
        ledger_id = await one_rack(cluster)
        async with serving(worker_on(cluster)):
            note = await until_failed(cluster, ledger_id)
            await cluster.clock.sleep(3000)
            assert (await until_failed(cluster, ledger_id)).attempts == 1
        assert (note.reason, await marked_ids(cluster)) == ("PLACEMENT", [ledger_id])
        assert await version_of(cluster, ledger_id) == 0
        assert cluster.requests == []

    simulate(scenario)


@pytest.mark.parametrize("has_racks", [True, False])
def test_a_mark_for_placement_is_cleared_where_it_is_not_repaired(has_racks: bool) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        if has_racks:
            await with_racks(cluster, {"b1": "/r1", "b2": "/r1", "b4": "/r2"})
        else:
            await cluster.start("b1", "b2", "b4")
        ledger_id = await one_rack(cluster)
        async with serving(worker_on(cluster, replication=ReplicationConfig(is_placement_repaired=not has_racks))):
            await until_unmarked(cluster)
        assert await version_of(cluster, ledger_id) == 0

    simulate(scenario)


def test_placement_is_repaired_only_in_the_segments_that_need_it() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2", "b5": "/r2"})
        metadata = ledger(
            {0: ["b1", "b4"], 5: ["b1", "b2"], 9: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN, last_entry_id=-1
        )
        ledger_id = await marked(cluster, metadata, entries=3)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        ensembles = await cluster.ensembles(ledger_id)
        assert (ensembles[0], ensembles[9]) == (("b1", "b4"), ("b1", "b2"))
        assert len({"b4", "b5"}.intersection(ensembles[5])) == 1
        assert (await metadata_of(cluster, ledger_id)).state is LedgerState.OPEN

    simulate(scenario)


# -- settings -------------------------------------------------------------------------------------------------------


def test_a_local_worker_copies_only_to_its_own_bookie_and_leaves_other_segments_to_others() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4", "b5")
        config = AutorecoveryConfig(replication_target=ReplicationTarget.LOCAL)
        ids = [await marked(cluster, CLOSED, "b1") for _ in range(5)]
        member_id = await marked(cluster, ledger({0: ["b1", "b4"]}, 2, 2, last_entry_id=9, length=100), "b1")
        async with serving(worker_on(cluster, config, own_bookie="b4")):
            await cluster.clock.sleep(100)
            assert await marked_ids(cluster) == [member_id]
            assert await failure_of(cluster, member_id) is None
            assert await locked_ids(cluster) == []
        assert {await cluster_target(cluster, ledger_id) for ledger_id in ids} == {"b4"}
        async with serving(worker_on(cluster, config, own_bookie="b5")):
            await until_unmarked(cluster)
        assert await cluster_target(cluster, member_id) == "b5"

    simulate(scenario)


async def cluster_target(cluster: RepairCluster, ledger_id: int) -> str:
    """The bookie that took the place of b1."""
    return (await cluster.ensembles(ledger_id))[0][0]


def test_a_local_worker_says_that_its_own_bookie_is_not_registered(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        for _ in range(3):
            await marked(cluster, CLOSED, "b1")
        config = AutorecoveryConfig(replication_target=ReplicationTarget.LOCAL)
        async with serving(worker_on(cluster, config, own_bookie="b5")):
            await cluster.clock.sleep(300)
            assert len(await marked_ids(cluster)) == 3
            await cluster.start("b5")
            await until_unmarked(cluster)

    simulate(scenario)
    assert caplog.text.count("bookie b5, the only one that this worker copies to, is not writable") == 1


def test_a_local_worker_needs_a_bookie_of_its_own() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        with pytest.raises(ConfigurationError, match="replication_target local needs the bookie of this machine"):
            worker_on(cluster, AutorecoveryConfig(replication_target=ReplicationTarget.LOCAL))

    simulate(scenario)


def test_copies_and_rewritten_copies_share_the_byte_budget() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        big = msgspec.structs.replace(CLOSED, last_entry_id=99, length=1000)
        ids = [await marked(cluster, big, "b1") for _ in range(4)]
        size_bytes = sum(map(len, cluster.copies["b1"][ids[0]].values()))
        for ledger_id in ids[:2]:
            del cluster.copies["b1"][ledger_id]
        async with serving(worker_on(cluster, AutorecoveryConfig(copy_bytes_per_s=size_bytes))):
            await until_unmarked(cluster)
        seconds = cluster.clock.monotonic_ns() / 1e9
        assert seconds > 8, "2 good copies are read, 2 x 3 copies compared, and 2 written and read back"

    simulate(scenario)


def test_a_refused_add_is_answered_by_a_move() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledger_id = await marked(cluster, CLOSED, "b2")
        cluster.copies["b2"].clear()
        cluster.refuse("add", "b2", Status.FENCED)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b4", "b3")}

    simulate(scenario)


# -- cost -----------------------------------------------------------------------------------------------------------


def daemon(role: str) -> DaemonNote:
    return DaemonNote(bookie_id="b", host="h", pid=1, role=role, started_ms=0, written_ms=0, is_auditor=False)


@pytest.mark.parametrize(("workers_count", "ledgers"), [(4, 400), pytest.param(20, 10_000, marks=pytest.mark.battery)])
def test_t49_many_workers_spend_few_operations_per_ledger(workers_count: int, ledgers: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4", "b5")
        tiny = msgspec.structs.replace(CLOSED, last_entry_id=0, length=10)
        for _ in range(ledgers):
            await marked(cluster, tiny, "b1")
        workers: list[Worker] = []
        stores: list[CountingStore] = []
        for number in range(workers_count):
            store = CountingStore((await process_on(cluster))[0])
            await RecoveryNotes(store._store, ROOT).daemons.add(daemon_key(store.session_id), daemon("both"))
            workers.append(await worker_of_its_own(cluster, store, holder=f"host{number}"))
            stores.append(store)
        before = [store.counts.total() for store in stores]
        async with serving(*workers):
            await until_unmarked(cluster, every_s=1.0)
            total = sum(store.counts.total() for store in stores) - sum(before)
        assert sum(worker.status().ledgers_repaired for worker in workers) >= ledgers
        assert total <= 15 * ledgers, {kind: sum(store.counts[kind] for store in stores) for kind in stores[0].counts}
        await asyncio.gather(*(store.close() for store in stores))

    simulate(scenario)


def test_a_share_leaves_no_ledger_to_daemons_that_only_audit() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ids = [await marked(cluster, CLOSED, "b1") for _ in range(40)]
        notes = RecoveryNotes(cluster.metadata_store, ROOT)
        await notes.daemons.add(daemon_key(cluster.metadata_store.session_id), daemon("worker"))
        for number in range(3):
            await notes.daemons.add(f"{number}", daemon("auditor"))
        await cluster.metadata_store.create(f"{notes.daemons.path}/3", b"junk")
        worker = worker_on(cluster)
        is_ours = await worker._listing._share()
        assert all(map(is_ours, ids))
        await notes.daemons.add("4", daemon("both"))
        is_ours = await worker._listing._share()
        assert 5 < sum(map(is_ours, ids)) < 35

    simulate(scenario)


def test_an_idle_worker_costs_next_to_nothing_and_begins_at_once() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        store = CountingStore((await process_on(cluster))[0])
        stuck_id = await marked(cluster, CLOSED, "b1")
        other, _ = await process_on(cluster)
        assert await ReplicationLocks(other, ROOT, "java-host").acquire(stuck_id)
        async with serving(await worker_of_its_own(cluster, store)):
            await cluster.clock.sleep(600)
            with store.counted() as counts:
                await cluster.clock.sleep(3600)
            assert counts.total() < 3600 / 2, counts
            for _ in range(3):
                await cluster.clock.sleep(600)
                ledger_id = await cluster.store(CLOSED)
                await marks_of(cluster).mark(ledger_id, ["b1"])
                marked_ns = cluster.clock.monotonic_ns()
                await until(cluster, lambda ledger_id=ledger_id: is_moved(cluster, ledger_id, "b1"), 0.01)  # type: ignore[misc]
                assert cluster.clock.monotonic_ns() - marked_ns < 0.5e9
        await asyncio.gather(store.close(), other.close())

    simulate(scenario)


@pytest.mark.parametrize("tree", [LedgerTree.FLAT, LedgerTree.LONG_HIERARCHICAL])
def test_without_layout_a_ledger_that_is_not_found_is_not_taken_as_deleted(tree: LedgerTree) -> None:
    """LAYOUT is lost, and the metadata URI names another layout than that of the ledgers."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledger_id = await marked(cluster, CLOSED, "b3", entries=10)
        await cluster.stop("b3")
        await cluster.metadata_store.delete(Paths(ROOT).layout)
        store, _ = await process_on(cluster)
        async with serving(await worker_of_its_own(cluster, store, tree=tree)):
            notes = RecoveryNotes(store, ROOT).failures

            async def is_noted() -> bool:
                return await notes.find(str(ledger_id)) is not None

            await until(cluster, is_noted)
            note = await notes.find(str(ledger_id))
            assert note is not None
            assert f"{ROOT}/LAYOUT is missing" in note.value.detail
            assert await marked_ids(cluster) == [ledger_id]
        async with serving(worker_on(cluster)):  # it uses the right layout
            await until_unmarked(cluster)
        assert "b3" not in (await metadata_of(cluster, ledger_id)).bookies()

    simulate(scenario)


# -- racks without a bookie, and notes of a wrong clock ----------------------------------------------------------------


async def rack_died(cluster: RepairCluster, metadata: LedgerMetadata, config: PlacementConfig | None = None) -> int:
    """b4 was the only bookie of its rack."""
    await with_racks(cluster, {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2"}, config=config)
    ledger_id = await marked(cluster, metadata, "b4")
    await cluster.stop("b4")
    return ledger_id


ENFORCED = PlacementConfig(is_enforced=True)
TWO_RACKS = ledger({0: ["b1", "b4"]}, 2, 2, last_entry_id=9, length=100)


def test_the_copies_of_a_rack_that_died_go_to_another_rack_and_back_when_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await rack_died(cluster, TWO_RACKS)
        worker = worker_on(cluster)
        async with serving(worker):
            await until_unmarked(cluster)
            assert "b4" not in (await cluster.ensembles(ledger_id))[0]
            assert worker.status().copies_breaking_placement == 1
            await cluster.start("b4")
            await cluster.clock.sleep(60)
            await marks_of(cluster).mark(ledger_id, ())  # the auditor's check asks for a repair of the placement
            await until_unmarked(cluster)
            assert "b4" in (await cluster.ensembles(ledger_id))[0]
            version = await version_of(cluster, ledger_id)
            await marks_of(cluster).mark(ledger_id, ())
            await until_unmarked(cluster)
            assert await version_of(cluster, ledger_id) == version, "nothing goes back and forth"
            assert worker.status().copies_breaking_placement == 1

    simulate(scenario)
    assert "no bookie kept the placement rules for its lost copies: racks per write quorum: " in caplog.text


def test_an_enforced_number_of_racks_is_not_relaxed_and_each_reason_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await rack_died(cluster, TWO_RACKS, ENFORCED)
        async with serving(worker_on(cluster)):
            note = await until_failed(cluster, ledger_id, attempts=6)
        assert note.reason == "PLACEMENT"
        assert "best-effort" not in note.detail
        assert await version_of(cluster, ledger_id) == 0

    simulate(scenario)
    assert caplog.text.count("is not repaired") == 1


def test_a_ledger_that_can_never_keep_the_rules_is_repaired_if_it_gets_no_worse(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two racks and (3, 2, 2): one of the write quorums is in one rack, whichever bookies are chosen."""

    async def scenario(cluster: RepairCluster) -> None:
        metadata = ledger({0: ["b1", "b4", "b2"]}, 2, 2, last_entry_id=9, length=100)
        await with_racks(cluster, {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2"}, config=ENFORCED)
        ledger_id = await marked(cluster, metadata, "b2")
        await cluster.stop("b2")
        worker = worker_on(cluster)
        async with serving(worker):
            await until_unmarked(cluster)
        assert (await cluster.ensembles(ledger_id))[0] == ("b1", "b4", "b3")
        assert worker.status().copies_breaking_placement == 0

        other_id = await cluster.store(msgspec.structs.replace(metadata))
        report = await cluster.recover("b2")
        assert report.failures == ()
        assert (await cluster.ensembles(other_id))[0] == ("b1", "b4", "b3")

    simulate(scenario)


@pytest.mark.parametrize("wrong_by_days", [7, -7])
def test_a_note_of_a_host_with_a_wrong_clock_does_not_stop_the_repairs(wrong_by_days: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        ledger_id = await marked(cluster, CLOSED, "b1")
        now_ms, week_ms = cluster.clock.now_ms(), 7 * 86_400_000
        last_ms = now_ms + week_ms if wrong_by_days > 0 else now_ms
        note = FailedLedgerNote(
            worker="other",
            attempts=1,
            first_ms=last_ms,
            last_ms=last_ms,
            retry_ms=now_ms + week_ms,
            reason="LOST",
            detail="",
        )
        await RecoveryNotes(cluster.metadata_store, ROOT).failures.put(str(ledger_id), note)
        began_ns = cluster.clock.monotonic_ns()
        async with serving(worker_on(cluster)):
            await cluster.clock.sleep(2 * 3600)
            await until_unmarked(cluster, every_s=60)
        assert cluster.clock.monotonic_ns() - began_ns < 86_400 * 10**9

    simulate(scenario)
