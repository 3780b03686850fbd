"""The turn of one ledger: takes its replication lock, repairs it, gives the lock back."""

from __future__ import annotations

from runtime.errors import (
    LedgerNotFoundError,
    MetadataFormatError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from runtime.ledger.metadata import LedgerMetadata
from runtime.metadata.replication.lock import ReplicationLock
from runtime.metadata.store import CheckNode, Versioned
from runtime.replication.copy.activity import LedgerActivity
from runtime.replication.judge.ledger_result import FailureReason, LedgerRepaired
from runtime.replication.turn.metadata_switch import LockLostError
from runtime.replication.turn.moves import ZOOKEEPER, LockedLedgerRepair, RepairTools, failed
from runtime.replication.turn.order import RepairOrder
from storage.errors import BkctlError

LOCK_LOSSES_MAX = 5
"""Maximum restarts of a ledger's repair after its lock was lost with the session."""


class LedgerRepair:
    """Repairs ledgers of one run; safe to call for many ledgers concurrently."""

    def __init__(self, tools: RepairTools) -> None:
        self._tools = tools
        self._config = tools.config
        self._clock = tools.ports.clock

    async def repair(self, ledger_id: int, order: RepairOrder, activity: LedgerActivity) -> LedgerRepaired:
        """Move all entries that the metadata places on the leaving bookies.

        Failures are in the result; LOCKED if another process has the lock now. MetadataUnavailableError if the metadata
        store does not answer before or after the work under the lock: call again. MetadataOutageError if an outage
        during that work was too long.
        """
        for _ in range(LOCK_LOSSES_MAX):
            try:
                lock = await self._acquire(ledger_id, order, activity)
            except SessionExpiredError:
                self._tools.live_bookies.note_outage()
                continue
            if isinstance(lock, LedgerRepaired):
                return lock
            try:
                stored = order.stored if lock.is_unchanged else None
                result = await self._repair(lock, order, activity, stored, is_lock_ours=True)
                if result is not None:
                    return result
            finally:
                if self._tools.outage.is_lasting:
                    self._tools.locks.leave(lock)
                else:
                    await lock.release()
        finished = await self._finished_by_others(ledger_id, order)
        return finished or failed(ledger_id, FailureReason.LOCK_LOST, f"{LOCK_LOSSES_MAX} times in a row")

    async def repair_locked(
        self,
        lock: ReplicationLock,
        order: RepairOrder,
        activity: LedgerActivity,
        stored: Versioned[LedgerMetadata] | None = None,
    ) -> LedgerRepaired:
        """Like ``repair``, under a lock that the caller holds, and releases. ``stored``: if it was read under the lock.

        LOCK_LOST if the lock was lost: the caller has to begin again.
        """
        result = await self._repair(lock, order, activity, stored, is_lock_ours=False)
        lost = "its session ended, or another process deleted it"
        return result or failed(lock.ledger_id, FailureReason.LOCK_LOST, lost)

    async def _repair(
        self,
        lock: ReplicationLock,
        order: RepairOrder,
        activity: LedgerActivity,
        stored: Versioned[LedgerMetadata] | None,
        *,
        is_lock_ours: bool,
    ) -> LedgerRepaired | None:
        """The result of the work under the lock; None if the lock was lost."""
        try:
            return await LockedLedgerRepair(self._tools, lock, order, activity, stored, is_lock_ours=is_lock_ours).run()
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

    async def _acquire(
        self, ledger_id: int, order: RepairOrder, activity: LedgerActivity
    ) -> ReplicationLock | LedgerRepaired:
        """The lock, or the result if the ledger no longer needs repair or another process has the lock."""
        with activity.waiting(ZOOKEEPER):
            path = self._tools.ports.ledgers.path(ledger_id)
            unchanged = None if order.stored is None else CheckNode(path, order.stored.version)
            lock = await self._tools.locks.acquire(ledger_id, unchanged)
            if lock is not None:
                return lock
            finished = await self._finished_by_others(ledger_id, order)
            return finished or failed(ledger_id, FailureReason.LOCKED, await self._why_locked(ledger_id))

    async def _finished_by_others(self, ledger_id: int, order: RepairOrder) -> LedgerRepaired | None:
        """The result if the ledger needs no repair; None while its metadata references a leaving bookie."""
        try:
            stored = await self._tools.ports.ledgers.read(ledger_id)
        except LedgerNotFoundError:
            return LedgerRepaired(ledger_id=ledger_id, was_deleted=True)
        except MetadataFormatError as error:
            return failed(ledger_id, FailureReason.METADATA_UNREADABLE, str(error))
        return LedgerRepaired(ledger_id=ledger_id) if order.leaving.isdisjoint(stored.value.bookies()) else None

    async def _why_locked(self, ledger_id: int) -> str:
        lock = await self._tools.locks.look_at(ledger_id)
        holder = "an unknown host" if lock is None or lock.holder is None else lock.holder
        sentence = f"held by {holder}, gave up after {self._config.lock_wait_s:g} s"
        if lock is not None and not lock.session_id:
            sentence += f"; no session owns {lock.path}, so it never expires: run bkctl metadata doctor"
        return sentence
