"""Opening ledgers. Source: protocol section 1.3."""

from __future__ import annotations

import pytest

from runtime.client.open_ledger import open_ledger
from runtime.errors import ConfigurationError, LedgerNotFoundError, LedgerPasswordError, LedgerReadError
from runtime.ledger.metadata import DigestType
from tests.runtime.client.world import PASSWORD, World, credentials, payload

THREE = ("b1", "b2", "b3")


async def test_a_closed_ledger_is_opened_without_asking_a_bookie(world: World) -> None:
    bookies = await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 3, 2)
    await writer.append(payload(0))
    await writer.close()
    for recover in (False, True):
        reader = await open_ledger(client.ports, writer.ledger_id, PASSWORD, recover=recover)
        assert (reader.is_closed, reader.last_add_confirmed) == (True, 0)
    assert all(bookie.count("read") == bookie.count("read_lac") == 0 for bookie in bookies)


async def test_opening_without_recovery_fences_nothing_and_needs_coverage(world: World) -> None:
    bookies = await world.bookies(*THREE)
    writer, client = await world.writer(THREE, 3, 2)
    for i in range(3):
        await writer.append(payload(i))
    await open_ledger(client.ports, writer.ledger_id, PASSWORD, recover=False)
    assert not any(bookie.ledgers[writer.ledger_id].is_fenced for bookie in bookies)
    assert await writer.append(payload(3)) == 3
    for bookie in bookies[:2]:
        await bookie.stop()
    with pytest.raises(LedgerReadError, match="how far it is confirmed"):
        await open_ledger(client.ports, writer.ledger_id, PASSWORD, recover=False)


async def test_an_unknown_ledger_is_not_found(world: World) -> None:
    client = await world.client()
    with pytest.raises(LedgerNotFoundError):
        await client.open(4711, recover=True)


async def test_metadata_without_password_and_digest_takes_the_callers(world: World) -> None:
    b1, *others = await world.bookies(*THREE)
    ledger_id, _ = await world.create(THREE, 3, 3)  # version 1 stores no other ack quorum
    await world.change(ledger_id, password=None, digest_type=None, format_version=1)
    for bookie in (b1, *others):
        world.put(bookie, ledger_id, 0, lac=0)
    client = await world.client()
    with pytest.raises(ConfigurationError, match="digest type"):
        await client.open(ledger_id, password=PASSWORD)
    reader = await client.open(ledger_id, password=PASSWORD, recover=True, digest_type=DigestType.CRC32C)
    assert reader.last_add_confirmed == 0
    assert credentials(ledger_id).master_key == b1.ledgers[ledger_id].master_key


async def test_an_empty_password_is_no_wild_card(world: World) -> None:
    ledger_id, _ = await world.create(THREE, 3, 3)
    client = await world.client()
    with pytest.raises(LedgerPasswordError):
        await client.open(ledger_id)
