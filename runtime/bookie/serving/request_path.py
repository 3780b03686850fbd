"""The lanes that the request handler uses: group commit per journal, checkpoints, and the adds that wait for them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.disks.monitor import DiskMonitor
from bkctl.runtime.bookie.ports import BookiePorts
from bkctl.runtime.bookie.serving.adds import AddPath
from bkctl.runtime.bookie.serving.checkpoints import CheckpointService
from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.bookie.serving.handler import BookieRequestHandler
from bkctl.runtime.bookie.serving.ledger_handles import LedgerHandles
from bkctl.runtime.config import BookieConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage


class RequestPath:
    """Everything between the listener and the storage."""

    def __init__(
        self,
        ports: BookiePorts,
        config: BookieConfig,
        storage: LedgerStorage,
        checkpoints: CheckpointService,
        modes: BookieModes,
        disks: DiskMonitor,
    ) -> None:
        self.journal_lanes = [f"journal-{index}" for index in range(len(storage.journals))]
        self.journals = [
            GroupCommit(
                writer,
                ports.workers,
                self.journal_lanes[index],
                config.storage.journal,
                on_disk_room=functools.partial(modes.note_journal, index),
            )
            for index, writer in enumerate(storage.journals)
        ]
        self.handles = LedgerHandles(storage, self.journals, ports.clock)
        self.adds = AddPath(self.handles, ports.clock, config.throttle_max_s, checkpoints.request)
        checkpoints.on_caches_swapped(self.adds.retry_waiting)
        checkpoints.idle_when(lambda: not any(journal.queued_count for journal in self.journals))
        self.adds.on_stored = checkpoints.note_adds
        for journal in self.journals:
            journal.on_room(self.adds.retry_waiting)
        modes.on_no_room(self.adds.refuse_waiting)
        self.handler = BookieRequestHandler(
            storage,
            self.handles,
            self.adds,
            ports.workers,
            lambda: disks.ledger_space,
            modes,
            checkpoints.settle,
            ports.clock.monotonic_ns,
        )
        self.storage = storage
        self.checkpoints = checkpoints
        self._services: list[asyncio.Task[None]] = []

    def start(self, watch: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """Run the journals and the checkpoints; ``watch`` creates their tasks."""
        self._services = [watch(journal.run()) for journal in self.journals]
        self._services.append(watch(self.checkpoints.run()))

    async def stop(self) -> None:
        """Commit what is queued, then end the journals and the checkpoints."""
        for journal in self.journals:
            journal.give_up_room()
        await self.handler.drain()
        for journal in self.journals:
            journal.stop()
        self.checkpoints.stop()
        await asyncio.gather(*self._services, return_exceptions=True)
