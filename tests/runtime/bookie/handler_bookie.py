"""A request handler over real storage and real lanes, without a network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.serving.adds import AddPath
from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.bookie.serving.handler import BookieRequestHandler
from bkctl.runtime.bookie.serving.ledger_handles import LedgerHandles
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.ports import BookieInfo
from bkctl.runtime.protocol.messages import (
    BookieAnswer,
    BookieCall,
    ForceLedgerCall,
    ListEntriesCall,
    LongPollRead,
    ReadCall,
    ReadLacCall,
    WriteLacCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import JournalConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.errors import JournalFailedError
from tests.runtime.bookie.committing import add_run
from tests.storage.engines import KEY, explicit_lac


class NotingConnection:
    """Takes the first answer."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[BookieAnswer] = asyncio.get_running_loop().create_future()

    def answer(self, _call: BookieCall, answer: BookieAnswer) -> None:
        self._answer.set_result(answer)

    def suspend(self, _call: LongPollRead, _drop: Callable[[], None]) -> bool:
        return False

    def resume(self, _call: LongPollRead) -> None:
        raise AssertionError("no poll waits")

    async def status(self) -> Status:
        """Of the answer."""
        answer = await self._answer
        return answer if isinstance(answer, Status) else answer.status

    async def fields(self, count: int) -> tuple[Any, ...]:
        """The answer's status and what else it says; a status alone says nothing else."""
        answer = await self._answer
        if isinstance(answer, Status):
            return (answer, *[None] * (count - 1))
        return msgspec.structs.astuple(answer)[1:]


class Bookie:
    def __init__(self, storage: LedgerStorage, journal_config: JournalConfig, *, handles_max: int = 1000) -> None:
        self.storage = storage
        self.engine = storage.engines[0]
        self.workers = LaneWorkers()
        self._journal = GroupCommit(
            storage.journals[0], self.workers, "journal-0", journal_config, on_disk_room=lambda _: None
        )
        handles = LedgerHandles(storage, [self._journal], LoopClock(), handles_max=handles_max)
        self.forget = handles.forget
        self.handler = BookieRequestHandler(
            storage,
            handles,
            AddPath(handles, LoopClock(), 1, lambda: None),
            self.workers,
            lambda: BookieInfo(1, 1),
            BookieModes(is_forced_read_only=False),
            self._settle,
        )
        self._commits = asyncio.get_running_loop().create_task(self._journal.run())

    async def _settle(self) -> None:
        checkpoint_now(self.engine)

    async def read(self, ledger_id: int, entry_id: int, fence_with: bytes | None = None) -> tuple[Any, ...]:
        """Status, body and LAC."""
        return await self.ask(ReadCall(1, ledger_id, entry_id, fence_with, False)).fields(3)

    async def read_lac(self, ledger_id: int) -> tuple[Any, ...]:
        """Status, explicit LAC and body of the last entry."""
        return await self.ask(ReadLacCall(1, ledger_id)).fields(3)

    async def list_entries(self, ledger_id: int) -> tuple[Any, ...]:
        """Status and list."""
        return await self.ask(ListEntriesCall(1, ledger_id)).fields(2)

    async def add(self, ledger_id: int, entry_id: int, *, key: bytes = KEY, is_recovery: bool = False) -> Status:
        run = add_run(ledger_id, entry_id, key=key)
        run.is_recovery_add = is_recovery
        return await self.ask(run).status()

    def fence(self, ledger_id: int) -> asyncio.Task[Status]:
        """The status of a fencing read of the last entry."""
        return asyncio.ensure_future(self.ask(ReadCall(1, ledger_id, -1, KEY, False)).status())

    def force_ledger(self, ledger_id: int) -> asyncio.Task[Status]:
        return asyncio.ensure_future(self.ask(ForceLedgerCall(1, ledger_id)).status())

    async def write_lac(self, ledger_id: int, last_add_confirmed: int, key: bytes = KEY) -> Status:
        return await self.ask(WriteLacCall(1, ledger_id, key, explicit_lac(ledger_id, last_add_confirmed))).status()

    def ask(self, call: BookieCall) -> NotingConnection:
        """Hand a call to the handler; what it returns waits for the answer."""
        connection = NotingConnection()
        self.handler.handle(connection, call)
        return connection

    async def close(self) -> None:
        await self.handler.drain()
        self._journal.stop()
        with contextlib.suppress(JournalFailedError):
            await self._commits
        await self.workers.close()
        self.storage.close()
