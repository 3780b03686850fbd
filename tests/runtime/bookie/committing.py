"""A journal that commits in the background, over a disk that a test can stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.protocol.messages import AddRun, BookieAnswer, BookieCall
from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import JournalConfig
from bkctl.storage.errors import JournalFailedError, JournalFullError
from bkctl.storage.journal.format import JournalRecordKind
from bkctl.storage.journal.reader import JournalScan, list_journals
from bkctl.storage.journal.writer import JournalWriter
from tests.storage.engines import KEY, entry
from tests.storage.traced_disk import TracedDisk


class GatedDisk(TracedDisk):
    """Lets operations through one name at a time, and runs out of room on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, threading.Event] = {}
        self.is_full = False

    def close_gate(self, operation: str) -> threading.Event:
        gate = self.gates[operation] = threading.Event()
        return gate

    def note(self, operation: str, path: str) -> None:
        super().note(operation, path)
        if (gate := self.gates.get(operation)) is not None:
            gate.wait(60)
        if self.is_full and operation == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class Answers:
    """The connection of the adds: the entry ids that were acknowledged, in order."""

    def __init__(self) -> None:
        self.entry_ids: list[int] = []
        self.statuses: list[Status] = []

    def answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        assert isinstance(call, AddRun)
        assert isinstance(answer, Status)
        self.statuses += [answer] * len(call.entry_ids)
        if answer is Status.OK:
            self.entry_ids += call.entry_ids


def add_run(ledger_id: int, *entry_ids: int, payload: bytes = b"", key: bytes = KEY) -> AddRun:
    """Adds of a writer, which arrive in one read."""
    bodies = [entry(ledger_id, each, payload, last_add_confirmed=max(each - 1, -1)) for each in entry_ids]
    return AddRun(ledger_id, key, False, False, False, list(entry_ids), list(entry_ids), bodies)


class Committing:
    """A journal that commits in the background."""

    def __init__(
        self,
        directory: Path,
        config: JournalConfig,
        on_disk_room: Callable[[JournalFullError | None], None] | None = None,
    ) -> None:
        self.directory = directory
        self.disk = GatedDisk()
        self.answers = Answers()
        self.room: list[JournalFullError | None] = []
        self.workers = LaneWorkers()
        self.writer = JournalWriter.open(self.disk, str(directory), config, now_ms=0)
        self.journal = GroupCommit(
            self.writer,
            self.workers,
            "journal-0",
            config,
            on_disk_room=on_disk_room or self.room.append,
            retry_delay_s=0.005,
        )
        self.task = asyncio.get_running_loop().create_task(self.journal.run())
        self.disk.take_calls()

    def add(self, entry_id: int, size_bytes: int = 0) -> None:
        self.journal.append(self.answers, add_run(1, entry_id, payload=b"x" * size_bytes))

    async def stop(self) -> None:
        self.journal.stop()
        with contextlib.suppress(JournalFailedError):
            await self.task
        await self.workers.close()
        self.writer.close()

    def journaled(self) -> list[int]:
        """Entry ids on disk, in order."""
        return [
            record.entry_id
            for journal_id in list_journals(TracedDisk(), str(self.directory))
            for record in JournalScan(TracedDisk(), str(self.directory / f"{journal_id:x}.txn"), is_newest=True)
            if record.kind is JournalRecordKind.ENTRY
        ]


@contextlib.asynccontextmanager
async def committing(
    directory: Path, on_disk_room: Callable[[JournalFullError | None], None] | None = None, **settings: Any
) -> AsyncIterator[Committing]:
    running = Committing(directory, JournalConfig(preallocation_bytes=1 << 16, **settings), on_disk_room)
    try:
        yield running
    finally:
        for gate in running.disk.gates.values():
            gate.set()
        await running.stop()
