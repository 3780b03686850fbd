"""The sanity test of a bookie: what it asks of which bookie, and that its ledger never stays."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from bkctl.runtime.client.sanity import run_sanity_test
from bkctl.runtime.errors import (
    BookieIOError,
    BookieReadOnlyError,
    DigestMismatchError,
    LedgerNotFoundError,
    NotEmptyError,
)
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from tests.runtime.client.fakes import Fakes


def must_not_stay(ledger_id: int, error: BaseException) -> None:
    raise AssertionError(f"ledger {ledger_id} was not deleted: {error}")


async def is_gone(fakes: Fakes, ledger_id: int = 0) -> bool:
    try:
        await fakes.ledgers.read(ledger_id)
    except LedgerNotFoundError:
        return True
    return False


async def test_one_bookie_stores_and_returns_all_entries(fakes: Fakes) -> None:
    first, second = await fakes.bookies("b1", "b2")
    client = await fakes.client()
    result = await run_sanity_test(client.ports, "b2", 3, must_not_stay)
    assert (result.ledger_id, result.entries) == (0, 3)
    assert (first.requests, second.holds(0), second.count("read")) == ([], [0, 1, 2], 3)
    assert await is_gone(fakes)


@pytest.mark.parametrize(
    ("status", "error"), [(Status.IO_ERROR, BookieIOError), (Status.READ_ONLY, BookieReadOnlyError)]
)
async def test_a_refused_add_is_no_reason_to_use_another_bookie(
    fakes: Fakes, status: Status, error: type[Exception]
) -> None:
    first, second = await fakes.bookies("b1", "b2")
    first.refuse("add", status, entry_id=1)
    client = await fakes.client()
    with pytest.raises(error, match=r"bookie b1: .* \(add of entry 1 of test ledger 0\)"):
        await run_sanity_test(client.ports, "b1", 3, must_not_stay)
    assert (first.holds(0), second.requests) == ([0], [])
    assert await is_gone(fakes)


async def test_a_changed_entry_fails_the_test(fakes: Fakes) -> None:
    [bookie] = await fakes.bookies("b1")
    held = bookie.hold("read", entry_id=1)
    client = await fakes.client()
    running = asyncio.ensure_future(run_sanity_test(client.ports, "b1", 3, must_not_stay))
    await held.arrived()
    bookie.damage(0, 1)
    bookie.obey()
    held.release()
    with pytest.raises(DigestMismatchError, match="the copy on bookie b1 is damaged"):
        await running
    assert await is_gone(fakes)


async def test_a_cancelled_test_deletes_its_ledger(fakes: Fakes) -> None:
    [bookie] = await fakes.bookies("b1")
    held = bookie.hold("add", entry_id=2)
    client = await fakes.client()
    running = asyncio.ensure_future(run_sanity_test(client.ports, "b1", 3, must_not_stay))
    await held.arrived()
    assert not await is_gone(fakes)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await is_gone(fakes)


class SlowAnswers(ZooKeeperStore):
    """Creates a node at once, and answers when it is allowed to."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.created, self.may_answer = asyncio.Event(), asyncio.Event()

    async def create(self, path: str, *arguments: object, **options: object) -> str:
        result = await super().create(path, *arguments, **options)  # type: ignore[arg-type]
        if "/L0" in path:
            self.created.set()
            await self.may_answer.wait()
        return result


async def test_a_test_cancelled_while_it_creates_the_ledger_deletes_it(fakes: Fakes, metadata_uri: str) -> None:
    [bookie] = await fakes.bookies("b1")
    client = await fakes.client()
    uri = parse_metadata_uri(metadata_uri)
    async with await SlowAnswers.connect(uri.servers) as store:
        ports = dataclasses.replace(client.ports, ledgers=await open_ledger_store(store, uri.root, uri.tree))
        running = asyncio.ensure_future(run_sanity_test(ports, "b1", 3, must_not_stay))
        await store.created.wait()
        running.cancel()
        await asyncio.sleep(0)
        assert not await is_gone(fakes)
        store.may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await is_gone(fakes)
    assert bookie.requests == []


async def test_a_ledger_that_cannot_be_deleted_is_reported(fakes: Fakes) -> None:
    [bookie] = await fakes.bookies("b1")
    held = bookie.hold("read", entry_id=0)
    client = await fakes.client()
    left: list[tuple[int, type[BaseException]]] = []
    running = asyncio.ensure_future(
        run_sanity_test(client.ports, "b1", 1, lambda ledger_id, error: left.append((ledger_id, type(error))))
    )
    await held.arrived()
    await fakes.store.create(f"{fakes.ledgers.path(0)}/child", b"")
    held.release()
    assert (await running).ledger_id == 0
    assert left == [(0, NotEmptyError)]
    assert not await is_gone(fakes)
