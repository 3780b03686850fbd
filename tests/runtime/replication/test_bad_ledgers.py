"""A ledger whose entries or metadata say what cannot be is a failure of that ledger, and the run goes on."""

from __future__ import annotations

import pytest

from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from tests.runtime.client.fakes import credentials, segments
from tests.runtime.client.scripted_bookie import StoredLedger
from tests.runtime.replication.fleet import Fleet, length_of
from tests.runtime.replication.samples import ledger

GREATEST = 2**63 - 1


async def test_a_header_with_a_negative_length_is_the_failure_of_its_ledger(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    bad_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=LedgerState.OPEN))
    good_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=length_of(10)))
    keys = credentials(bad_id)
    for bookie_id in ("b2", "b3"):
        stored = fleet.bookies[bookie_id].ledgers[bad_id] = StoredLedger(keys.master_key)
        stored.entries[0] = keys.codec.encode(0, -1, -5, b"payload")

    report = await fleet.recover("b1")

    (failure,) = report.failures
    assert (failure.ledger_id, failure.reason) == (bad_id, FailureReason.NOT_CLOSED)
    assert "entry 0 has the impossible length -5" in failure.detail
    assert segments((await fleet.read(good_id)).value) == {0: ("b4", "b2", "b3")}


@pytest.mark.parametrize("last_entry_id", [2**40, GREATEST - 1, GREATEST])
@pytest.mark.parametrize("length", [0, -1, -(2**63), GREATEST])
async def test_an_end_beyond_all_memory_is_the_failure_of_its_ledger(
    fleet: Fleet, last_entry_id: int, length: int
) -> None:
    """No memory is set aside for entries before they are found. A source that does not answer ends the copy."""
    await fleet.start("b2", "b3", "b4", "b5")
    bad_id = await fleet.store(ledger({0: ["b1", "b5"]}, 2, 2, state=LedgerState.OPEN))
    good_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=length_of(10)))
    await fleet.fakes.change(bad_id, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)
    fleet.bookies["b5"].drop("read")

    report = await fleet.recover("b1")

    (failure,) = report.failures
    assert (failure.ledger_id, failure.reason) == (bad_id, FailureReason.UNREADABLE)
    assert "b1" not in (await fleet.read(good_id)).value.bookies()
