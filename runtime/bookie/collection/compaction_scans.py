"""Scans of whole entry logs by child processes, message by message (``storage.entry_log.compaction_scan_child``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack

from runtime.ports import Workers
from storage.entry_log.compaction_scan import CHILD_MODULE, ROWS_MAX, MeasureLogs, ScanEntries, ScanMessage
from storage.errors import ChildFailedError, EntryLogError
from storage.ids import EntryLogId
from storage.ports import Children


class LogScanner:
    """Starts a child for every scan. A lane for each directory waits for its messages; it does no other work.

    EntryLogError when a scan cannot be done at all.
    """

    def __init__(self, children: Children, workers: Workers, *, rows_max: int = ROWS_MAX) -> None:
        self._children = children
        self._workers = workers
        self._rows_max = rows_max

    def measure(self, directory: str, log_ids: Sequence[EntryLogId]) -> AsyncGenerator[ScanMessage, None]:
        """One MeasuredLog or UnreadableLog for each log."""
        return self._messages(MeasureLogs(directory=directory, log_ids=list(log_ids)))

    def entries(self, directory: str, log_id: EntryLogId) -> AsyncGenerator[ScanMessage, None]:
        """ScannedRows, then a ScanEnd; or an UnreadableLog. Close the generator to stop early."""
        return self._messages(ScanEntries(directory=directory, log_id=log_id, rows_max=self._rows_max))

    async def _messages(self, task: MeasureLogs | ScanEntries) -> AsyncGenerator[ScanMessage, None]:
        lane = f"scans of {task.directory}"
        undo = ExitStack()
        pool = undo.enter_context(self._children.pool(CHILD_MODULE, task.directory, 1))
        messages: Iterator[ScanMessage] = pool.stream(task, ScanMessage)
        try:
            while (message := await self._workers.run(lane, next, messages, None)) is not None:
                yield message
        except ChildFailedError as error:
            raise EntryLogError(f"{task.directory}: its entry logs cannot be scanned: {error.cause}") from error
        except OSError as error:
            raise EntryLogError(f"{task.directory}: its entry logs cannot be scanned: {error}") from error
        finally:
            pool.stop()  # the lane may still wait for the child
            await self._workers.run(lane, undo.close)
