"""Why a ledger lacks copies or cannot be closed: facts from simulated bookies, and the verdict on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote, MaintenanceNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.view import BookieSpace
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.advice import AUTORECOVERY_START
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.explanation import LedgerExplanation, explain
from bkctl.runtime.replication.judge.ledger_facts import LedgerFacts
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.runtime.replication.survey.ledger_facts import LedgerFactsReader
from bkctl.storage.severity import Severity
from tests.runtime.replication.samples import ledger
from tests.sim.ledger_cluster import ROOT, LedgerCluster, ledger_cluster
from tests.sim.loop import run_simulated

T = TypeVar("T")
FIVE = ("b1", "b2", "b3", "b4", "b5")
CLOSED = ledger({0: ("b1", "b2", "b3"), 4: ("b1", "b2", "b4")}, 2, 2, last_entry_id=9, length=100)
OPEN = ledger({0: ("b1", "b2", "b3")}, 2, 1, state=LedgerState.OPEN)


def simulate(scenario: Callable[[LedgerCluster], Awaitable[T]]) -> T:
    async def run() -> T:
        async with ledger_cluster(*FIVE) as cluster:
            return await scenario(cluster)

    return run_simulated(run())


async def filled(cluster: LedgerCluster, metadata: LedgerMetadata, count: int = 10) -> int:
    ledger_id = await cluster.create(metadata)
    await cluster.fill(ledger_id, range(count))
    return ledger_id


async def read_facts(cluster: LedgerCluster, ledger_id: int, *without: str) -> LedgerFacts:
    foreign = ForeignNames(lambda sentence: None)
    reading = LedgerFactsReader(cluster.ports, cluster.store, ReplicationConfig(), foreign)
    return await reading.facts(ledger_id, await cluster.ports.ledgers.read(ledger_id), without)


async def explained(cluster: LedgerCluster, ledger_id: int, *without: str) -> LedgerExplanation:
    found = explain(await read_facts(cluster, ledger_id, *without))
    assert not cluster.fenced
    return found


def steps(found: LedgerExplanation) -> str:
    return "\n".join(found.next_steps)


def test_a_whole_ledger_has_no_problem_and_two_reads_per_segment_and_bookie() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        facts = await read_facts(cluster, ledger_id)
        assert len([each for each in cluster.requests if each.kind == "read"]) <= 2 * 6
        copies = [copy for segment in facts.segments for copy in segment.copies]
        assert {(copy.first, copy.last) for copy in copies} == {(CopyState.PRESENT, CopyState.PRESENT)}
        found = explain(facts)
        assert found.replication is ReplicationState.REPLICATED
        assert (found.problems, found.candidates, found.is_closable) == ((), (), None)
        seen = "nothing is known to be wrong: each bookie has its first and last entry of each segment"
        assert found.next_steps == (f"{seen}; bkctl ledger verify {ledger_id} reads all entries",)
        nothing = msgspec.structs.replace(CLOSED, segments=CLOSED.segments[:1], last_entry_id=-1, length=0)
        empty = await cluster.create(nothing)
        (step,) = (await explained(cluster, empty)).next_steps
        assert step == "nothing is known to be wrong: there was no entry to read"

    simulate(scenario)


def test_a_bookie_that_an_ensemble_names_twice_is_a_problem_with_its_command() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, ledger({0: ("b1", "b2", "b1")}, 3, 2, last_entry_id=9, length=100))
        found = await explained(cluster, ledger_id)
        assert (found.replication, found.severity) == (ReplicationState.UNDER_REPLICATED, Severity.WARNING)
        assert found.problems == (
            "bookie b1 has two places in an ensemble: their entries have a copy less than they should",
        )
        first, second = found.next_steps
        assert first == f"bkctl recover ledger {ledger_id} moves the second place of b1 to another bookie"
        assert AUTORECOVERY_START in second

    simulate(scenario)


def test_what_no_command_repairs_is_not_called_the_absence_of_problems() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        cluster.failing["b2"] = Status.AUTHENTICATION_REQUIRED
        found = await explained(cluster, ledger_id)
        assert [each for each in found.problems if "bookie b2 is registered but gives no valid answer" in each]
        (step,) = found.next_steps
        assert step.startswith("nothing before b2 gives a valid answer: ")
        assert step.endswith("; bkctl bookie show b2")
        assert (found.unknown_on, found.severity) == (("b2",), Severity.WARNING)

    simulate(scenario)


def test_an_accepted_loss_is_no_reason_to_start_bookies() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        lost = ledger({0: ("b1", "b2"), 4: ("b3", "b4")}, 2, 2, last_entry_id=9, length=100)
        ledger_id = await filled(cluster, lost)
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        before = await explained(cluster, ledger_id)
        assert (before.replication, before.severity) == (ReplicationState.UNAVAILABLE, Severity.CRITICAL)
        assert "start b1 or b2 if their disks still exist" in steps(before)

        notes = RecoveryNotes(cluster.store, ROOT).given_up
        await notes.put(str(ledger_id), GivenUpNote(written_ms=0, member_since={"b1": 1}, user="ops"))
        assert (await explained(cluster, ledger_id)).severity is Severity.CRITICAL, "b2 was not given up"
        await notes.put(str(ledger_id), GivenUpNote(written_ms=0, member_since={"b1": 1, "b2": 1}, user="ops"))
        found = await explained(cluster, ledger_id)
        assert (found.replication, found.severity) == (ReplicationState.GIVEN_UP, Severity.INFORMATION)
        accepted = "loss accepted on 1970-01-01 by ops"
        assert found.problems == (f"{accepted}: entries of 1 segment (from entry 0) have no copy",)
        assert found.next_steps == (
            f"nothing is left to do: {accepted}; bkctl ledger read {ledger_id} --keep-going -o jsonl > "
            f"ledger-{ledger_id}.jsonl saves what is left, and bkctl ledger delete {ledger_id} removes the ledger",
        )
        assert found.candidates == ()

        await cluster.stop("b3")
        found = await explained(cluster, ledger_id)
        assert (found.replication, found.severity) == (ReplicationState.AT_RISK, Severity.CRITICAL)
        assert "bookie b3 is not registered; it is in 1 of 2 segments" in found.problems
        assert "start " not in steps(found).replace("autorecovery start", "")

    simulate(scenario)


def test_an_accepted_loss_in_some_write_sets_is_no_reason_to_start_or_recover_bookies() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, ledger({0: ("b1", "b2", "b3")}, 2, 2, last_entry_id=9, length=100))
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        before = await explained(cluster, ledger_id)
        assert (before.replication, before.severity) == (ReplicationState.UNAVAILABLE, Severity.CRITICAL)
        note = GivenUpNote(written_ms=0, member_since={"b1": 1, "b2": None}, user="ops")
        await RecoveryNotes(cluster.store, ROOT).given_up.put(str(ledger_id), note)
        found = await explained(cluster, ledger_id)
        assert (found.replication, found.severity) == (ReplicationState.GIVEN_UP, Severity.INFORMATION)
        (step,) = found.next_steps
        assert step.startswith("nothing is left to do: loss accepted on 1970-01-01 by ops; bkctl ledger read ")

        await cluster.stop("b3")
        found = await explained(cluster, ledger_id)
        assert (found.replication, found.severity) == (ReplicationState.UNAVAILABLE, Severity.CRITICAL)
        assert found.next_steps[0].startswith("start b3 if its disks still exist: "), found

    simulate(scenario)


def test_a_lost_bookie_and_who_could_replace_it() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        await cluster.stop("b1")
        await cluster.stop("b5")
        await cluster.register("b5", mode=BookieMode.READ_ONLY)
        found = await explained(cluster, ledger_id)
        assert found.replication is ReplicationState.AT_RISK
        assert "bookie b1 is not registered; it is in 2 of 2 segments" in found.problems
        verdicts = {(each.first_entry_id, each.bookie_id): each.refused_by for each in found.candidates}
        taken = "already in the ensemble"
        assert verdicts == {
            (0, "b2"): taken,
            (0, "b3"): taken,
            (0, "b4"): None,
            (0, "b5"): "not writable",
            (4, "b2"): taken,
            (4, "b3"): None,
            (4, "b4"): taken,
            (4, "b5"): "not writable",
        }
        command = f"bkctl recover failed-bookie b1 --ledger {ledger_id}"
        assert f"{command} would copy its entries of 2 segments (from entry 0 and 4) to b3 or b4" in found.next_steps
        assert "no auditor is elected" in steps(found)

    simulate(scenario)


def test_an_assumed_loss_gives_the_same_verdict_and_asks_the_bookie_nothing() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        assumed = await explained(cluster, ledger_id, "b1")
        assert "b1" not in {each.bookie_id for each in cluster.requests}
        assert "bookie b1 counts as gone; it is in 2 of 2 segments" in assumed.problems
        await cluster.stop("b1")
        real = await explained(cluster, ledger_id)
        assert (assumed.candidates, assumed.next_steps) == (real.candidates, real.next_steps)

    simulate(scenario)


def test_without_a_candidate_the_recovery_would_fail_for_these_reasons() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        for bookie_id in ("b1", "b3", "b5"):
            await cluster.stop(bookie_id)
        cluster.unwell.add("b4")
        whole = await filled(cluster, ledger({0: ("b1", "b2")}, 2, 2, last_entry_id=9))
        found = await explained(cluster, whole)
        refused = {each.bookie_id: each.refused_by for each in found.candidates if each.first_entry_id == 0}
        assert refused["b4"] is not None
        assert refused["b4"].startswith("does not answer")
        assert found.next_steps[0].startswith(
            f"start b1, or add a bookie: bkctl recover failed-bookie b1 --ledger {whole} would leave 1 segment (from "
            "entry 0): no bookie can take the copies ("
        ), "what helps comes first, as in the status"
        assert "start b2" not in "\n".join((await explained(cluster, whole, "b2")).next_steps), "it is assumed gone"
        assert "1 does not answer" in steps(found)
        assert "best-effort" not in steps(found), "it makes no bookie answer"
        found = await explained(cluster, ledger_id)
        assert any(
            each.startswith("no live bookie of the ensemble has the entries of b3 and b1") for each in found.problems
        )

    simulate(scenario)


def test_a_rule_refuses_a_candidate_by_name() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        await cluster.stop("b1")
        facts = await read_facts(cluster, ledger_id)
        racks = RackTable({"b1": "/r1", "b2": "/r2", "b3": "/r3", "b4": "/r2", "b5": "/r3"})
        survey = msgspec.structs.replace(facts.survey, tables=(racks,))
        rules = PlacementRules(min_racks_per_write_quorum=2)
        found = explain(msgspec.structs.replace(facts, survey=survey, rules=rules))
        verdicts = {
            each.bookie_id: (each.rack, each.refused_by) for each in found.candidates if not each.first_entry_id
        }
        assert verdicts["b4"] == ("/r2", "racks per write quorum: b4, b2: 1 rack instead of 2")
        assert verdicts["b5"] == ("/r3", "racks per write quorum: b5, b3: 1 rack instead of 2")
        recovery = f"bkctl recover failed-bookie b1 --ledger {ledger_id} would"
        assert f"{recovery} copy its entries of 1 segment (from entry 4) to b3 or b5" in found.next_steps
        assert f"{recovery} leave 1 segment (from entry 0): no bookie can take the copies (" in steps(found)
        assert "2 racks per write quorum); --placement best-effort accepts broken rules" in steps(found)

    simulate(scenario)


def test_groups_and_reserves_refuse_candidates() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        policy = b"""{"policyClass": "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
            "properties": {"isolationBookieGroups": "gold"}}"""
        labels = (("EnsemblePlacementPolicyConfig", policy),)
        ledger_id = await filled(cluster, msgspec.structs.replace(CLOSED, custom_metadata=labels))
        await cluster.stop("b1")
        facts = await read_facts(cluster, ledger_id)
        survey = msgspec.structs.replace(
            facts.survey,
            groups={"gold": frozenset({"b1", "b2", "b3", "b4"}), "silver": frozenset({"b5"})},
            space={"b4": BookieSpace(1000, 50), "b5": BookieSpace(1000, 900)},
        )
        rules = PlacementRules(reserve_fraction=0.1)
        found = explain(msgspec.structs.replace(facts, survey=survey, rules=rules))
        refused = {each.bookie_id: each.refused_by for each in found.candidates if each.first_entry_id == 0}
        assert refused["b4"] == "no space above its reserve"
        assert refused["b5"] == "isolation groups: not in the ledger's groups: b5"

    simulate(scenario)


def test_copies_that_are_not_where_they_should_be() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        del cluster.entries["b2", ledger_id][9]
        found = await explained(cluster, ledger_id)
        assert found.problems == ("bookie b2 has no good copy of the first or last entry of 1 segment (from entry 4)",)
        assert f"bkctl recover ledger {ledger_id}" in steps(found)

    simulate(scenario)


def test_entries_that_all_their_bookies_lost() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, ledger({0: ("b1", "b2")}, 2, 2, last_entry_id=9, length=100))
        del cluster.entries["b2", ledger_id][9]
        cluster.failing["b1", 9] = Status.IO_ERROR
        found = await explained(cluster, ledger_id)
        assert found.severity is Severity.CRITICAL
        assert "no bookie has a good copy of entry 9, and others may be lost, too" in found.problems
        assert found.next_steps[0] == "find the disks or logs that had entry 9, as in bkctl help lost-entries"

    simulate(scenario)


def test_what_an_open_ledger_needs_to_be_closed() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, OPEN)
        found = await explained(cluster, ledger_id)
        assert (found.is_closable, found.problems) == (True, ())
        assert f"if it is gone, bkctl ledger close {ledger_id}" in found.next_steps[0]
        cluster.failing["b2"] = Status.TIMEOUT
        found = await explained(cluster, ledger_id)
        assert found.is_closable is False
        assert list(found.missing_answers) == ["b2"]
        assert "entries may exist that only b2 (" in found.problems[0]
        assert f"once b2 is able to give a valid answer, run bkctl ledger close {ledger_id} again" in found.next_steps
        await cluster.stop("b2")
        assert (await explained(cluster, ledger_id)).missing_answers == {"b2": "not registered"}

        safe = await filled(cluster, ledger({0: ("b1", "b2", "b3")}, 3, 2, state=LedgerState.IN_RECOVERY))
        found = await explained(cluster, safe)
        assert found.is_closable
        assert found.problems[0].startswith("it is in recovery")
        assert "a live writer replaces b2 at its next add" in steps(found)
        assert f"last segment; bkctl ledger close {safe} closes it now" in steps(found)
        for bookie_id in ("b4", "b5"):
            await cluster.stop(bookie_id)
        found = await explained(cluster, safe)
        closes = f"once another is writable, bkctl ledger close {safe} closes it now"
        assert f"no bookie can take the place of b2, so a live writer stops: {closes}" in steps(found)
        assert "at its next add" not in steps(found)

    simulate(scenario)


def test_a_loss_is_accepted_last() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        open_id = await filled(cluster, OPEN)
        closed_id = await filled(cluster, ledger({0: ("b1", "b2")}, 2, 2, last_entry_id=9, length=100))
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        found = await explained(cluster, open_id)
        assert found.next_steps[0].startswith("start b1 or b2 if their disks still exist")
        assert found.next_steps[-1] == (
            f"if their disks are lost, bkctl ledger close {open_id} --accept-loss b1 --accept-loss b2 ends the ledger "
            "with what the others have"
        )
        found = await explained(cluster, closed_id)
        assert found.next_steps[0].startswith("start b1 or b2 if their disks still exist")
        assert found.next_steps[-1] == (
            "if the disks of b1 and b2 are lost, this accepts the loss: bkctl ledger list --bookie b1 --bookie b2 "
            "--state lost -o name > lost-ledgers && bkctl decommission b1 b2 --accept-loss b1 --accept-loss b2 "
            "--from-file lost-ledgers"
        )
        assert f"no auditor is elected, so lost bookies are not noticed: {AUTORECOVERY_START}" in found.next_steps

    simulate(scenario)


def test_no_loss_is_accepted_while_a_bookie_is_in_maintenance() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        open_id = await filled(cluster, OPEN)
        closed_id = await filled(cluster, ledger({0: ("b1", "b2")}, 2, 2, last_entry_id=9, length=100))
        now_ms = cluster.ports.clock.now_ms()
        note = MaintenanceNote(start_ms=now_ms, end_ms=now_ms + 60_000, user="ann")
        await RecoveryNotes(cluster.store, ROOT).maintenance.put("b1", note)
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        for ledger_id in (open_id, closed_id):
            found = steps(await explained(cluster, ledger_id))
            assert "bookie b1 is in maintenance until " in found
            assert " are lost, " not in found
        await cluster.ports.clock.sleep(61)
        for ledger_id in (open_id, closed_id):
            assert " are lost, " in steps(await explained(cluster, ledger_id))

    simulate(scenario)


def test_no_loss_is_accepted_while_a_bookie_outside_of_the_ensemble_may_have_the_entries() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, TWO_COPIES, 12)
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        assert "--accept-loss b1 --accept-loss b2" in steps(await explained(cluster, ledger_id))
        cluster.failing["b5"] = Status.TIMEOUT
        assert "--accept-loss" not in steps(await explained(cluster, ledger_id)), "it did not say that it has none"
        cluster.failing.clear()
        copy_outside(cluster, ledger_id, "b4", 0, 3)
        assert "--accept-loss" not in steps(await explained(cluster, ledger_id))

    simulate(scenario)


def test_no_recovery_of_a_bookie_in_maintenance() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        now_ms = cluster.ports.clock.now_ms()
        note = MaintenanceNote(start_ms=now_ms, end_ms=now_ms + 60_000, user="ann")
        await RecoveryNotes(cluster.store, ROOT).maintenance.put("b1", note)
        await cluster.stop("b1")
        found = steps(await explained(cluster, ledger_id))
        assert "bookie b1 is in maintenance until " in found
        assert "(by ann)" in found
        assert "recover failed-bookie" not in found
        await cluster.ports.clock.sleep(61)
        assert f"recover failed-bookie b1 --ledger {ledger_id}" in steps(await explained(cluster, ledger_id))

    simulate(scenario)


def test_no_check_is_advised_for_a_bookie_in_maintenance() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        now_ms = cluster.ports.clock.now_ms()
        note = MaintenanceNote(start_ms=now_ms, end_ms=now_ms + 600_000, user="ann")
        await RecoveryNotes(cluster.store, ROOT).maintenance.put("b1", note)
        due = LostBookieNote(lost_ms=now_ms, due_ms=now_ms + 300_000)

        async def steps_with_auditor(alarm: str | None = None) -> str:
            facts = await read_facts(cluster, ledger_id)
            gone = sorted({"b1", "b2"} - facts.registrations.live)
            deadlines = () if alarm else tuple((bookie_id, due) for bookie_id in gone)
            state = msgspec.structs.replace(facts.autorecovery, auditor="host-1", deadlines=deadlines, alarm=alarm)
            return steps(explain(msgspec.structs.replace(facts, autorecovery=state)))

        await cluster.stop("b1")
        found = await steps_with_auditor()
        assert "bookie b1 is in maintenance until " in found
        assert "the auditor" not in found
        assert "autorecovery trigger" not in found
        await cluster.stop("b2")
        assert "autorecovery trigger" not in await steps_with_auditor(), "no auditor marks what has no live copy"
        await cluster.register("b1")
        found = await steps_with_auditor()
        assert "bookie b2 is gone; the auditor host-1 marks the ledgers at " in found
        assert "autorecovery trigger starts a check now" in found
        found = await steps_with_auditor("2 of 3 bookies are gone: no ledger is marked until some are back")
        assert "2 of 3 bookies are gone: no ledger is marked until some are back" in found
        assert "autorecovery trigger" not in found

    simulate(scenario)


def test_marks_locks_and_the_switch() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, CLOSED)
        marks = UnderReplicationMarks(cluster.store, ROOT, cluster.ports.clock)
        await marks.mark(ledger_id, ["b1"])
        assert "no missing copy was found" in steps(await explained(cluster, ledger_id))
        await cluster.stop("b1")
        assert "a replication worker, if one runs, repairs it" in steps(await explained(cluster, ledger_id))
        locks = ReplicationLocks(cluster.store, ROOT, "host-7")
        assert await locks.acquire(ledger_id) is not None
        assert "host-7 holds its replication lock" in steps(await explained(cluster, ledger_id))
        await ReplicationSwitches(cluster.store, ROOT).disable()
        assert "autorecovery is disabled" in steps(await explained(cluster, ledger_id))

    simulate(scenario)


TWO_COPIES = ledger({0: ("b1", "b2", "b3"), 6: ("b3", "b4", "b5")}, 2, 2, last_entry_id=11, length=120)


def copy_outside(cluster: LedgerCluster, ledger_id: int, bookie_id: str, *entry_ids: int) -> None:
    """Give a bookie entries that the metadata does not expect there."""
    stored = {each for (_, held), entries in cluster.entries.items() if held == ledger_id for each in entries.items()}
    bodies = dict(stored)
    cluster.entries.setdefault((bookie_id, ledger_id), {}).update({each: bodies[each] for each in entry_ids})


def test_a_bookie_outside_of_the_ensemble_that_has_the_lost_entries_is_named() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, TWO_COPIES, 12)
        copy_outside(cluster, ledger_id, "b4", 0, 3)
        copy_outside(cluster, ledger_id, "b5", 3)
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        facts = await read_facts(cluster, ledger_id)
        assert [each.without_copy for each in facts.segments] == [(0, 3), ()]
        assert {each.bookie_id: (each.asked, each.found) for each in facts.outside} == {
            "b4": ((0, 3), (0, 3)),
            "b5": ((0, 3), (3,)),
        }
        found = await explained(cluster, ledger_id)
        for lost in ("b1", "b2"):
            command = f"bkctl recover failed-bookie {lost} --ledger {ledger_id}"
            assert f"{command} would copy its entries of 1 segment (from entry 0) to b4 or b5" in steps(found)
        assert " are lost, " not in steps(found), "a recovery comes before a loss is accepted"
        assert "start b1 or b2 if their disks still exist: entries without a live copy may be there" in steps(found)
        assert (
            "bookie b4, outside of the ensemble, has 2 of the 2 entries that it was asked for (from 0 to 3): a "
            "recovery of a lost bookie copies them if no entry of its stripe is missing everywhere; bkctl ledger read "
            f"{ledger_id} --from-bookie b4 -o jsonl > ledger-{ledger_id}-b4.jsonl saves them, before it is deleted"
        ) in found.next_steps
        assert "bookie b5, outside of the ensemble, has 1 of the 2 entries" in steps(found)
        await cluster.stop("b4")
        found = await explained(cluster, ledger_id)
        command = f"bkctl recover failed-bookie b1 --ledger {ledger_id}"
        assert f"{command} would leave 1 segment (from entry 0): no live copy is known of some" in steps(found)
        assert "if their disks are lost" in steps(found), "what b5 has can be saved"

    simulate(scenario)


def test_bookies_outside_of_the_ensemble_that_have_nothing_or_do_not_answer_are_told_apart() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, ledger({0: ("b1", "b2", "b3")}, 2, 2, last_entry_id=9, length=100))
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        found = await explained(cluster, ledger_id)
        assert "each of the 2 live bookies outside of the ensemble that answered has none of them" in found.next_steps
        cluster.failing["b5"] = Status.TIMEOUT
        cluster.requests.clear()
        found = await explained(cluster, ledger_id)
        assert "the one live bookie outside of the ensemble that answered has none" in steps(found)
        assert "bookie b5, outside of the ensemble, did not answer: " in steps(found)
        asked = [each for each in cluster.requests if each.kind == "read" and each.bookie_id == "b5"]
        assert len(asked) == 1, "each further question would wait for the same silence"
        cluster.failing["b5"] = Status.TOO_MANY_REQUESTS
        found = await explained(cluster, ledger_id)
        assert "the one live bookie outside" in steps(found), "a busy bookie has not answered"
        for bookie_id in ("b4", "b5"):
            await cluster.stop(bookie_id)
        assert "there is no live bookie outside of the ensemble" in steps(await explained(cluster, ledger_id))

    simulate(scenario)


def test_a_stripe_whose_entries_all_have_a_source_is_still_copied() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        five = ledger({0: FIVE}, 2, 2, last_entry_id=9, length=100)
        ledger_id = await filled(cluster, five)
        await cluster.register("b6")
        for bookie_id in ("b1", "b2", "b4"):
            await cluster.stop(bookie_id)
        found = steps(await explained(cluster, ledger_id))
        assert f"recover failed-bookie b4 --ledger {ledger_id} would copy its entries" in found
        assert f"recover failed-bookie b1 --ledger {ledger_id} would leave 1 segment" in found

    simulate(scenario)


def test_damaged_copies_are_no_source_and_a_busy_bookie_may_be_one() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await filled(cluster, ledger({0: ("b1", "b2")}, 2, 2, last_entry_id=9, length=100))
        await cluster.stop("b1")
        del cluster.entries["b2", ledger_id][9]
        facts = await read_facts(cluster, ledger_id)
        assert facts.segments[0].without_copy == (9,)
        found = steps(explain(facts))
        assert f"recover ledger {ledger_id} writes missing and damaged copies again where another bookie" in found
        cluster.failing["b2", 9] = Status.TOO_MANY_REQUESTS
        assert (await read_facts(cluster, ledger_id)).segments[0].without_copy == ()

    simulate(scenario)


def test_only_some_segments_of_a_ledger_with_many_are_looked_for_outside_and_that_is_said() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        many = ledger(dict.fromkeys(range(0, 40, 2), ("b1", "b2")), 2, 2, last_entry_id=39, length=400)
        ledger_id = await filled(cluster, many, 40)
        for bookie_id in ("b1", "b2"):
            await cluster.stop(bookie_id)
        facts = await read_facts(cluster, ledger_id)
        assert {len(each.asked) for each in facts.outside} == {32}
        assert "no bookie outside of the ensemble was asked for 4 segments (from entry 32, 34" in steps(explain(facts))

    simulate(scenario)
