"""Decommission: the cookie goes only when nothing names the bookie any more."""

from __future__ import annotations

import asyncio
import re

import pytest

from bkctl.runtime.errors import BookieNotFoundError, NoNodeError, RefusedError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.cookies import CookieVersion
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import ANY_VERSION, Versioned
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.run.decommission import DecommissionReport
from bkctl.runtime.replication.survey.given_up import find_removed
from tests.runtime.replication.fleet import Fleet, SteppedFleet, carry_out, length_of
from tests.runtime.replication.samples import ledger


async def run(fleet: Fleet, bookie_id: str) -> DecommissionReport:
    decommission = fleet.decommission()
    return await carry_out(decommission, await decommission.plan([bookie_id]))


async def test_a_stopped_bookie_goes_with_its_cookie(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    await fleet.add_cookie("b2")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))) for _ in range(3)]

    report = await run(fleet, "b1")

    assert report.is_complete
    assert report.is_cookie_deleted
    assert (report.ledgers_scanned, report.remaining) == (3, ())
    assert report.recoveries[0].ledgers_repaired == 3
    assert "b2" in await fleet.cookies.ids()
    for ledger_id in ids:
        assert "b1" not in (await fleet.read(ledger_id)).value.bookies()


async def test_t46_one_ledger_that_cannot_be_moved_keeps_the_cookie(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))) for _ in range(3)]
    del fleet.bookies["b2"].ledgers[ids[1]]

    report = await run(fleet, "b1")

    assert not report.is_complete
    assert report.remaining == (ids[1],)
    assert report.refusal is not None
    assert "its cookie was not deleted" in report.refusal
    assert [failure.ledger_id for failure in report.recoveries[-1].failures] == [ids[1]]
    assert report.recoveries[0].ledgers_repaired == 2
    assert "b1" in await fleet.cookies.ids()


async def test_metadata_that_nobody_can_read_keeps_the_cookie(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    path = f"{fleet.ledgers.root}/{fleet.ledgers.tree.ledger_path(555)}"
    await fleet.client.store.create(path, b"garbage", make_parents=True)

    report = await run(fleet, "b1")

    assert report.remaining == (555,)
    assert not report.is_cookie_deleted
    assert "b1" in await fleet.cookies.ids()


@pytest.mark.parametrize("mode", BookieMode)
async def test_a_bookie_that_serves_is_drained_first_and_no_loss_can_be_proven_of_it(
    fleet: Fleet, mode: BookieMode
) -> None:
    await fleet.start("b2", "b3")
    await fleet.start("b1", mode=mode)
    await fleet.add_cookie("b1")
    plan = await fleet.decommission().plan(["b1"])
    assert (set(plan.live), plan.recovery.unreachable) == ({"b1"}, ())
    with pytest.raises(RefusedError, match="bookie b1 serves, so what it has is not lost"):
        await fleet.decommission().plan(["b1"], accepted_losses=[7])
    assert "b1" in await fleet.cookies.ids()


@pytest.mark.parametrize("mode", BookieMode)
async def test_a_preview_shows_the_work_for_a_bookie_that_still_serves(fleet: Fleet, mode: BookieMode) -> None:
    await fleet.start("b2", "b3")
    await fleet.start("b1", mode=mode)
    await fleet.add_cookie("b1")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5)))
    writes_before = fleet.client.held_store.write_count

    plan = await fleet.decommission().plan(["b1"], is_rehearsal=True)

    assert (plan.recovery.registered, sorted(plan.cookies), sorted(plan.live)) == (("b1",), ["b1"], ["b1"])
    assert [found.ledger_id for found in plan.recovery.ledgers] == [ledger_id]
    assert (plan.recovery.totals.entries, plan.recovery.targets) == (5, ("b2", "b3"))
    assert fleet.client.held_store.write_count == writes_before
    with pytest.raises(BookieNotFoundError):
        await fleet.decommission().plan(["b9"], is_rehearsal=True)


@pytest.mark.parametrize("mode", BookieMode)
async def test_a_bookie_that_comes_back_during_the_run_keeps_its_cookie(fleet: Fleet, mode: BookieMode) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    decommission = fleet.decommission()
    plan = await decommission.plan(["b1"])
    await fleet.start("b1", mode=mode)

    report = await carry_out(decommission, plan)

    assert report.refusal is not None
    assert "up and serving" in report.refusal
    assert "b1" in await fleet.cookies.ids()


@pytest.mark.parametrize("mode", BookieMode)
@pytest.mark.parametrize("is_deleted_by_us", [True, False])
async def test_a_bookie_that_registers_while_its_cookie_is_deleted_is_reported(
    fleet: Fleet, mode: BookieMode, is_deleted_by_us: bool
) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")

    async def delete(bookie_id: str, found: CookieVersion) -> None:
        await original(bookie_id, found)
        await fleet.start("b1", mode=mode)
        await original(bookie_id, await fleet.cookies.read(bookie_id))
        if not is_deleted_by_us:
            raise NoNodeError("another process deleted it")

    original, fleet.cookies.delete = fleet.cookies.delete, delete  # type: ignore[method-assign]
    report = await run(fleet, "b1")

    assert report.is_cookie_deleted is is_deleted_by_us
    assert not report.is_complete
    assert report.registered_again
    assert report.has_progress is is_deleted_by_us
    assert report.refusal is not None
    assert "bookie b1 registered again while its cookie was deleted" in report.refusal
    assert "bkctl decommission b1" in report.refusal
    assert "b1" not in await fleet.cookies.ids()


async def test_a_cookie_that_was_written_meanwhile_is_kept(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    decommission = fleet.decommission()
    plan = await decommission.plan(["b1"])
    cookie = await fleet.cookies.find("b1")
    assert isinstance(cookie, Versioned)
    await fleet.cookies.write(cookie.value, cookie.version)

    report = await carry_out(decommission, plan)

    assert report.refusal is not None
    assert "changed in the meantime" in report.refusal
    assert "b1" in await fleet.cookies.ids()


async def test_without_a_cookie_the_references_are_removed_all_the_same(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5)))

    report = await run(fleet, "b1")

    assert report.is_complete
    assert not report.is_cookie_deleted


async def test_without_a_cookie_no_cookie_is_said_to_be_kept(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5)))
    del fleet.bookies["b2"].ledgers[ledger_id]
    assert (await run(fleet, "b1")).refusal == "1 ledger still references bookie b1 (or could not be checked)"

    decommission = fleet.decommission()
    plan = await decommission.plan(["b1"], accepted_losses=[ledger_id])
    await fleet.start("b1")
    report = await carry_out(decommission, plan)
    assert report.refusal is not None
    assert "cookie" not in report.refusal


async def test_a_ledger_that_appears_after_an_empty_plan_is_moved_too(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    decommission = fleet.decommission()
    plan = await decommission.plan(["b1"])
    assert not plan.recovery.ledgers
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5)))

    report = await carry_out(decommission, plan)

    assert report.is_complete
    assert report.recoveries[0].ledgers_repaired == 1
    assert (await fleet.read(ledger_id)).value.last_segment.ensemble == ("b3", "b2")
    assert "b1" not in await fleet.cookies.ids()


async def test_an_empty_plan_that_stays_empty_needs_no_recovery(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")

    report = await run(fleet, "b1")

    assert (report.recoveries, report.is_complete, report.is_cookie_deleted) == ((), True, True)


async def test_an_id_that_never_existed_is_not_found(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    with pytest.raises(BookieNotFoundError):
        await fleet.decommission().plan(["b1"])


# -- losses that are accepted ------------------------------------------------------------------------------------


async def accept(fleet: Fleet, bookie_id: str, *ledger_ids: int) -> DecommissionReport:
    decommission = fleet.decommission()
    return await carry_out(decommission, await decommission.plan([bookie_id], accepted_losses=ledger_ids))


def two_copies(last_entry_id: int = 4) -> LedgerMetadata:
    return ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=last_entry_id, length=length_of(last_entry_id + 1))


async def test_a_proven_loss_that_is_accepted_keeps_no_cookie_and_changes_no_ledger(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    ids = [await fleet.store(two_copies()) for _ in range(3)]
    del fleet.bookies["b2"].ledgers[ids[1]].entries[3]
    before = await fleet.read(ids[1])

    report = await accept(fleet, "b1", ids[1], 999_999)

    assert (report.is_complete, report.is_cookie_deleted) == (True, True)
    assert (report.accepted, report.remaining) == ((ids[1],), ())
    assert report.recoveries[0].ledgers_repaired == 2
    assert await fleet.read(ids[1]) == before
    assert "b1" not in await fleet.cookies.ids()

    again = await accept(fleet, "b1", ids[1])
    assert (again.is_complete, again.accepted) == (True, (ids[1],))


async def test_a_removed_bookie_is_known_by_the_ledgers_that_were_not_given_up_with_it(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ids = [await fleet.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=4, length=length_of(5))) for _ in range(2)]
    notes = RecoveryNotes(fleet.client.store, fleet.ledgers.root).given_up

    async def removed(*bookie_ids: str) -> dict[str, int]:
        return await find_removed(fleet.client.ports, fleet.client.store, bookie_ids)

    assert await removed("b1", "b9") == {"b9": 0}
    await notes.put(str(ids[0]), GivenUpNote(written_ms=1, member_since={"b1": None}))
    assert await removed("b1") == {}, "the other was not given up"
    await notes.put(str(ids[1]), GivenUpNote(written_ms=1, member_since={"b2": None}))
    assert await removed("b1") == {}
    await notes.put(str(ids[1]), GivenUpNote(written_ms=1, member_since={"b1": None}))
    assert await removed("b1", "b9") == {"b1": 2, "b9": 0}
    assert await removed("b2") == {}, "it is registered"
    kept = await fleet.store(two_copies())
    await notes.put(str(kept), GivenUpNote(written_ms=1, member_since={"b1": None, "b2": None}))
    assert await removed("b1") == {}, "the other has a copy, so that this one can be replaced"
    await fleet.ledgers.delete(kept)
    assert await removed("b1") == {"b1": 2}
    await fleet.add_cookie("b1")
    assert await removed("b1") == {}


def keep_outside(fleet: Fleet, ledger_id: int, bookie_id: str, *entry_ids: int) -> None:
    """An earlier member that still has entries, as after a drain that was undone."""
    for entry_id in entry_ids:
        fleet.fakes.put(fleet.bookies[bookie_id], ledger_id, entry_id, lac=entry_id - 1)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("all", "bookie b4, .* has a good copy of entry 0; bkctl recover failed-bookie b1 --ledger {} copies it"),
        ("the last", "bookie b4, outside of the ensemble, has a good copy of entry 4; bkctl recover "),
        ("damaged", "bookie b4, outside of the ensemble, may have entry 3: "),
        ("silent", "bookie b4, outside of the ensemble, may have entries: "),
        ("failing", "bookie b4, outside of the ensemble, may have entry 0: it answered: "),
    ],
)
async def test_a_loss_is_not_proven_while_a_bookie_outside_of_the_ensemble_may_have_the_entries(
    fleet: Fleet, stepped: SteppedFleet, what: str, reason: str
) -> None:
    fleet = stepped if what == "silent" else fleet
    await fleet.start("b2", "b3", "b4")
    await fleet.add_cookie("b1")
    lost = await fleet.store(two_copies(), holes=["b2"])
    kept = {"all": range(5), "the last": [4], "damaged": [3]}
    keep_outside(fleet, lost, "b4", *kept.get(what, []))
    if what == "damaged":
        fleet.bookies["b4"].damage(lost, 3)
    elif what == "silent":
        fleet.bookies["b4"].hang("read")
    elif what == "failing":
        fleet.bookies["b4"].refuse("read", Status.IO_ERROR)

    planning = fleet.decommission().plan(["b1"], accepted_losses=[lost])
    with pytest.raises(RefusedError, match=f"nothing was changed: .*ledger {lost}: {reason.format(lost)}"):
        await (stepped.finish(planning) if what == "silent" else planning)


async def test_a_bookie_outside_of_the_ensemble_that_has_only_entries_that_are_not_lost_proves_nothing_against_a_loss(
    fleet: Fleet,
) -> None:
    await fleet.start("b2", "b3", "b4")
    sample = ledger({0: ["b2", "b4"], 5: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10))
    lost = await fleet.store(sample)
    del fleet.bookies["b2"].ledgers[lost].entries[7]
    keep_outside(fleet, lost, "b4", 6)

    assert (await accept(fleet, "b1", lost)).accepted == (lost,)


async def test_a_ledger_of_one_copy_is_proven_lost(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=4, length=length_of(5)))
    assert (await accept(fleet, "b1", ledger_id)).accepted == (ledger_id,)


@pytest.mark.parametrize("is_held", [False, True])
async def test_an_open_ledger_that_nothing_can_close_is_proven_lost(fleet: Fleet, *, is_held: bool) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 1, state=LedgerState.OPEN))
    if is_held:
        fleet.fakes.put(fleet.bookies["b2"], ledger_id, 4)
    before = await fleet.read(ledger_id)
    stuck = await run(fleet, "b1")
    assert not stuck.is_complete, "the dead end"
    [failure] = stuck.recoveries[0].failures
    assert f"bkctl ledger close {ledger_id} --accept-loss b1 " in failure.detail
    assert (await accept(fleet, "b1", ledger_id)).is_cookie_deleted
    assert await fleet.read(ledger_id) == before


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("held", "bookie b2 has a good copy of entry 0"),
        ("not registered", "bookie b2 may have entry 0: not registered"),
        ("silent", "bookie b2 may have entry 0: "),
        ("failing", "bookie b2 may have entry 0: it answered: "),
        ("damaged", "bookie b2 may have entry 0: "),
        ("open and not registered", "bookie b2 is not registered"),
        ("open and silent", "bookie b2: "),
        ("open and closable", "it can be closed, so it can be moved"),
        ("empty", "its segment has no entry on this bookie, so it can be moved"),
        ("one segment of two", "bookie b2 has a good copy of entry 5"),
        ("unreadable", "metadata"),
    ],
)
async def test_a_loss_that_is_not_proven_is_refused_by_name_before_anything_is_changed(
    fleet: Fleet, stepped: SteppedFleet, what: str, reason: str
) -> None:
    is_silent = what.endswith("silent")
    fleet = stepped if is_silent else fleet
    await fleet.start("b3", "b2")
    await fleet.add_cookie("b1")
    is_open = what.startswith("open")
    ack_quorum = 2 if what == "open and closable" else 1
    sample = ledger({0: ["b1", "b2"]}, 2, ack_quorum, state=LedgerState.OPEN) if is_open else two_copies()
    if what == "empty":
        sample = two_copies(-1)
    if what == "one segment of two":
        sample = ledger({0: ["b1", "b2"], 5: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10))
    refused = await fleet.store(sample)
    others = [await fleet.store(two_copies()) for _ in range(2)]
    if what == "one segment of two":
        for entry_id in range(5):
            del fleet.bookies["b2"].ledgers[refused].entries[entry_id]
    elif what.endswith("not registered"):
        await fleet.fakes.withdraw("b2")
    elif is_silent:
        fleet.bookies["b2"].hang("read")
    elif what == "failing":
        fleet.bookies["b2"].refuse("read", Status.IO_ERROR)
    elif what == "damaged":
        for entry_id in range(5):
            fleet.bookies["b2"].damage(refused, entry_id)
    elif what == "unreadable":
        path = fleet.ledgers.path(refused)
        await fleet.client.store.set(path, b"garbage", ANY_VERSION)
    before = [await fleet.client.store.get(fleet.ledgers.path(each)) for each in (refused, *others)]

    planning = fleet.decommission().plan(["b1"], accepted_losses=[refused])
    with pytest.raises(RefusedError, match=f"nothing was changed: .*ledger {refused}: .*{reason}"):
        await (stepped.finish(planning) if is_silent else planning)

    assert [await fleet.client.store.get(fleet.ledgers.path(each)) for each in (refused, *others)] == before
    assert "b1" in await fleet.cookies.ids()


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (b"", "bkctl ledger import FILE --if-version N replaces .* bkctl ledger delete --unreadable {} "),
        (b"BookieMetadataFormatVersion\t3\n\xff", "bkctl ledger delete --unreadable {} "),
        (b"BookieMetadataFormatVersion\t4\nnew", "a newer release wrote ledger {}: .* do not delete it"),
    ],
    ids=["empty", "damaged", "newer"],
)
async def test_an_unreadable_ledger_stops_a_decommission_and_the_refusal_has_the_fix(
    fleet: Fleet, data: bytes, advice: str
) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    ledger_id = await fleet.store(two_copies())
    await fleet.client.store.set(fleet.ledgers.path(ledger_id), data, ANY_VERSION)
    decommission = fleet.decommission()
    report = await carry_out(decommission, await decommission.plan(["b1"]))
    assert report.refusal is not None
    assert re.search(advice.format(ledger_id), report.refusal)
    assert ("delete --unreadable" in report.refusal) is not (b"\t4" in data)
    assert "b1" in await fleet.cookies.ids()


async def test_a_loss_of_which_the_metadata_changed_during_the_check_is_not_proven(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    ledger_id = await fleet.store(two_copies())
    del fleet.bookies["b2"].ledgers[ledger_id]
    held = fleet.bookies["b2"].hold("read")
    planning = asyncio.create_task(fleet.decommission().plan(["b1"], accepted_losses=[ledger_id]))
    await held.arrived()
    await fleet.fakes.change(ledger_id, custom_metadata=())
    held.release()
    with pytest.raises(RefusedError, match=f"ledger {ledger_id}: its metadata was changed during the check"):
        await planning


async def test_a_loss_that_is_no_longer_proven_at_the_end_keeps_the_cookie(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    ledger_id = await fleet.store(two_copies())
    found = fleet.bookies["b2"].ledgers[ledger_id].entries.pop(3)
    decommission = fleet.decommission()
    plan = await decommission.plan(["b1"], accepted_losses=[ledger_id])
    fleet.bookies["b2"].ledgers[ledger_id].entries[3] = found  # its disk is back

    report = await carry_out(decommission, plan)

    assert report.refusal is not None
    assert "no longer proven lost" in report.refusal
    assert "b1" in await fleet.cookies.ids()


async def test_without_the_word_of_the_operator_a_loss_keeps_the_cookie(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    await fleet.add_cookie("b1")
    lost = [await fleet.store(two_copies()) for _ in range(2)]
    for ledger_id in lost:
        del fleet.bookies["b2"].ledgers[ledger_id]

    report = await accept(fleet, "b1", lost[0])

    assert (report.remaining, report.accepted) == ((lost[1],), (lost[0],))
    assert "b1" in await fleet.cookies.ids()
