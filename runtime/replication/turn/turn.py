"""The turn of one ledger: takes its replication lock, does what its task says, gives the lock back."""

from __future__ import annotations

from bkctl.runtime.errors import (
    LedgerNotFoundError,
    MetadataFormatError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from bkctl.runtime.metadata.replication.lock import ReplicationLock
from bkctl.runtime.metadata.store import CheckNode
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerResult, failed
from bkctl.runtime.replication.turn.locked import work_on
from bkctl.runtime.replication.turn.metadata_switch import LockLostError
from bkctl.runtime.replication.turn.state import ZOOKEEPER, TurnState, TurnTools, WrittenInPlace
from bkctl.runtime.replication.turn.task import LedgerTask
from bkctl.storage.errors import BkctlError

LOCK_LOSSES_MAX = 5
"""Maximum restarts of a turn after its lock was lost with the session."""


class LedgerTurn:
    """One ledger. After an outage of the metadata store ``run`` may be called again: it counts each copy once."""

    def __init__(self, tools: TurnTools, task: LedgerTask, activity: LedgerActivity) -> None:
        self._tools = tools
        self._task = task
        self._activity = activity
        self._written = WrittenInPlace()

    async def run(self) -> LedgerResult:
        """Do all that the task says.

        Failures are in the result; LOCKED if another process has the lock now. MetadataUnavailableError if the metadata
        store does not answer before or after the work under the lock: call again. MetadataOutageError if an outage
        during that work was too long.
        """
        for _ in range(LOCK_LOSSES_MAX):
            try:
                lock = await self._acquire()
            except SessionExpiredError:
                self._tools.live_bookies.note_outage()
                continue
            if isinstance(lock, LedgerResult):
                return lock
            try:
                result = await self._work(lock, is_lock_ours=True)
                if result is not None:
                    return result
            finally:
                if self._tools.outage.is_lasting:
                    self._tools.locks.leave(lock)
                else:
                    await lock.release()
        finished = await self._finished_by_others()
        return finished or failed(self._task.ledger_id, FailureReason.LOCK_LOST, f"{LOCK_LOSSES_MAX} times in a row")

    async def run_locked(self, lock: ReplicationLock) -> LedgerResult:
        """Like ``run``, under a lock that the caller holds, and releases. The task's metadata was read under the lock.

        LOCK_LOST if the lock was lost: the caller has to begin again.
        """
        result = await self._work(lock, is_lock_ours=False)
        lost = "its session ended, or another process deleted it"
        return result or failed(lock.ledger_id, FailureReason.LOCK_LOST, lost)

    async def _work(self, lock: ReplicationLock, *, is_lock_ours: bool) -> LedgerResult | None:
        """The result of the work under the lock; None if the lock was lost."""
        stored = self._task.stored if lock.is_unchanged or not is_lock_ours else None
        is_rewritten = not self._task.bad
        turn = TurnState(
            self._tools,
            lock,
            self._task,
            self._activity,
            stored,
            self._written,
            is_lock_ours,
            is_rewritten=is_rewritten,
        )
        try:
            return await work_on(turn)
        except LockLostError:
            # With a new session, lock and read again (replication section 15.1, item 11).
            self._tools.live_bookies.note_outage()
            return None
        except MetadataFormatError as error:
            return failed(lock.ledger_id, FailureReason.METADATA_UNREADABLE, str(error))
        except MetadataUnavailableError:
            raise
        except BkctlError as error:
            return failed(lock.ledger_id, FailureReason.ERROR, str(error))

    async def _acquire(self) -> ReplicationLock | LedgerResult:
        """The lock, or the result if nothing is left to do or another process has the lock."""
        ledger_id, stored = self._task.ledger_id, self._task.stored
        with self._activity.waiting(ZOOKEEPER):
            path = self._tools.ports.ledgers.path(ledger_id)
            unchanged = None if stored is None else CheckNode(path, stored.version)
            lock = await self._tools.locks.acquire(ledger_id, unchanged)
            if lock is not None:
                return lock
            finished = await self._finished_by_others()
            return finished or failed(ledger_id, FailureReason.LOCKED, await self._why_locked())

    async def _finished_by_others(self) -> LedgerResult | None:
        """The result if nothing is left to do; None while the metadata references a leaving bookie."""
        ledger_id = self._task.ledger_id
        try:
            stored = await self._tools.ports.ledgers.read(ledger_id)
        except LedgerNotFoundError:
            return LedgerResult(ledger_id=ledger_id, was_deleted=True)
        except MetadataFormatError as error:
            return failed(ledger_id, FailureReason.METADATA_UNREADABLE, str(error))
        is_done = not self._task.bad and not self._task.fragments(stored.value)
        return LedgerResult(ledger_id=ledger_id) if is_done else None

    async def _why_locked(self) -> str:
        lock = await self._tools.locks.look_at(self._task.ledger_id)
        holder = "an unknown host" if lock is None or lock.holder is None else lock.holder
        sentence = f"held by {holder}, gave up after {self._tools.policy.config.lock_wait_s:g} s"
        if lock is not None and not lock.session_id:
            sentence += f"; no session owns {lock.path}, so it never expires: run bkctl metadata doctor"
        return sentence
