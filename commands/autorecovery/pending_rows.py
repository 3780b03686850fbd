"""The rows of ``bkctl autorecovery pending``: a mark, and what the metadata, the lock and the notes say about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from bkctl.commands.autorecovery.access import readable
from bkctl.commands.context import CommandContext, DaemonFlags
from bkctl.commands.rendering import time_text
from bkctl.commands.session import Session
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.mark_listing import believed
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.replication.lock import list_locked_ids, read_lock
from bkctl.runtime.metadata.replication.marks import ListedMark
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote, RecoveryNotes
from bkctl.runtime.replication.judge.marks import PendingLedger, WaitReason, pending_ledger, why_it_waits

_ROWS_IN_FLIGHT_MAX = 64


class PendingRows:
    """Makes rows of marks. Each costs one read of metadata, and one more if the ledger is locked or has failed."""

    def __init__(self, context: CommandContext, session: Session, ledgers: LedgerStore, notes: RecoveryNotes) -> None:
        self._context = context
        self._session = session
        self._ledgers = ledgers
        self._notes = notes
        self._locked: frozenset[int] = frozenset()
        self._failed: frozenset[str] = frozenset()
        self._live: frozenset[str] = frozenset()
        self._is_enabled = True
        self._config = AutorecoveryConfig()
        self.bytes_missing = 0
        """Of the rows so far, as far as it is known."""
        self.failed = 0
        self.oldest_ms: int | None = None

    async def prepare(self) -> None:
        """Read what all rows need."""
        session = self._session
        locked, failed, registrations, self._is_enabled = await asyncio.gather(
            list_locked_ids(session.store, session.root, session.foreign),
            self._notes.failures.keys(),
            session.registrations.snapshot(),
            session.switches.is_enabled(),
        )
        self._locked, self._failed, self._live = frozenset(locked), frozenset(failed), registrations.live
        if failed:
            self._config = self._context.load_daemon_settings(DaemonFlags()).config.autorecovery

    def of(self, marks: AsyncGenerator[ListedMark, None]) -> AsyncGenerator[dict[str, object], None]:
        """The rows of these marks, in their order. Close the iterator to stop early."""
        return pipelined(marks, self._row, _ROWS_IN_FLIGHT_MAX)

    def count(self, row: dict[str, object]) -> None:
        """Add a row that is shown to the sums."""
        bytes_missing = row["bytes"]
        self.bytes_missing += bytes_missing if isinstance(bytes_missing, int) else 0
        self.failed += row["attempts"] is not None

    async def _row(self, found: ListedMark) -> dict[str, object]:
        session, ledger_id = self._session, found.ledger_id
        is_locked = ledger_id in self._locked
        lock = await read_lock(session.store, session.root, ledger_id) if is_locked else None
        if lock is not None and lock.problem is not None:
            self._context.console.warn(str(lock.problem))
        failure = await self._failure(ledger_id)
        ledger, problem = await self._ledger(ledger_id)
        reason: str = WaitReason.UNREADABLE
        if found.problem is not None:
            problem = str(found.problem)
        if problem is None or is_locked or failure is not None:
            reason = why_it_waits(ledger, failure, is_locked=is_locked, is_enabled=self._is_enabled)
        if self.oldest_ms is None or found.marked_ms < self.oldest_ms:
            self.oldest_ms = found.marked_ms
        return {
            "ledger_id": str(ledger_id),
            "missing_bookies": None if found.mark is None else list(found.mark.missing_bookies),
            "marked_at": time_text(found.marked_ms),
            "age_s": session.age_s(found.marked_ms),
            "copies_left": None if ledger is None else ledger.copies,
            "bytes": None if ledger is None else ledger.bytes_missing,
            "owner": None if ledger is None else ledger.owner,
            "locked": is_locked,
            "worker": None if lock is None else lock.holder,
            "reason": reason,
            "detail": None if failure is None else failure.detail,
            "attempts": None if failure is None else failure.attempts,
            "retry_at": None if failure is None else time_text(failure.retry_ms),
            "problem": problem if problem is not None or failure is None else failure.detail,
        }

    async def _failure(self, ledger_id: int) -> FailedLedgerNote | None:
        """The note about a failed repair, with the times that workers believe; they may have other settings."""
        if str(ledger_id) not in self._failed:
            return None
        found = await readable(self._context, self._notes.failures.find(str(ledger_id)))
        return None if found is None else believed(found.value, self._session.now_ms, self._config)

    async def _ledger(self, ledger_id: int) -> tuple[PendingLedger | None, str | None]:
        """What the metadata says (None: the ledger is deleted, or there is a problem), and why it cannot be read."""
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except LedgerNotFoundError:
            return None, None
        except (MetadataFormatError, RefusedError) as error:
            return None, str(error)
        return pending_ledger(ledger_id, metadata, self._live), None
