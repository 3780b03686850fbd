"""``bkctl status`` in virtual time: whether ledgers reference a bookie that is down is known only if all were read."""

from __future__ import annotations

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.cluster.operation_lock import OperationHolder, lock_bookies
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, RecoveryNotes
from bkctl.runtime.replication.judge.cluster_facts import ClusterFacts, DownReferences
from bkctl.runtime.replication.judge.cluster_status import status_findings
from bkctl.runtime.replication.judge.no_live_copy import NoLiveCopy
from bkctl.runtime.replication.survey.status import StatusLimits, StatusSurvey
from bkctl.storage.severity import Severity
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate
from tests.sim.test_auditor import auditing

DOWN = "b9:3181"


async def read(cluster: RepairCluster, limits: StatusLimits | None = None) -> ClusterFacts:
    store = cluster.metadata_store

    async def open_them() -> LedgerStore:
        return await open_ledger_store(store, ROOT, LedgerTree.HIERARCHICAL)

    limits = limits or StatusLimits()
    survey = StatusSurvey(store, ROOT, open_them, cluster.ports.bookies, cluster.clock, limits)
    return await survey.read()


async def references(cluster: RepairCluster, limits: StatusLimits | None = None) -> DownReferences:
    found = (await read(cluster, limits)).references
    assert found is not None
    return found


async def start(cluster: RepairCluster) -> None:
    """Two bookies that run, and one that is gone."""
    await cluster.start("b1:3181", "b2:3181")
    await cluster.metadata_store.create(CookieStore(cluster.metadata_store, ROOT).path(DOWN), b"", make_parents=True)


def pair(*ensemble: str) -> LedgerMetadata:
    return ledger({0: list(ensemble)}, 2, 2, last_entry_id=0, length=10)


def test_a_complete_scan_proves_what_is_referenced() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        for _ in range(20):
            await cluster.store(pair("b1:3181", "b2:3181"))
        found = await references(cluster)
        assert (found.ledgers, found.why_unknown, found.unreferenced) == (20, None, frozenset({DOWN}))
        await cluster.store(pair("b1:3181", DOWN))
        found = await references(cluster)
        assert (found.ledgers, found.why_unknown, found.unreferenced) == (21, None, frozenset())
        assert found.referenced == {DOWN}

    simulate(scenario)


def test_no_recovery_is_advised_that_has_nowhere_to_copy_to() -> None:
    """Both bookies that run have copies of each ledger; a third one is started, or added."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        await cluster.store(ledger({0: ["b1:3181", "b2:3181", DOWN]}, 2, 2, last_entry_id=5, length=10))
        found = {each.part: each for each in status_findings(await read(cluster))}
        stop, finding = found["writers_stop"], found["bookies_down"]
        assert (stop.severity, stop.command) == (Severity.CRITICAL, f"bkctl bookie show {DOWN}")
        assert stop.sentence == (
            f"writers stop: 2 bookies are writable, and ledgers with 3, like many here, cannot be created; start {DOWN}"
        )
        assert finding.sentence.endswith(
            f"; too few other bookies are writable to take the copies: start {DOWN}, or add a bookie"
        )
        assert finding.command == f"bkctl bookie show {DOWN}"
        await cluster.start("b3:3181")
        finding = {each.part: each for each in status_findings(await read(cluster))}["bookies_down"]
        assert (finding.sentence, finding.command) == (
            f"bookie {DOWN} is not registered; nothing repairs ledgers that still reference {DOWN}",
            f"bkctl recover failed-bookie {DOWN}",
        )
        await cluster.store(ledger({0: ["b1:3181", "b2:3181", "b3:3181", DOWN]}, 2, 2, last_entry_id=5, length=10))
        finding = {each.part: each for each in status_findings(await read(cluster))}["bookies_down"]
        assert finding.command == f"bkctl recover failed-bookie {DOWN}"
        assert finding.sentence.endswith(
            f"; too few other bookies are writable to take the copies of some ledgers: start {DOWN}, or add a bookie"
        )

    simulate(scenario)


def test_no_recovery_is_advised_if_no_ledger_has_both_a_live_copy_and_enough_bookies() -> None:
    """One ledger has a bookie to copy to and no copy, the other one copies and too few bookies to copy to."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        gone = "b8:3181"
        await cluster.store(pair(DOWN, gone))
        await cluster.store(ledger({0: ["b1:3181", gone, DOWN]}, 3, 2, last_entry_id=5, length=10))
        finding = {each.part: each for each in status_findings(await read(cluster))}["bookies_down"]
        assert finding.command == f"bkctl bookie show {DOWN}"
        await cluster.start("b3:3181")
        finding = {each.part: each for each in status_findings(await read(cluster))}["bookies_down"]
        assert finding.command == f"bkctl recover failed-bookie {gone} {DOWN}"

    simulate(scenario)


def test_the_scan_is_short_once_all_lost_bookies_were_named() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        for _ in range(300):
            await cluster.store(pair("b1:3181", DOWN))
        found = await references(cluster)
        assert (found.ledgers, found.why_unknown, found.referenced) == (300, None, frozenset({DOWN}))
        assert found.no_live_copy == NoLiveCopy()
        found = await references(cluster, StatusLimits(copies_s=0.02))
        assert found.ledgers < 300
        assert (found.why_unknown, found.referenced, found.no_live_copy.is_exact) == (None, frozenset({DOWN}), False)

    simulate(scenario)


def test_a_scan_that_was_cut_off_does_not_say_that_all_ledgers_have_a_live_copy() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        for _ in range(300):
            await cluster.store(pair("b1:3181", DOWN))
        for limits, is_known in ((None, True), (StatusLimits(copies_s=0.02), False)):
            parts = {each.part: each for each in status_findings(await read(cluster, limits))}
            assert ("no_live_copy_unknown" not in parts) is is_known
        unknown = parts["no_live_copy_unknown"]
        assert unknown.sentence.startswith("it is not known yet whether ledgers have no live copy: only ")
        assert (unknown.severity, unknown.command) == (Severity.WARNING, "bkctl audit")

    simulate(scenario)


def test_which_ledgers_without_a_live_copy_are_not_closed() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        opened = await cluster.store(ledger({0: [DOWN]}, 1, 1, state=LedgerState.OPEN))
        fenced = await cluster.store(ledger({0: [DOWN]}, 1, 1, state=LedgerState.IN_RECOVERY))
        found = (await references(cluster)).no_live_copy
        assert (found.first_ids, found.open_ids) == ((opened, fenced), (opened, fenced))
        closed = await cluster.store(ledger({0: [DOWN]}, 1, 1, last_entry_id=0, length=10))
        found = (await references(cluster)).no_live_copy
        assert (set(found.first_ids), set(found.open_ids)) == ({opened, fenced, closed}, {opened, fenced})

    simulate(scenario)


def test_ledgers_without_a_live_copy_and_what_to_start() -> None:
    """A bookie that has left the cluster cannot be started: what it had is not counted."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        gone = "b8:3181"
        lost = [await cluster.store(pair(DOWN, gone)) for _ in range(2)]
        await cluster.store(pair("b1:3181", DOWN))
        await cluster.store(ledger({0: [gone]}, 1, 1, last_entry_id=0, length=10))
        found = (await references(cluster)).no_live_copy
        assert found == NoLiveCopy(ledgers=2, first_ids=tuple(lost), to_start=((DOWN,),))
        findings = {each.part: each for each in status_findings(await read(cluster))}
        assert findings["no_live_copy"].sentence == f"2 ledgers have no live copy; start {DOWN}"
        await cluster.store(ledger({0: ["b1:3181", gone, DOWN]}, 2, 2, last_entry_id=5, length=10))
        findings = {each.part: each for each in status_findings(await read(cluster))}
        assert findings["no_live_copy"].sentence == f"3 ledgers have entries without a live copy; start {DOWN}"

    simulate(scenario)


def test_a_recovery_needs_a_ledger_with_a_live_copy_of_each_entry() -> None:
    """One segment without a live copy is left as it is; another one of the same ledger is recovered."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        await cluster.start("b3:3181")
        gone = "b8:3181"
        await cluster.store(pair(DOWN, gone))
        assert not (await references(cluster)).has_source
        finding = {each.part: each for each in status_findings(await read(cluster))}["bookies_down"]
        assert finding.command is not None
        assert finding.command.endswith(f" --accept-loss {gone} --accept-loss {DOWN} --from-file lost-ledgers")
        await cluster.store(ledger({0: [DOWN, gone], 5: ["b1:3181", DOWN]}, 2, 2, last_entry_id=9, length=10))
        assert (await references(cluster)).has_source

    simulate(scenario)


def test_a_ledger_that_cannot_be_read_may_reference_it() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        ledger_id = await cluster.store(pair("b1:3181", "b2:3181"))
        await cluster.metadata_store.set(cluster.ports.ledgers.path(ledger_id), b"junk", -1)
        found = await references(cluster)
        assert f"ledger {ledger_id}" in str(found.why_unknown)
        assert found.unreferenced == frozenset()

    simulate(scenario)


def test_what_there_was_no_time_for_is_unknown() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        for _ in range(300):
            await cluster.store(pair("b1:3181", "b2:3181"))
        found = await references(cluster, StatusLimits(ledgers_s=0.02))
        assert found.ledgers < 300
        assert "ledgers were read in 0.02 s" in str(found.why_unknown)
        assert found.unreferenced == frozenset()

    simulate(scenario)


def test_a_bookie_without_registration_and_cookie_that_ledgers_name_is_down() -> None:
    """Somebody deleted its cookie, or formatted it in part: only the ledgers show that it is missing."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*(f"b{number}:3181" for number in range(8)))
        await cluster.store(ledger({0: ["b1:3181", DOWN]}, 2, 2, last_entry_id=-1, length=0))
        await cluster.store(ledger({0: ["b1:3181", "b2:3181", DOWN]}, 2, 2, last_entry_id=0, length=10))
        assert (await read(cluster)).references is None, "it has no entries: Java's decommission leaves such ledgers"
        await cluster.store(pair("b1:3181", DOWN))
        found = await read(cluster)
        assert (found.down, found.unreferenced) == ([DOWN], [])
        finding = {each.part: each for each in status_findings(found)}["bookies_down"]
        assert finding.command == f"bkctl recover failed-bookie {DOWN}"
        await cluster.store(pair("b7:3181", DOWN))
        holder = OperationHolder("recover failed-bookie", "ann", "h1", 17, "2026-01-01T00:00:00Z")
        async with await lock_bookies(cluster.metadata_store, ROOT, holder, [DOWN]):
            found = await read(cluster)
            assert found.references is not None
            assert found.references.referenced == frozenset()

    simulate(scenario)


def test_no_target_is_asked_for_what_no_registered_bookie_has() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1:3181", "b2:3181")
        await cluster.store(ledger({0: [DOWN]}, 1, 1, last_entry_id=0, length=10))
        finding = {each.part: each for each in status_findings(await read(cluster))}["bookies_down"]
        assert (finding.severity, finding.command) == (Severity.CRITICAL, f"bkctl bookie show {DOWN}")
        assert finding.sentence.endswith("; no registered bookie has what its ledgers lack")

    simulate(scenario)


def test_ledgers_that_a_running_recovery_cannot_move_are_named_while_it_runs() -> None:
    """Whether ledgers reference its bookie is not asked: the recovery changes that."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster)
        await cluster.store(pair("b1:3181", DOWN))
        holder = OperationHolder("recover failed-bookie", "ann", "h1", 17, "2026-01-01T00:00:00Z")
        async with await lock_bookies(cluster.metadata_store, ROOT, holder, [DOWN]):
            found = await read(cluster)
            assert (found.down, found.unreferenced, found.usual_size) == ([DOWN], [], 2)
            assert {each.severity for each in status_findings(found)} == {Severity.WARNING}
            lost = await cluster.store(pair(DOWN, "b8:3181"))
            first, *others = status_findings(await read(cluster))
            assert (first.severity, first.part) == (Severity.CRITICAL, "no_live_copy")
            assert first.sentence == f"1 ledger has no live copy; start {DOWN}"
            left, moved = (each for each in others if each.part == "bookies_down")
            assert left.sentence.startswith("bookie b8:3181 is not registered")
            assert f"a command is moving the ledgers of {DOWN}" in moved.sentence
            hurried = (await references(cluster, StatusLimits(copies_s=0.0))).no_live_copy
            assert (hurried.ledgers, hurried.is_exact) == (0, False)
        assert lost in (await references(cluster)).no_live_copy.first_ids

    simulate(scenario)


def test_the_size_of_a_new_ledger_is_that_of_many_and_no_other() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1:3181", "b2:3181")
        for _ in range(7):
            await cluster.store(pair("b1:3181", "b2:3181"))
        wide = ledger({0: ["b1:3181", "b2:3181", "b1:3182"]}, 2, 2, last_entry_id=5, length=10)
        await cluster.store(wide)
        assert (await read(cluster)).usual_size == 2
        for _ in range(2):
            await cluster.store(wide)
        assert (await read(cluster)).usual_size == 3
        unread = await read(cluster, StatusLimits(sample_s=0.0))
        assert unread.usual_size == 0
        assert "writers_stop" not in {each.part for each in status_findings(unread)}

    simulate(scenario)


def test_the_deadline_of_a_removed_bookie_is_no_news() -> None:
    """Its cookie is gone, and the auditor has not forgotten it yet."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1:3181", "b2:3181")
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=3600)):
            await cluster.clock.sleep(1)
            await cluster.stop("b2:3181")
            await cluster.clock.sleep(5)
            notes = RecoveryNotes(cluster.metadata_store, ROOT)
            assert await notes.deadlines.keys() == ["b2:3181"]
            await cluster.metadata_store.delete(Paths(ROOT).cookie("b2:3181"))
            vote = AuditorElection(cluster.metadata_store, ROOT, "b1:3181", lambda _: None)
            await vote.campaign()
            note = DaemonNote(
                bookie_id="b1:3181", host="h", pid=7, role="both", started_ms=1, written_ms=2, is_auditor=True
            )
            await notes.daemons.put("1", note)
            status = await read(cluster)
            assert status.references is not None
            assert status.references.unreferenced == {"b2:3181"}
            parts = {each.part for each in status_findings(status)}
            assert parts.isdisjoint({"deadlines", "bookies_down", "bookies_unreferenced"})
            await cluster.store(pair("b1:3181", "b2:3181"))
            assert "deadlines" in {each.part for each in status_findings(await read(cluster))}
            alarm = "1 of 2 bookies are gone, more than 10.0 %: no ledger is marked until some are back"
            await notes.daemons.put("1", msgspec.structs.replace(note, alarm=alarm))
            found = {each.part: each.sentence for each in status_findings(await read(cluster))}
            assert found["too_many_gone"].startswith(f"{alarm} (as of ")
            assert "deadlines" not in found, "nothing is marked then"

    simulate(scenario)
