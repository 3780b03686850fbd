"""Answers to batch reads that many clients get: the same bytes, until a newer copy of an entry exists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.protocol.messages import BatchReadRequest
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_bookie import encode_entries
from bkctl.storage.config import EngineConfig
from bkctl.storage.engine.replay import checkpoint_now
from tests.runtime.bookie.committing import add_run
from tests.runtime.bookie.handler_bookie import Bookie
from tests.storage.engines import config_below, open_storage

_COUNT = 100
_PAYLOAD = bytes(100)


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    config = config_below(tmp_path, engine=EngineConfig(memtable_bytes_max=1 << 20, read_cache_bytes_max=1 << 20))
    storage = open_storage(config)
    storage.replay()
    bookie = Bookie(storage, config.journal)
    yield bookie
    await bookie.close()


async def read_batch(bookie: Bookie, first: int = 0, *, count_max: int = _COUNT, bytes_max: int = 1 << 20) -> bytes:
    """The encoded entries."""
    call = BatchReadRequest(-3, 1, 5, first, count_max, bytes_max, None, False)
    status, block = await bookie.ask(call).fields(2)
    assert status is Status.OK
    assert isinstance(block, bytes)
    return block


async def add(bookie: Bookie, *entry_ids: int, payload: bytes = _PAYLOAD) -> list[bytes]:
    """The bodies of these entries, which are stored."""
    run = add_run(5, *entry_ids, payload=payload)
    bodies = list(run.bodies)
    assert await bookie.ask(run).status() is Status.OK
    return bodies


@pytest.fixture(params=["in memory", "on disk", "half on disk"])
async def bodies(request: pytest.FixtureRequest, bookie: Bookie) -> list[bytes]:
    """Those of a hundred stored entries."""
    first_half = await add(bookie, *range(_COUNT // 2))
    if request.param == "half on disk":
        checkpoint_now(bookie.engine)
    second_half = await add(bookie, *range(_COUNT // 2, _COUNT))
    if request.param == "on disk":
        checkpoint_now(bookie.engine)
    return first_half + second_half


async def test_followers_share_an_answer(bookie: Bookie, bodies: list[bytes]) -> None:
    first = await read_batch(bookie)
    assert first == encode_entries(bodies)
    assert await read_batch(bookie) is first
    assert await read_batch(bookie, 1, count_max=50) == encode_entries(bodies[1:51])
    assert await read_batch(bookie, bytes_max=36 + len(first) - 1) == encode_entries(bodies[:-1])


async def test_an_entry_that_is_added_again_is_in_the_next_answer(bookie: Bookie, bodies: list[bytes]) -> None:
    await read_batch(bookie)
    await add(bookie, _COUNT)
    await read_batch(bookie)
    bodies[60:62] = await add(bookie, 60, 61, payload=b"newer" * 20)
    assert await read_batch(bookie) == encode_entries(bodies)
    bodies[:1] = await add(bookie, 0, payload=b"newer" * 20)
    assert await read_batch(bookie) == encode_entries(bodies)


async def test_an_answer_that_ends_with_the_stored_entries_grows(bookie: Bookie, bodies: list[bytes]) -> None:
    assert await read_batch(bookie, count_max=1000) == encode_entries(bodies)
    bodies += await add(bookie, _COUNT, _COUNT + 1)
    assert await read_batch(bookie, count_max=1000) == encode_entries(bodies)


async def test_a_deleted_ledger_has_no_answer(bookie: Bookie, bodies: list[bytes]) -> None:
    await read_batch(bookie)
    bookie.engine.delete_ledger(5)
    bookie.forget(5)
    call = BatchReadRequest(-3, 1, 5, 0, _COUNT, 1 << 20, None, False)
    assert await bookie.ask(call).status() is Status.NO_SUCH_LEDGER
    checkpoint_now(bookie.engine)
    bookie.engine.note_marks_published(bookie.engine.delete_count)
    (new,) = await add(bookie, 0, payload=b"another ledger")
    assert await read_batch(bookie) == encode_entries([new])
    assert new != bodies[0]
