"""A request handler over real storage and real lanes, without a network."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from runtime.bookie.adds import AddPath
from runtime.bookie.group_commit import GroupCommit
from runtime.bookie.handler import BookieRequestHandler
from runtime.bookie.ledger_handles import LedgerHandles
from runtime.bookie.modes import BookieModes
from runtime.net.loop import LaneWorkers, LoopClock
from runtime.ports import BookieInfo
from runtime.protocol.status import Status
from storage.config import JournalConfig
from storage.errors import JournalFailedError
from storage.ledger_storage import LedgerStorage
from tests.storage.engines import KEY, entry, explicit_lac


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
        self.workers = LaneWorkers()
        self._journal = GroupCommit(
            storage.journals[0], self.workers, "journal-0", journal_config, on_disk_room=lambda _: None
        )
        handles = LedgerHandles(storage, [self._journal])
        self.forget = handles.forget
        self.handler = BookieRequestHandler(
            storage,
            handles,
            AddPath(handles, LoopClock(), 1, lambda: None),
            self.workers,
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

    async def list_entries(self, ledger_id: int) -> tuple[Any, ...]:
        """Status and list."""
        connection: Any = NotingConnection()
        self.handler.list_entries(connection, 1, ledger_id)
        answer: tuple[Any, ...] = await connection.answer
        return answer[2:]

    async def add(self, ledger_id: int, entry_id: int, *, key: bytes = KEY, is_recovery: bool = False) -> Status:
        connection: Any = NotingConnection()
        body = entry(ledger_id, entry_id)
        self.handler.add(connection, 1, ledger_id, entry_id, key, body, is_recovery, False, False)
        status: Status = (await connection.answer)[-1]
        return status

    def fence(self, ledger_id: int) -> asyncio.Future[tuple[Any, ...]]:
        """The answer to a fencing read of the last entry."""
        connection: Any = NotingConnection()
        self.handler.read(connection, 1, ledger_id, -1, KEY, False)
        return connection.answer  # type: ignore[no-any-return]

    def force_ledger(self, ledger_id: int) -> asyncio.Future[tuple[Any, ...]]:
        connection: Any = NotingConnection()
        self.handler.force_ledger(connection, 1, ledger_id)
        return connection.answer  # type: ignore[no-any-return]

    async def write_lac(self, ledger_id: int, last_add_confirmed: int, key: bytes = KEY) -> Status:
        connection: Any = NotingConnection()
        self.handler.write_lac(connection, 1, ledger_id, key, explicit_lac(ledger_id, last_add_confirmed))
        status: Status = (await connection.answer)[-1]
        return status

    async def close(self) -> None:
        await self.handler.drain()
        self._journal.stop()
        with contextlib.suppress(JournalFailedError):
            await self._commits
        await self.workers.close()
        self.storage.close()
