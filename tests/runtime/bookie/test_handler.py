"""Answers of the handler over real storage and real lanes; the connection notes what it is told to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtime.bookie.adds import AddPath
from runtime.bookie.group_commit import GroupCommit
from runtime.bookie.handler import BookieRequestHandler
from runtime.bookie.ledger_handles import LedgerHandles
from runtime.bookie.modes import BookieModes
from runtime.bookie.reads import ReadBatcher
from runtime.net.loop import LaneWorkers, LoopClock
from runtime.ports import BookieInfo
from runtime.protocol.status import Status
from storage.config import JournalConfig
from storage.ledger_storage import LedgerStorage
from tests.storage.engines import KEY, config_below, entry, explicit_lac, open_storage


class NotingConnection:
    """Takes the first answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return lambda *answer: self.answer.set_result(answer)


class Bookie:
    def __init__(self, storage: LedgerStorage, journal_config: JournalConfig) -> None:
        self.storage = storage
        self.engine = storage.engines[0]
        self._workers = LaneWorkers()
        self._journal = GroupCommit(
            storage.journals[0], self._workers, "journal-0", journal_config, on_disk_room=lambda _: None
        )
        handles = LedgerHandles(storage, [self._journal])
        self.handler = BookieRequestHandler(
            storage,
            handles,
            AddPath(handles, LoopClock(), 1, lambda: None),
            ReadBatcher(self._workers),
            lambda: BookieInfo(1, 1),
            BookieModes(is_forced_read_only=False),
        )
        self._commits = asyncio.get_running_loop().create_task(self._journal.run())

    async def read(self, ledger_id: int, entry_id: int, fence_with: bytes | None = None) -> tuple[Any, ...]:
        """Status, body and LAC."""
        connection: Any = NotingConnection()
        self.handler.read(connection, 1, ledger_id, entry_id, fence_with, False)
        answer: tuple[Any, ...] = await connection.answer
        return answer[3:]

    async def read_lac(self, ledger_id: int) -> tuple[Any, ...]:
        """Status, explicit LAC and body of the last entry."""
        connection: Any = NotingConnection()
        self.handler.read_lac(connection, 1, ledger_id)
        answer: tuple[Any, ...] = await connection.answer
        return answer[2:]

    async def close(self) -> None:
        await self.handler.drain()
        self._journal.stop()
        await self._commits
        await self._workers.close()
        self.storage.close()


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    bookie = Bookie(storage, config.journal)
    yield bookie
    await bookie.close()


async def test_nothing_is_denied_while_the_index_may_be_incomplete(bookie: Bookie) -> None:
    bookie.engine.set_master_key(5, KEY)
    bookie.engine.add(5, 0, entry(5, 0))
    bookie.engine.set_master_key(6, KEY)
    questions = {(5, 1): Status.NO_SUCH_ENTRY, (6, -1): Status.NO_SUCH_ENTRY, (7, 0): Status.NO_SUCH_LEDGER}
    for is_unknown in (False, True, False):
        bookie.engine.negatives_are_unknown = is_unknown
        for question, denied in questions.items():
            assert (await bookie.read(*question))[0] is (Status.UNKNOWN_LEDGER_STATE if is_unknown else denied)
        assert (await bookie.read(5, 1, KEY))[0] is (
            Status.UNKNOWN_LEDGER_STATE if is_unknown else Status.NO_SUCH_ENTRY
        )
        unknown = Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_lac(6))[0] is (unknown if is_unknown else Status.NO_SUCH_ENTRY)
        assert (await bookie.read_lac(7))[0] is (unknown if is_unknown else Status.NO_SUCH_LEDGER)
        assert (await bookie.read(5, 0))[:2] == (Status.OK, entry(5, 0))


async def test_a_ledger_in_limbo_tells_no_end_and_takes_an_explicit_lac(bookie: Bookie) -> None:
    bookie.engine.set_master_key(5, KEY)
    bookie.engine.set_explicit_lac(5, explicit_lac(5, 0))
    bookie.engine.set_limbo(5)
    assert (await bookie.read_lac(5)) == (Status.UNKNOWN_LEDGER_STATE, None, None)
    connection: Any = NotingConnection()
    bookie.handler.write_lac(connection, 1, 5, KEY, explicit_lac(5, 1))
    assert (await connection.answer)[2] is Status.OK
    bookie.engine.clear_limbo(5)
    assert (await bookie.read_lac(5)) == (Status.OK, explicit_lac(5, 1), None)


async def test_what_was_asked_in_limbo_is_not_denied_when_the_answer_comes_behind_it(bookie: Bookie) -> None:
    """The disk was asked before the repair copied the entry there."""
    bookie.engine.set_master_key(5, KEY)
    bookie.engine.set_limbo(5)
    plain: Any = NotingConnection()
    bookie.handler.read(plain, 1, 5, 0, None, False)
    lac: Any = NotingConnection()
    bookie.handler.read_lac(lac, 1, 5)
    bookie.engine.clear_limbo(5)
    assert (await plain.answer)[3] is Status.UNKNOWN_LEDGER_STATE
    assert (await lac.answer)[2] is Status.UNKNOWN_LEDGER_STATE
    assert (await bookie.read(5, 0))[0] is Status.NO_SUCH_ENTRY
