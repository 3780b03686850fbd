"""`ledger verify`: what is counted, and that nothing is fenced or written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from bkctl.runtime.ledger.changes import replace_in_segment
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.judge.check_scope import CheckScope
from bkctl.runtime.replication.judge.copies import CheckTotals, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.survey.checker import ROUNDS_MAX, LedgerChecker
from bkctl.storage.ids import ENTRY_ID_MAX
from tests.runtime.client.fakes import credentials
from tests.runtime.replication.fleet import QUICK, Fleet, length_of
from tests.runtime.replication.samples import ledger


def counts(check: LedgerCheck) -> tuple[int, int, int, int, int, int]:
    """Expected, good, missing, corrupt, unreachable, different; failed ones have tests of their own."""
    assert check.copies_failed == sum(row.copies for row in check.defects if row.state is CopyState.FAILED)
    return (
        check.copies_expected,
        check.copies_good,
        check.copies_missing,
        check.copies_corrupt,
        check.copies_unreachable,
        check.copies_different,
    )


async def test_every_copy_is_read_and_a_good_ledger_is_clean(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=29, length=length_of(30)))

    check = await fleet.check(ledger_id)

    assert check.is_clean
    assert counts(check) == (60, 60, 0, 0, 0, 0)
    assert (check.entries, check.last_entry_id, check.ledger_state) == (30, 29, "closed")
    for bookie in fleet.bookies.values():
        assert sorted(request.entry_id for request in bookie.requests) == bookie.holds(ledger_id)
        assert not any(request.is_fencing for request in bookie.requests)
        assert not bookie.ledgers[ledger_id].is_fenced
    assert check.bytes_read == sum(
        len(body) for bookie in fleet.bookies.values() for body in bookie.ledgers[ledger_id].entries.values()
    )


async def test_missing_corrupt_and_unreachable_are_told_apart(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "dead"]}, 3, 2, last_entry_id=9, length=length_of(10)))
    del fleet.bookies["b1"].ledgers[ledger_id].entries[3]
    fleet.bookies["b2"].damage(ledger_id, 5)
    fleet.bookies["b2"].refuse("read", Status.IO_ERROR, entry_id=7)

    check = await fleet.check(ledger_id)

    assert counts(check) == (30, 17, 1, 1, 10, 0)
    assert check.copies_failed == 1
    assert {(defect.bookie_id, defect.state): defect.entries for defect in check.defects} == {
        ("b1", CopyState.MISSING): (EntryRange(3, 3),),
        ("b2", CopyState.CORRUPT): (EntryRange(5, 5),),
        ("b2", CopyState.FAILED): (EntryRange(7, 7),),
        ("dead", CopyState.UNREACHABLE): (EntryRange(0, 9),),
    }
    assert [row.reason for row in check.defects if row.state is CopyState.FAILED] == ["it answered: input/output error"]
    assert (check.lost, check.unreadable) == ((), ())


async def test_an_error_in_answer_is_damage_but_no_proof_of_loss(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)), holes=["b1"])
    fleet.bookies["b2"].refuse("read", Status.IO_ERROR, entry_id=1)

    check = await fleet.check(ledger_id)

    assert counts(check) == (4, 1, 2, 0, 0, 0)
    assert check.copies_failed == 1
    assert (check.lost, check.unreadable, check.failed) == ((), (EntryRange(1, 1),), (EntryRange(1, 1),))


async def test_only_if_all_bookies_answered_every_copy_failed(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "dead"]}, 2, 2, last_entry_id=5, length=length_of(6)))
    for bookie_id in ("b1", "b2"):
        fleet.bookies[bookie_id].refuse("read", Status.IO_ERROR)
    fleet.fakes.put(fleet.bookies["b3"], ledger_id, 3, lac=2)

    check = await fleet.check(ledger_id)

    # Entries 0 and 3 are on b1 and b2, the others on one of them and a dead one. b3 should not have 3.
    assert (check.failed, check.lost) == ((EntryRange(0, 0),), ())
    assert check.unreadable == (EntryRange(0, 2), EntryRange(4, 5))


async def test_t41_an_entry_that_nobody_has_is_data_loss(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(
        ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=0, length=length_of(1)), holes=["b1", "b2", "b3"]
    )

    check = await fleet.check(ledger_id)

    assert not check.is_clean
    assert check.lost == (EntryRange(0, 0),)
    assert counts(check) == (3, 0, 3, 0, 0, 0)


async def test_entries_that_a_bookie_outside_of_the_ensemble_has_are_not_lost(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3", "b4")
    sample = ledger({0: ["b1", "b2"], 4: ["b1", "dead"]}, 2, 2, last_entry_id=7, length=length_of(8))
    ledger_id = await fleet.store(sample, holes=["b1", "b2"])
    for bookie_id, entry_id in (("b3", 1), ("b3", 2), ("b4", 2), ("b2", 5)):
        fleet.fakes.put(fleet.bookies[bookie_id], ledger_id, entry_id, lac=entry_id - 1)
    fleet.bookies["b3"].damage(ledger_id, 1)

    check = await fleet.check(ledger_id)

    assert check.lost == (EntryRange(0, 1), EntryRange(3, 3))
    assert check.unreadable == (EntryRange(4, 4), EntryRange(6, 7))
    assert counts(check) == (16, 0, 12, 0, 4, 0)


async def test_silence_is_not_loss(fleet: Fleet) -> None:
    await fleet.start("b1")
    ledger_id = await fleet.store(ledger({0: ["b1", "dead"]}, 2, 2, last_entry_id=1, length=length_of(2)), holes=["b1"])

    check = await fleet.check(ledger_id)

    assert (check.lost, check.unreadable) == ((), (EntryRange(0, 1),))


async def test_copies_that_differ_are_found_although_their_digests_hold(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=1, length=length_of(2)))
    codec = credentials(ledger_id).codec
    fleet.bookies["b1"].ledgers[ledger_id].entries[1] = codec.encode(1, 0, length_of(2), b"other text")

    check = await fleet.check(ledger_id)

    assert counts(check) == (6, 5, 0, 0, 0, 1)
    assert [(defect.bookie_id, defect.state) for defect in check.defects] == [("b1", CopyState.DIFFERENT)]


async def test_another_last_add_confirmed_in_a_copy_is_no_difference(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=3, length=length_of(4)))
    codec = credentials(ledger_id).codec
    entry = codec.decode(2, fleet.bookies["b1"].ledgers[ledger_id].entries[2])
    fleet.bookies["b1"].ledgers[ledger_id].entries[2] = codec.encode(2, 3, entry.length, entry.payload)

    assert (await fleet.check(ledger_id)).is_clean


async def test_an_open_ledger_is_checked_up_to_what_is_confirmed_and_not_fenced(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"], 3: ["b2", "b1"]}, 2, 2, state=LedgerState.OPEN))
    for bookie in fleet.bookies.values():
        for entry_id in (3, 4, 5):
            fleet.fakes.put(bookie, ledger_id, entry_id, lac=entry_id - 1)

    check = await fleet.check(ledger_id)

    assert (check.entries, check.last_entry_id, check.is_clean) == (5, 4, True)
    assert not any(bookie.ledgers[ledger_id].is_fenced for bookie in fleet.bookies.values())


async def test_an_open_ledger_whose_end_is_unknown_has_its_complete_segments_checked(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"], 3: ["dead", "gone"]}, 2, 2, state=LedgerState.OPEN))

    check = await fleet.check(ledger_id)

    assert (check.entries, check.copies_good, check.last_entry_id) == (3, 6, 2)
    assert check.problem is not None
    assert not check.is_clean


async def test_named_entries_are_read_although_the_end_is_unknown(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "dead", "gone"]}, 2, 2, state=LedgerState.OPEN))
    for entry_id in range(9):
        for index in (entry_id % 4, (entry_id + 1) % 4):
            if index < 2:
                fleet.fakes.put(fleet.bookies[f"b{index + 1}"], ledger_id, entry_id, lac=entry_id - 1)
    del fleet.bookies["b1"].ledgers[ledger_id].entries[4]  # its other copy is good
    fleet.bookies["b1"].damage(ledger_id, 7)  # its other copy is on a bookie that is down

    check = await fleet.check(ledger_id, CheckScope((EntryRange(0, 8),)))

    # Entries 0, 4 and 8 are on both that are up, 1 and 5 on b2 and a dead one, 2 and 6 on dead ones alone. Entry 8 says
    # that 0 to 7 are confirmed.
    assert (check.entries, check.copies_good, check.copies_missing, check.copies_corrupt) == (9, 8, 1, 1)
    assert (check.lost, check.unreadable) == ((), (EntryRange(2, 2), EntryRange(6, 7)))
    assert (check.last_entry_id, check.is_clean) == (8, False)
    assert "it is open, and its end is unknown" in str(check.problem)
    assert not any(bookie.ledgers[ledger_id].is_fenced for bookie in fleet.bookies.values())

    beyond = await fleet.check(ledger_id, CheckScope((EntryRange(8, 13),)))
    assert (beyond.entries, beyond.copies_expected, beyond.lost) == (1, 2, ())
    assert beyond.unreadable == (EntryRange(9, 11), EntryRange(13, 13)), "a bookie that is down may have them"
    assert "; no bookie of their write sets has 12" in str(beyond.problem)


async def test_entries_that_one_bookie_knows_to_be_confirmed_are_read_although_the_end_is_unknown(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2, state=LedgerState.OPEN))
    for entry_id in range(9):
        for index in (entry_id % 3, (entry_id + 1) % 3):
            fleet.fakes.put(fleet.bookies[f"b{index + 1}"], ledger_id, entry_id, lac=entry_id - 1)
    for bookie_id in ("b1", "b2"):  # their log is gone
        fleet.bookies[bookie_id].refuse("read_lac", Status.IO_ERROR)
        fleet.bookies[bookie_id].refuse("read", Status.IO_ERROR)

    check = await fleet.check(ledger_id)

    assert (check.last_entry_id, check.entries) == (7, 8)
    assert check.failed == (EntryRange(0, 0), EntryRange(3, 3), EntryRange(6, 6))
    assert "entries from 8 on were not read: " in str(check.problem)


async def test_no_endless_range_is_read_while_the_end_is_unknown(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"], 3: ["gone", "dead"]}, 2, 2, state=LedgerState.OPEN))

    for last in (ENTRY_ID_MAX, ENTRY_ID_MAX - 1, 100_003):
        check = await fleet.check(ledger_id, CheckScope((EntryRange(1, last),)))
        assert (check.entries, check.copies_good, check.last_entry_id) == (2, 4, 2)
        assert "entries from 3 on were not read: name at most 100000" in str(check.problem)
    assert fleet.bookies["b1"].count("read") == fleet.bookies["b2"].count("read") == 3 * 2


async def test_named_entries_above_what_is_confirmed_are_read_and_never_lost(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=LedgerState.OPEN))
    for entry_id in range(6):
        for bookie in fleet.bookies.values():
            fleet.fakes.put(bookie, ledger_id, entry_id, lac=entry_id - 1)
    for bookie in fleet.bookies.values():
        bookie.damage(ledger_id, 5)

    assert (await fleet.check(ledger_id, CheckScope((EntryRange(5, 6),)))).entries == 1
    for bookie_id in ("b1", "b2"):
        del fleet.bookies[bookie_id].ledgers[ledger_id].entries[5]
    check = await fleet.check(ledger_id, CheckScope((EntryRange(3, 8),)))
    assert (check.entries, check.last_entry_id, check.lost, check.unreadable) == (3, 5, (), (EntryRange(5, 5),))
    assert (await fleet.check(ledger_id)).last_entry_id == 3
    fleet.bookies["b3"].refuse("read", Status.UNKNOWN_LEDGER_STATE, entry_id=7)
    doubtful = await fleet.check(ledger_id, CheckScope((EntryRange(3, 8),)))
    assert doubtful.problem == "entries 7 may exist on bookies that gave no certain answer"


async def test_entries_before_the_open_segment_need_no_end(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"], 3: ["dead", "gone"]}, 2, 2, state=LedgerState.OPEN))

    check = await fleet.check(ledger_id, CheckScope((EntryRange(0, 2),)))

    assert (check.is_clean, check.entries, check.copies_good, check.problem) == (True, 3, 6, None)


async def test_a_damaged_last_entry_does_not_hide_the_others(fleet: Fleet) -> None:
    await fleet.start("b1")
    ledger_id = await fleet.store(ledger({0: ["b1"]}, 1, 1, state=LedgerState.OPEN))
    for entry_id in range(4):
        fleet.fakes.put(fleet.bookies["b1"], ledger_id, entry_id, lac=entry_id - 1)
    fleet.bookies["b1"].damage(ledger_id, 3)

    check = await fleet.check(ledger_id, CheckScope((EntryRange(0, 3),)))

    assert (check.entries, check.copies_good, check.copies_corrupt) == (4, 3, 1)
    assert (check.lost, check.unreadable, check.last_entry_id) == ((), (EntryRange(3, 3),), 3)


async def test_a_copy_that_moved_during_the_check_is_not_missing(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=3, length=length_of(4)), holes=["b1"])
    for entry_id in range(4):
        fleet.fakes.put(fleet.bookies["b3"], ledger_id, entry_id)
    held = fleet.bookies["b1"].hold("read")
    running = asyncio.create_task(fleet.check(ledger_id))
    await held.arrived()
    stored = await fleet.read(ledger_id)
    await fleet.ledgers.write(ledger_id, replace_in_segment(stored.value, 0, {0: "b3"}), stored.version)
    held.release()

    assert (await running).is_clean


async def test_a_ledger_deleted_during_the_last_round_is_no_finding(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=3, length=length_of(4))
    ledger_id = await fleet.store(metadata, holes=["b1"])
    reads = 0

    async def read(ledger_id: int) -> Versioned[LedgerMetadata]:
        nonlocal reads
        stored = await original(ledger_id)
        reads += 1
        if reads < ROUNDS_MAX:
            await fleet.ledgers.write(ledger_id, stored.value, stored.version)
        else:
            await fleet.ledgers.delete(ledger_id)
        return stored

    original, fleet.ledgers.read = fleet.ledgers.read, read  # type: ignore[method-assign]
    assert (await fleet.check(ledger_id)).is_deleted
    assert reads == ROUNDS_MAX


async def test_a_deleted_ledger_is_no_finding_and_unreadable_metadata_is_one(fleet: Fleet) -> None:
    await fleet.start("b1")
    assert (await fleet.check(4711)).is_deleted
    path = f"{fleet.ledgers.root}/{fleet.ledgers.tree.ledger_path(555)}"
    await fleet.client.store.create(path, b"garbage", make_parents=True)
    check = await fleet.check(555)
    assert check.problem is not None
    assert not check.is_clean


async def test_an_overloaded_bookie_is_asked_again(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    fleet.bookies["b1"].refuse("read", Status.TOO_MANY_REQUESTS, times=12)

    assert (await fleet.check(ledger_id)).is_clean


async def test_all_ledgers_are_summed_up(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))) for _ in range(20)]
    del fleet.bookies["b1"].ledgers[ids[7]]
    live = (await fleet.registration.snapshot()).live
    seen: list[int] = []

    async def chosen() -> AsyncIterator[int]:
        for ledger_id in [*ids, 4711]:
            yield ledger_id

    def take(check: LedgerCheck, _totals: CheckTotals) -> None:
        seen.append(check.ledger_id)

    totals = await LedgerChecker(fleet.client.ports, live, QUICK).check_all(chosen(), take)

    assert sorted(seen) == [*ids, 4711]
    assert (totals.ledgers, totals.ledgers_clean, totals.entries) == (20, 19, 100)
    assert (totals.copies_expected, totals.copies_good, totals.copies_missing) == (200, 195, 5)
