"""The auditor's periodic checks in virtual time: copies, their number, placement. Source: replication section 14."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import msgspec
import pytest

from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.metadata_check import ReplicaCensus
from bkctl.runtime.errors import MetadataError
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import CopyCheckNote, LedgerCount, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.judge.fragments import segment_entries
from tests.runtime.replication.samples import ledger, random_ledger
from tests.sim.autorecovery_cluster import serving, worker_on
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate
from tests.sim.test_auditor import auditing, losses, marks

BOOKIES = ["b1", "b2", "b3"]
HOUR = AutorecoveryConfig(check_period_s=3600, lost_bookie_delay_s=60)


async def triple(cluster: RepairCluster, last_entry_id: int = 9) -> int:
    """A closed ledger with three copies of each entry."""
    return await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=last_entry_id, length=100))


async def last_check_ms(cluster: RepairCluster, check: PeriodicCheck = PeriodicCheck.ALL_LEDGERS) -> int | None:
    return await ReplicationSwitches(cluster.metadata_store, ROOT).check_time_ms(check)


async def progress(cluster: RepairCluster) -> CopyCheckNote:
    note = await RecoveryNotes(cluster.metadata_store, ROOT).copy_check.find()
    assert note is not None
    return note


def note_reads(cluster: RepairCluster) -> dict[int, list[float]]:
    """When each ledger is read from b1."""
    times: dict[int, list[float]] = {}

    def note(request: BookieRequest) -> Status | None:
        if (request.kind, request.bookie_id) == ("read", "b1"):
            times.setdefault(request.ledger_id, []).append(cluster.clock.monotonic_ns() / 1e9)
        return None

    cluster.rules.append(note)
    return times


def test_missing_damaged_and_corrupt_copies_are_marked_and_the_stamp_is_the_end_of_the_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        good, missing, corrupt, damaged, inside = [await triple(cluster) for _ in range(5)]
        del cluster.copies["b2"][missing][9]
        cluster.copies["b3"][corrupt][0] = cluster.copies["b3"][good][0]
        cluster.rules.append(
            lambda request: (
                Status.IO_ERROR
                if (request.bookie_id, request.ledger_id, request.entry_id) == ("b1", damaged, 0)
                else None
            )
        )
        del cluster.copies["b2"][inside][5]
        began_ms = cluster.clock.now_ms()
        async with auditing(cluster, HOUR) as auditor:
            await cluster.clock.sleep(2000)
            assert await last_check_ms(cluster) is None
            await cluster.clock.sleep(1500)
            assert await marks(cluster) == {missing: ("b2",), corrupt: ("b3",), damaged: ("b1",)}
            assert auditor.copies.progress is not None
            result = auditor.copies.progress.last
            assert result is not None
            assert (result.ledgers, result.copies, result.copies_bad, result.copies_unknown) == (5, 30, 3, 0)
            assert result.marked == LedgerCount(3, (missing, corrupt, damaged))
            ended_ms = await last_check_ms(cluster)
            assert ended_ms == auditor.copies.progress.last_ended_ms
            assert began_ms <= auditor.copies.progress.began_ms - 3_600_000 < began_ms + 1000
        assert f"ledger {missing} has bad copies: b2 (no such entry)" in caplog.text
        assert {request.entry_id for request in cluster.requests} == {0, 9}  # the entry inside is not in the sample

    simulate(scenario)


def test_the_status_shows_the_time_of_the_result_and_not_of_a_run_that_had_nothing_to_do() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await triple(cluster)
        config = AutorecoveryConfig(check_period_s=3600, replicas_check_interval_s=3600)
        async with auditing(cluster, config) as auditor:
            await cluster.clock.sleep(3599)
            for lane, check, result in (
                (auditor.copies.lane, PeriodicCheck.ALL_LEDGERS, "all ledgers checked: 1 ledger, 6 copies, 0 bad"),
                (auditor.replicas.lane, PeriodicCheck.REPLICAS, "1 ledger: 0 with entries that have no live copy"),
            ):
                ended_ms = await last_check_ms(cluster, check)
                assert ended_ms is not None
                assert lane.status.result.startswith(result)
                assert lane.status.succeeded_ms is not None
                assert lane.status.succeeded_ms > ended_ms + 600_000
                assert lane.status.result_ms == ended_ms

    simulate(scenario)


def test_a_share_of_the_entries_finds_what_the_ends_do_not_show() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await triple(cluster)
        del cluster.copies["b2"][ledger_id][5]
        async with auditing(cluster, AutorecoveryConfig(check_entries_percentage=100)):
            await cluster.clock.sleep(60)
            assert await marks(cluster) == {ledger_id: ("b2",)}

    simulate(scenario)


@pytest.mark.parametrize(
    "status", [Status.TIMEOUT, Status.UNAVAILABLE, Status.TOO_MANY_REQUESTS, Status.UNKNOWN_LEDGER_STATE]
)
def test_unknown_is_not_missing(status: Status) -> None:
    """A bookie that is overloaded, silent, or may lack entries after a crash proves nothing (bk#1197)."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for _ in range(5):
            await triple(cluster)
        cluster.refuse("read", "b2", status)
        async with auditing(cluster, HOUR) as auditor:
            await cluster.clock.sleep(3500)
            assert await marks(cluster) == {}
            assert await losses(cluster) == {}
            note = auditor.copies.progress
            assert note is not None
            assert (note.found.ledgers, note.found.copies_unknown, note.found.copies_bad) == (5, 10, 0)
            assert await last_check_ms(cluster) is None

    simulate(scenario)


def test_a_copy_that_is_there_at_the_second_look_is_not_marked() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await triple(cluster)
        cluster.refuse("read", "b2", Status.NO_SUCH_ENTRY, times=2)
        async with auditing(cluster, HOUR) as auditor:
            await cluster.clock.sleep(60)
            assert await marks(cluster) == {}
            assert len(cluster.asked("b2")) == 4
            note = auditor.copies.progress
            assert note is not None
            assert note.last is not None
            assert note.last.copies_bad == 0

    simulate(scenario)


def test_copies_of_a_lost_bookie_are_skipped_without_a_request() -> None:
    """Its copies are marked after its delay by the look at the bookies, not by this check."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await triple(cluster)
        await cluster.stop("b3")
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(40)
            assert (await progress(cluster)).repeats == 1
            assert (await progress(cluster)).found.copies_unknown == 2
            assert await marks(cluster) == {}
            assert cluster.asked("b3") == []
            await cluster.clock.sleep(40)
            assert await marks(cluster) == {ledger_id: ("b3",)}

    simulate(scenario)


def test_the_open_segment_is_left_to_its_writer() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES, 5: BOOKIES}, 3, 2, state=LedgerState.OPEN)
        ledger_id = await cluster.store(metadata, entries=3)
        del cluster.copies["b1"][ledger_id][6]
        async with auditing(cluster, AutorecoveryConfig(check_entries_percentage=100)):
            await cluster.clock.sleep(60)
            assert await marks(cluster) == {}
            assert sorted(cluster.asked("b1")) == [0, 1, 2, 3, 4]
            assert all(request.kind == "read" for request in cluster.requests)

    simulate(scenario)


def test_entries_that_no_bookie_has_are_noted_as_lost_until_they_are_back() -> None:
    """Java's checker takes such a ledger for one that was never written, and so for healthy."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await triple(cluster, last_entry_id=0)
        kept = {bookie_id: cluster.copies[bookie_id].pop(ledger_id) for bookie_id in BOOKIES}
        async with auditing(cluster, HOUR) as auditor:
            await cluster.clock.sleep(60)
            assert await losses(cluster) == {ledger_id: ("b1", "b2", "b3")}
            assert await marks(cluster) == {}
            auditor.trigger()  # a pass over the metadata keeps the note
            await cluster.clock.sleep(60)
            assert list(await losses(cluster)) == [ledger_id]
            for bookie_id, entries in kept.items():
                cluster.copies[bookie_id][ledger_id] = entries
            await cluster.clock.sleep(3600)
            assert await losses(cluster) == {}

    simulate(scenario)


def test_the_ledgers_are_spread_over_the_period_and_the_next_round_waits_for_its_time() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(12)]
        times = note_reads(cluster)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(3599)
            assert sorted(times) == ids
            firsts = [times[each][0] for each in ids]
            assert firsts == pytest.approx([300 * number for number in range(12)], abs=5)
            await cluster.clock.sleep(320)
            assert [round(each) for each in times[ids[0]]] == [0, 0, 3600, 3600]
            assert len(times[ids[2]]) == 2

    simulate(scenario)


def test_a_round_ends_although_ledgers_are_created_all_the_time() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(4)]
        times = note_reads(cluster)
        async with auditing(cluster, HOUR):
            for _ in range(360):
                await cluster.clock.sleep(10)
                await triple(cluster)
            assert await last_check_ms(cluster) is not None
            assert sorted(times) == ids

    simulate(scenario)


def test_a_successor_goes_on_where_the_auditor_was() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(12)]
        times = note_reads(cluster)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(1600)
        assert sorted(times) == ids[:6]
        await cluster.clock.sleep(100)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(1800)
            assert {len(each) for each in times.values()} == {2}
            assert sorted(times) == ids
            assert (await progress(cluster)).last_ended_ms == await last_check_ms(cluster)

    simulate(scenario)


def test_a_check_by_a_java_auditor_counts() -> None:
    """The node with the time of the last check is shared: no round begins, and no stamp is lost."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(4)]
        times = note_reads(cluster)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(1000)
        assert sorted(times) == ids[:2]
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        await switches.set_check_time_ms(PeriodicCheck.ALL_LEDGERS, cluster.clock.now_ms())
        times.clear()
        async with auditing(cluster, HOUR) as auditor:
            await cluster.clock.sleep(10)
            assert auditor.copies.progress is not None
            assert auditor.copies.progress.began_ms == await last_check_ms(cluster)
            assert sorted(times) == ids[:1]  # the next round begins with the first ledger

    simulate(scenario)


def test_while_autorecovery_is_disabled_nothing_is_read_and_no_time_is_stored() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(12)]
        times = note_reads(cluster)
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(400)
            await switches.disable()
            await cluster.clock.sleep(5000)
            assert sorted(times) == ids[:2]
            assert await last_check_ms(cluster) is None
            await switches.enable()
            await cluster.clock.sleep(1)
            assert sorted(times) == ids[:3]
            await cluster.clock.sleep(3600)
            assert sorted(times) == ids
            assert await last_check_ms(cluster) is not None

    simulate(scenario)


def test_what_was_found_while_autorecovery_was_being_disabled_is_found_again() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await triple(cluster)
        del cluster.copies["b2"][ledger_id][9]
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        async with auditing(cluster, HOUR) as auditor:
            while not cluster.asked("b2"):
                await cluster.clock.sleep(0.001)
            await switches.disable()
            await cluster.clock.sleep(60)
            assert await marks(cluster) == {}
            assert auditor.copies.progress is not None
            assert auditor.copies.progress.last_ledger_id < ledger_id
            await switches.enable()
            await cluster.clock.sleep(60)
            assert await marks(cluster) == {ledger_id: ("b2",)}

    simulate(scenario)


def test_a_bookie_that_dies_during_a_check_is_marked_at_once_and_the_check_goes_on() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(12)]
        config = AutorecoveryConfig(check_period_s=60, lost_bookie_delay_s=0)
        async with auditing(cluster, config):
            await cluster.clock.sleep(20)
            await cluster.stop("b3")
            await cluster.clock.sleep(2)
            assert await marks(cluster) == dict.fromkeys(ids, ("b3",))
            assert await last_check_ms(cluster) is None
            await cluster.clock.sleep(38)
            assert (await progress(cluster)).found.ledgers == len(ids)
            assert await last_check_ms(cluster) is None  # copies of b3 are unknown

    simulate(scenario)


def test_ledgers_with_unreadable_metadata_are_passed_over_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        bad, missing = await triple(cluster), await triple(cluster)
        await cluster.metadata_store.set(cluster.ports.ledgers.path(bad), b"junk", -1)
        del cluster.copies["b2"][missing][9]
        async with auditing(cluster, AutorecoveryConfig(check_period_s=60)) as auditor:
            await cluster.clock.sleep(50)
            assert await marks(cluster) == {missing: ("b2",)}
            copies, replicas, placement = auditor.copies.progress, auditor.replicas.result, auditor.placement.result
            assert copies is not None
            assert replicas is not None
            assert placement is not None
            assert copies.found.unreadable == replicas.unreadable == placement.unreadable == LedgerCount(1, (bad,))
            assert (replicas.ledgers, placement.ledgers) == (1, 1)
        assert f"ledger {bad} was not checked" in caplog.text

    simulate(scenario)


def test_the_bytes_per_second_are_limited() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for _ in range(40):
            await triple(cluster, last_entry_id=99)
        config = AutorecoveryConfig(check_period_s=1, check_bytes_per_s=20_000, check_entries_percentage=100)
        async with auditing(cluster, config) as auditor:
            await cluster.clock.sleep(20)
            note = auditor.copies.progress
            assert note is not None
            assert note.last is None
            await cluster.clock.sleep(15)
            note = auditor.copies.progress
            assert note is not None
            assert note.last is not None
            assert note.last_ended_ms is not None
            assert note.last.bytes_read / (note.last_ended_ms / 1000 - 1_700_000_000) == pytest.approx(20_000, rel=0.1)

    simulate(scenario)


def test_the_census_counts_by_the_entries_with_the_fewest_copies() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "b4")
        await cluster.start("b5", mode=BookieMode.READ_ONLY)
        full = await triple(cluster)
        single = await cluster.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=100))
        empty = await cluster.store(ledger({0: ["gone", "lost"]}, 2, 2, last_entry_id=-1))
        two = await cluster.store(ledger({0: ["b1", "b5", "gone"]}, 3, 2, last_entry_id=9, length=100))
        one = await cluster.store(ledger({0: BOOKIES, 5: ["b1", "gone", "lost"]}, 3, 2, last_entry_id=9, length=100))
        none = await cluster.store(ledger({0: ["gone", "lost"]}, 2, 1, last_entry_id=9, length=100))
        accepted = await cluster.store(ledger({0: ["gone", "lost"]}, 2, 1, last_entry_id=9, length=100))
        note = GivenUpNote(written_ms=1, member_since={"gone": None, "lost": None})
        await RecoveryNotes(cluster.metadata_store, ROOT).given_up.put(str(accepted), note)
        async with auditing(cluster, AutorecoveryConfig(replicas_check_interval_s=3600)) as auditor:
            await cluster.clock.sleep(10)
            found = auditor.replicas.result
            assert found is not None
            assert found.ledgers == len({full, single, empty, two, one, none, accepted})
            assert found.no_copy.first_ids == (none,)
            assert found.one_copy.first_ids == (one,)
            assert found.below_ack_quorum.first_ids == (one, none)
            assert found.below_write_quorum.first_ids == (two, one, none)
            stamp = await last_check_ms(cluster, PeriodicCheck.REPLICAS)
            assert stamp == found.ended_ms
        async with auditing(cluster, AutorecoveryConfig(replicas_check_interval_s=3600)) as auditor:
            await cluster.clock.sleep(1800)
            assert auditor.replicas.result == found  # a successor knows the last result, and waits
            await cluster.clock.sleep(1800)
            again = auditor.replicas.result
            assert again is not None
            assert found.ended_ms + 3_600_000 <= again.ended_ms < found.ended_ms + 3_610_000

    simulate(scenario)


class _ReadOnlyStore:
    """A session that cannot write until it is told that it can."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.is_read_only = True

    def __getattr__(self, name: str) -> object:
        if self.is_read_only and name in {"set", "create", "write_all"}:
            raise MetadataError("read-only")
        return getattr(self._store, name)


def test_a_check_is_not_repeated_because_its_result_could_not_be_stored() -> None:
    """While ZooKeeper is read-only, each retry would read the metadata of all ledgers."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await triple(cluster)
        read_only = _ReadOnlyStore(cluster.metadata_store)
        store = cast("MetadataStore", read_only)
        notes = RecoveryNotes(store, ROOT)
        census = ReplicaCensus(cluster.ports, store, AutorecoveryConfig())
        counting = asyncio.ensure_future(census.lane.serve())
        await cluster.clock.sleep(100)
        assert census.lane.status.failures > 3
        assert census.lane.status.error == "read-only"
        found = census.result
        assert found is not None
        await cluster.ports.ledgers.delete(ledger_id)
        read_only.is_read_only = False
        await cluster.clock.sleep(100)
        assert census.result == found == await notes.replica_count.find()
        assert await last_check_ms(cluster, PeriodicCheck.REPLICAS) == found.ended_ms
        counting.cancel()
        await asyncio.wait((counting,))

    simulate(scenario)


@pytest.mark.parametrize("name", ["copies", "replicas", "placement"])
def test_a_check_can_be_switched_off(name: str) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        fields = {"copies": "check_period_s", "replicas": "replicas_check_interval_s"}
        changes = {fields.get(name, "placement_check_interval_s"): 0.0}
        config = msgspec.structs.replace(AutorecoveryConfig(), **changes)
        async with auditing(cluster, config) as auditor:
            lanes = {lane.status.name for lane in auditor.lanes}
            assert {"copies", "replicas", "placement"} - lanes == {name}

    simulate(scenario)


def test_what_the_check_finds_a_worker_writes_again_in_place() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "b4")
        missing, corrupt = await triple(cluster), await triple(cluster)
        whole = dict(cluster.copies["b3"][corrupt])
        del cluster.copies["b2"][missing][9]
        cluster.copies["b3"][corrupt][0] = cluster.copies["b3"][missing][0]
        async with auditing(cluster, AutorecoveryConfig(check_period_s=60)), serving(worker_on(cluster)):
            await cluster.clock.sleep(59)
            assert cluster.holds("b2", missing) == list(range(10))
            assert cluster.copies["b3"][corrupt] == whole
            assert await marks(cluster) == {}
        for ledger_id in (missing, corrupt):
            assert (await cluster.ports.ledgers.read(ledger_id)).version == 0
        assert cluster.copies["b4"] == {}

    simulate(scenario)


@pytest.mark.parametrize("outage_s", [5, 40])
def test_an_outage_of_zookeeper_only_delays_the_check(outage_s: int) -> None:
    """The session ends in the longer one; nothing is marked because registrations cannot be read."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(12)]
        times = note_reads(cluster)
        auditor = Auditor(cluster.ports, cluster.metadata_store, HOUR)
        serving_auditor = asyncio.ensure_future(auditor.serve())
        await cluster.clock.sleep(599)
        cluster.link.cut()
        await cluster.clock.sleep(outage_s)
        cluster.link.restore()
        await cluster.clock.sleep(3600 - 600 - outage_s)
        assert sorted(times) == ids
        assert await last_check_ms(cluster) is not None
        assert await marks(cluster) == {}
        assert not serving_auditor.done()
        serving_auditor.cancel()
        await asyncio.wait((serving_auditor,))

    simulate(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_every_lost_copy_is_found_and_nothing_else(seed: int) -> None:
    """Any ledgers, any copies gone, one bookie down: an independent count says what must be marked and noted."""

    async def scenario(cluster: RepairCluster) -> None:
        source = random.Random(seed)
        names = [f"b{number}" for number in range(1, 7)]
        await cluster.start(*names[:5])
        expected_marks, expected_losses = dict[int, tuple[str, ...]](), set[int]()
        for _ in range(40):
            metadata = random_ledger(source, names)
            ledger_id = await cluster.store(metadata, entries=2)
            bad, is_lost = set[str](), False
            for index, segment in enumerate(metadata.segments):
                if index == len(metadata.segments) - 1 and not metadata.is_closed:
                    continue
                span = segment_entries(metadata, index)
                for entry_id in range(span.first_entry_id, span.last_entry_id + 1):
                    members = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
                    bookies = {segment.ensemble[member] for member in members}
                    gone = {each for each in bookies if each in cluster.copies and source.random() < 0.02}
                    for bookie_id in gone:
                        del cluster.copies[bookie_id][ledger_id][entry_id]
                    is_lost |= gone == bookies
                    bad |= set() if gone == bookies else gone
            if bad:
                expected_marks[ledger_id] = tuple(sorted(bad))
            if is_lost:
                expected_losses.add(ledger_id)
        config = AutorecoveryConfig(check_period_s=60, check_entries_percentage=100, lost_bookie_delay_s=600)
        async with auditing(cluster, config):
            await cluster.clock.sleep(120)
            assert await marks(cluster) == expected_marks
            assert set(await losses(cluster)) == expected_losses
        assert expected_marks

    simulate(scenario, seed=seed)
