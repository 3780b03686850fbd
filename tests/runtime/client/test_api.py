"""The public client, and the example in its documentation."""

from __future__ import annotations

import logging
import textwrap

import pytest

import bkctl.runtime.client.api
from bkctl.runtime.client import DigestType, Entry, LedgerClient, LedgerReader, LedgerWriter
from bkctl.runtime.client.api import open_ledger, quorum_warning
from bkctl.runtime.errors import (
    ClusterNotFoundError,
    ConfigurationError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerNotFoundError,
    LedgerPasswordError,
    LedgerReadError,
    NotEnoughBookiesError,
)
from bkctl.runtime.ledger.metadata_format import NewerFormatError
from bkctl.runtime.metadata.store import ANY_VERSION
from tests.runtime.client.fakes import PASSWORD, Fakes, credentials, payload
from tests.until import until


async def test_the_documented_example_runs(fakes: Fakes, metadata_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    await fakes.bookies("b1", "b2", "b3")
    document = bkctl.runtime.client.api.__doc__
    assert document is not None
    example = document.partition("\n\n")[2].rpartition("\n\n")[0]
    names: dict[str, object] = {}
    exec(textwrap.dedent(example), names)  # the documentation is the test
    await names["main"](metadata_uri)  # type: ignore[operator]
    assert capsys.readouterr().out == "".join(f"{i} {b'entry %d' % i!r}\n" for i in range(10))
    assert len([line for line in example.splitlines() if line.strip()]) <= 12


async def test_a_ledger_is_written_and_read_back(fakes: Fakes, metadata_uri: str) -> None:
    await fakes.bookies("b1", "b2", "b3", "b4")
    async with await LedgerClient.connect(metadata_uri) as client:
        writer = await client.create(
            ensemble_size=4,
            write_quorum_size=3,
            ack_quorum_size=2,
            digest_type=DigestType.HMAC,
            password=b"secret",
            custom_metadata={"owner": b"test"},
        )
        assert isinstance(writer, LedgerWriter)
        async with writer:
            assert [await writer.append(payload(i)) for i in range(20)] == list(range(20))
        reader = await client.open(writer.ledger_id, password=b"secret")
        assert isinstance(reader, LedgerReader)
        assert await reader.read(18) == [Entry(18, payload(18)), Entry(19, payload(19))]
        assert reader.metadata.custom_metadata == (("owner", b"test"),)
        assert len(set(reader.metadata.last_segment.ensemble)) == 4


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 2, 0), (0, 0, 0), (3, 3, -1)])
async def test_impossible_quorums_store_nothing(fakes: Fakes, sizes: tuple[int, int, int]) -> None:
    await fakes.bookies("b1", "b2", "b3")
    client = await fakes.client()
    with pytest.raises(ConfigurationError):
        await client.create(ensemble_size=sizes[0], write_quorum_size=sizes[1], ack_quorum_size=sizes[2])
    assert [ledger_id async for ledger_id in fakes.ledgers.list_ids()] == []


async def test_too_few_bookies_store_nothing(fakes: Fakes) -> None:
    await fakes.bookies("b1", "b2")
    client = await fakes.client()
    with pytest.raises(
        NotEnoughBookiesError, match="3 writable bookies are needed for an ensemble, only 2 are registered"
    ):
        await client.create()
    assert [ledger_id async for ledger_id in fakes.ledgers.list_ids()] == []


async def test_a_risky_ack_quorum_is_said_and_shown(fakes: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    await fakes.bookies("b1", "b2", "b3")
    client = await fakes.client()
    with caplog.at_level(logging.WARNING, "bkctl.runtime.client.api"):
        sound = await client.create(write_quorum_size=2, ack_quorum_size=2)
        assert (sound.quorum_warning, caplog.messages) == (None, [])
        risky = await client.create(write_quorum_size=2, ack_quorum_size=1)
    assert risky.quorum_warning is not None
    assert "blocks the recovery" in risky.quorum_warning
    assert caplog.messages == [f"ledger {risky.ledger_id}: {risky.quorum_warning}"]
    assert quorum_warning(1, 1) != quorum_warning(2, 1)


async def test_suspects_are_chosen_only_when_nobody_else_is_left(fakes: Fakes) -> None:
    await fakes.bookies("b1", "b2", "b3", "b4")
    client = await fakes.client()
    client.ports.suspects.add("b2")
    for _ in range(10):
        writer = await client.create(ensemble_size=3)
        assert "b2" not in writer.metadata.last_segment.ensemble
    assert "b2" in (await client.create(ensemble_size=4)).metadata.last_segment.ensemble


async def test_a_taken_ledger_id_is_refused(fakes: Fakes) -> None:
    await fakes.bookies("b1", "b2", "b3")
    client = await fakes.client()
    assert (await client.create(ledger_id=77)).ledger_id == 77
    with pytest.raises(LedgerExistsError):
        await client.create(ledger_id=77)


async def test_t69_deleting_twice_is_fine(fakes: Fakes) -> None:
    await fakes.bookies("b1", "b2", "b3")
    client = await fakes.client()
    writer = await client.create()
    await client.delete(writer.ledger_id)
    await client.delete(writer.ledger_id)
    with pytest.raises(LedgerNotFoundError):
        await client.open(writer.ledger_id)


async def test_metadata_of_a_newer_release_is_not_deleted(fakes: Fakes) -> None:
    await fakes.bookies("b1", "b2", "b3")
    client = await fakes.client()
    writer = await client.create()
    path = client.ports.ledgers.path(writer.ledger_id)
    await client.store.set(path, newer := b"BookieMetadataFormatVersion\t4\n", ANY_VERSION)
    with pytest.raises(NewerFormatError):
        await client.delete(writer.ledger_id)
    assert (await client.store.get(path)).data == newer


async def test_closing_the_client_abandons_its_writers(fakes: Fakes) -> None:
    bookies = await fakes.bookies("b1", "b2", "b3")
    for bookie in bookies:
        bookie.hold("add")
    client = await fakes.client()
    writer = await client.create(ensemble_size=3, write_quorum_size=3)
    added = writer.append_nowait(payload(0))
    await until(lambda: all(bookie.count("add") == 1 for bookie in bookies))
    await client.close()
    await client.close()
    with pytest.raises(LedgerClosedError):
        await added
    assert not (await fakes.metadata(writer.ledger_id)).is_closed


async def test_no_cluster_is_said_at_once(metadata_uri: str) -> None:
    with pytest.raises(ClusterNotFoundError):
        await LedgerClient.connect(metadata_uri)
    with pytest.raises(ConfigurationError):
        await LedgerClient.connect("http://localhost/ledgers")


THREE = ("b1", "b2", "b3")


async def test_a_closed_ledger_is_opened_without_asking_a_bookie(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 2)
    await writer.append(payload(0))
    await writer.close()
    for recover in (False, True):
        reader = await open_ledger(client.ports, writer.ledger_id, PASSWORD, recover=recover)
        assert (reader.is_closed, reader.last_add_confirmed) == (True, 0)
    assert all(bookie.count("read") == bookie.count("read_lac") == 0 for bookie in bookies)


async def test_opening_without_recovery_fences_nothing_and_needs_coverage(fakes: Fakes) -> None:
    bookies = await fakes.bookies(*THREE)
    writer, client = await fakes.writer(THREE, 3, 2)
    for i in range(3):
        await writer.append(payload(i))
    await open_ledger(client.ports, writer.ledger_id, PASSWORD, recover=False)
    assert not any(bookie.ledgers[writer.ledger_id].is_fenced for bookie in bookies)
    assert await writer.append(payload(3)) == 3
    for bookie in bookies[:2]:
        await bookie.stop()
    with pytest.raises(LedgerReadError, match="the last confirmed entry is unknown"):
        await open_ledger(client.ports, writer.ledger_id, PASSWORD, recover=False)


async def test_an_unknown_ledger_is_not_found(fakes: Fakes) -> None:
    client = await fakes.client()
    with pytest.raises(LedgerNotFoundError):
        await client.open(4711, recover=True)


async def test_metadata_without_password_and_digest_takes_the_callers(fakes: Fakes) -> None:
    b1, *others = await fakes.bookies(*THREE)
    ledger_id, _ = await fakes.create(THREE, 3, 3)  # version 1 stores no other ack quorum
    await fakes.change(ledger_id, password=None, digest_type=None, format_version=1)
    for bookie in (b1, *others):
        fakes.put(bookie, ledger_id, 0, lac=0)
    client = await fakes.client()
    with pytest.raises(ConfigurationError, match="digest type"):
        await client.open(ledger_id, password=PASSWORD)
    reader = await client.open(ledger_id, password=PASSWORD, recover=True, digest_type=DigestType.CRC32C)
    assert reader.last_add_confirmed == 0
    assert credentials(ledger_id).master_key == b1.ledgers[ledger_id].master_key


async def test_an_empty_password_is_no_wild_card(fakes: Fakes) -> None:
    ledger_id, _ = await fakes.create(THREE, 3, 3)
    client = await fakes.client()
    with pytest.raises(LedgerPasswordError):
        await client.open(ledger_id)
