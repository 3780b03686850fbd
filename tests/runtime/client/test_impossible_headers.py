"""Entries whose digest holds but whose header says what cannot be: recovery fails for that ledger, and says why."""

from __future__ import annotations

import pytest

from bkctl.runtime.errors import LedgerRecoveryError
from bkctl.runtime.ledger.metadata import LedgerState, Segment
from tests.runtime.client.fakes import PASSWORD, Fakes, closed, credentials, end, payload
from tests.runtime.client.scripted_bookie import ScriptedBookie, StoredLedger

THREE = ("b1", "b2", "b3")
GREATEST = 2**63 - 1


def put(bookies: list[ScriptedBookie], ledger_id: int, entry_id: int, lac: int, length: int) -> None:
    """An entry with this header on all bookies."""
    keys = credentials(ledger_id)
    for bookie in bookies:
        stored = bookie.ledgers.setdefault(ledger_id, StoredLedger(keys.master_key))
        stored.entries[entry_id] = keys.codec.encode(entry_id, lac, length, payload(entry_id))


@pytest.mark.parametrize("length", [-1, -(2**63)])
async def test_a_negative_length_in_the_tail_fails_the_recovery(fakes: Fakes, length: int) -> None:
    """The length of the last entry becomes that of the ledger."""
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    put(bookies, ledger_id, 0, -1, 10)
    put(bookies, ledger_id, 1, -1, length)
    with pytest.raises(LedgerRecoveryError, match=f"entry 1.*length {length}"):
        await fakes.recover(ledger_id)
    assert (await fakes.metadata(ledger_id)).state is LedgerState.IN_RECOVERY


async def test_a_negative_length_of_the_last_confirmed_entry_fails_the_recovery(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    await fakes.change(ledger_id, segments=(Segment(0, THREE), Segment(1, ("b3", "b1", "b2"))))
    put(bookies, ledger_id, 0, -1, -5)
    with pytest.raises(LedgerRecoveryError, match=r"entry 0.*length -5"):
        await fakes.recover(ledger_id)
    assert (await fakes.metadata(ledger_id)).state is LedgerState.IN_RECOVERY


async def test_another_copy_with_a_sound_length_is_taken(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    tail, confirmed = [(await fakes.create(THREE, 3, 2))[0] for _ in range(2)]
    await fakes.change(confirmed, segments=(Segment(0, THREE), Segment(1, ("b3", "b1", "b2"))))
    for ledger_id in (tail, confirmed):
        put(bookies[:2], ledger_id, 0, -1, -5)
        put(bookies[2:], ledger_id, 0, -1, 10)
        assert end(await fakes.recover(ledger_id)) == closed(0, 10)


@pytest.mark.parametrize("lac", [1, 2, GREATEST - 1, GREATEST, -2, -(2**63)])
async def test_an_impossible_last_add_confirmed_is_not_believed(fakes: Fakes, lac: int) -> None:
    """An entry is sent before it is confirmed, so what it says is confirmed comes before it."""
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    put(bookies, ledger_id, 0, -1, 10)
    put(bookies, ledger_id, 1, lac, 20)
    client = await fakes.client()
    reader = await client.open(ledger_id, password=PASSWORD)
    assert reader.last_add_confirmed == -1
    assert len(await reader.read_unconfirmed(0, 1)) == 2
    assert reader.last_add_confirmed == -1
    assert end(await fakes.recover(ledger_id)) == closed(1, 20)


async def test_the_greatest_entry_ids_there_are_can_be_recovered(fakes: Fakes) -> None:
    """Reading ahead ends where entry ids end."""
    bookies = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 2)
    await fakes.change(ledger_id, segments=(Segment(0, THREE), Segment(GREATEST - 1, THREE)))
    for entry_id in (GREATEST - 1, GREATEST):
        put(bookies, ledger_id, entry_id, GREATEST - 2, 100)
    assert end(await fakes.recover(ledger_id)) == closed(GREATEST, 100)
