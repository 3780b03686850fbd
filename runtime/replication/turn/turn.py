"""The turn of one ledger: takes its replication lock, does what its task says, gives the lock back.

Under the lock: close, copy, verify, one compare-and-set. After a lost compare-and-set, everything is decided again from
the stored metadata. Copies that were already made are used only if they still fit. Source: replication sections 4.1, 6
and 15.1.
"""

from __future__ import annotations

import msgspec

from bkctl.runtime.errors import (
    BadVersionError,
    LedgerNotFoundError,
    MetadataAuthError,
    MetadataFormatError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.replication.lock import ReplicationLock
from bkctl.runtime.metadata.store import CheckNode
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.reader import pause_s
from bkctl.runtime.replication.judge.bad_copies import left_copies
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, LedgerResult, failed
from bkctl.runtime.replication.turn.state import (
    ZOOKEEPER,
    BadStripe,
    LedgerTask,
    LockLostError,
    RewrittenCopies,
    StripePosition,
    TurnState,
    TurnTools,
)
from bkctl.runtime.replication.turn.steps import TargetGoneError, prepare, read_closed, rewrite, switch_metadata
from bkctl.storage.errors import BkctlError

LOCK_LOSSES_MAX = 5
"""Maximum restarts of a turn after its lock was lost with the session."""


class LedgerTurn:
    """One ledger. After an outage of the metadata store ``run`` may be called again: it counts each copy once."""

    def __init__(self, tools: TurnTools, task: LedgerTask, activity: LedgerActivity) -> None:
        self._tools = tools
        self._task = task
        self._activity = activity
        self._written = RewrittenCopies()

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
                continue
            if isinstance(lock, LedgerResult):
                return lock
            try:
                job = self._tools.job
                if job is not None and job.hold is not None:  # under the lock: of no earlier session than the lock
                    await self._tools.outage.outlast(job.hold)
                result = await self._work(lock, is_lock_ours=True)
                if result is not None:
                    return result
            finally:
                if self._tools.outage.is_lasting:
                    self._tools.locks.release_later(lock)
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
            # The caller of run_locked tries again, and its TurnTools may be in use for months.
            self._tools.silent_members if is_lock_ours else {},
            stored,
            self._written,
            is_lock_ours,
            is_rewritten=is_rewritten,
        )
        try:
            return await _work_on(turn)
        except LockLostError:
            # With a new session, lock and read again (replication section 15.1, item 11).
            return None
        except MetadataFormatError as error:
            return failed(lock.ledger_id, FailureReason.METADATA_UNREADABLE, str(error))
        except MetadataUnavailableError:
            raise
        except MetadataAuthError as error:
            return failed(lock.ledger_id, FailureReason.NO_PERMISSION, str(error))
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
        lock = await self._tools.locks.read(self._task.ledger_id)
        holder = "an unknown host" if lock is None or lock.holder is None else lock.holder
        sentence = f"held by {holder}, gave up after {self._tools.policy.config.lock_wait_s:g} s"
        if lock is not None and not lock.session_id:
            sentence += f"; no session owns {lock.path}, so it never expires: run bkctl metadata doctor"
        return sentence


async def _work_on(turn: TurnState) -> LedgerResult:
    """Repair until only reported failures still reference the leaving bookies."""
    attempt = 0
    while attempt < turn.tools.policy.config.metadata_attempts_max:
        attempt += 1
        try:
            result = await _pass(turn)
        except LedgerNotFoundError:
            return LedgerResult(  # nothing to repair
                ledger_id=turn.task.ledger_id,
                was_deleted=True,
                copies_written=turn.written.copies,
                bytes_copied=turn.written.size_bytes,
            )
        except TargetGoneError as gone:
            attempt -= 1  # ends all the same: each target is tried once
            turn.unusable[gone.target] = f"bookie {gone.target} left, or became read-only, after it was copied to"
            await turn.tools.live_bookies.latest()
        except (BadVersionError, MetadataUnavailableError) as conflict:
            # A lost race or a lost answer: in both cases the stored metadata shows what remains to be done.
            if isinstance(conflict, MetadataUnavailableError):
                await turn.tools.outage.wait(conflict)
                # Bookie addresses come from the metadata store, so good bookies may have failed meanwhile.
                turn.failures.clear()
                turn.unusable.clear()
                turn.refusing.clear()
                if (result := await turn.tools.outage.outlast(lambda: _finished_without_lock(turn))) is not None:
                    return result
            turn.require_lock()
            await turn.tools.ports.clock.sleep(pause_s(attempt, turn.tools.policy.config, turn.tools.ports.clock))
        else:
            if result is not None:
                return result
            if turn.stored is not None:
                attempt = 0  # a part was committed
    detail = f"another process changed it first, {turn.tools.policy.config.metadata_attempts_max} times in a row"
    given_up = failed(turn.task.ledger_id, FailureReason.CONFLICT, detail)
    written = turn.written
    return msgspec.structs.replace(given_up, copies_written=written.copies, bytes_copied=written.size_bytes)


async def _pass(turn: TurnState) -> LedgerResult | None:
    """Copy and commit; None if there is more to do, as after a part of a long ledger."""
    await turn.tools.live_bookies.refresh()
    versioned = await read_closed(turn)
    metadata = versioned.value
    turn.loss_note = await turn.tools.loss_notes.find(turn.task.ledger_id)
    if not turn.is_rewritten:
        await rewrite(turn, metadata)
    change, is_all = await prepare(turn, metadata)
    if change:
        is_released = is_all and turn.is_lock_ours and not (turn.failures or turn.defects)
        with turn.activity.waiting(ZOOKEEPER):
            written = await switch_metadata(turn, versioned, change, is_released=is_released)
        metadata = written.value
        turn.keep_failures_of(metadata)
        if not is_all:
            turn.stored = written
            return None
    if turn.failures or turn.defects:  # the affected copies may have been moved or deleted
        count = len(turn.failures)
        metadata = (await turn.read()).value
        if len(turn.failures) < count:
            return None
    if turn.failures:
        turn.require_lock()  # after a lost session, live bookies may seem to be missing
    return await _result(turn, metadata)


async def _finished_without_lock(turn: TurnState) -> LedgerResult | None:
    """The result, if the lock is lost but the ledger needs no more repair: our last write was carried out."""
    await turn.lock.confirm()
    if turn.lock.is_held:
        return None
    try:
        metadata = (await turn.read()).value
    except LedgerNotFoundError:
        return LedgerResult(ledger_id=turn.task.ledger_id, was_deleted=True)
    is_done = turn.is_rewritten and not turn.task.fragments(metadata)
    return await _result(turn, metadata) if is_done else None


async def _result(turn: TurnState, metadata: LedgerMetadata) -> LedgerResult:
    """The result, based on the currently stored metadata, and on who is registered now."""
    committed = [
        (position, copied)
        for position, copied in turn.moves.items()
        if metadata.segment_of(position.first_entry_id).ensemble[position.ensemble_index] == copied.target
    ]
    gone = {copied.target for _, copied in committed} - (
        (await turn.tools.live_bookies.latest()).live if committed else set()
    )
    stay = {
        position: bad for position, bad in turn.bad_stripes.items() if turn.fragment_at(metadata, position) is not None
    }
    moved = [bad for position, bad in turn.bad_stripes.items() if position not in stay]
    return LedgerResult(
        ledger_id=turn.task.ledger_id,
        fragments=len({position.first_entry_id for position, _ in committed}),
        entries=sum(copied.entries for _, copied in committed),
        bytes_copied=sum(copied.bytes_copied for _, copied in committed) + turn.written.size_bytes,
        copies_written=turn.written.copies,
        stripes_moved=len(moved),
        copies_moved=sum(bad.copies for bad in moved),
        broken_rules=tuple(broken for _, copied in committed for broken in copied.broken_rules),
        was_closed=turn.was_closed,
        failures=(
            *turn.bad_left,
            *(found.failure for position, found in turn.failures.items() if position not in turn.bad_stripes),
            *(_why_not_moved(turn, position, bad) for position, bad in stay.items()),
            *(
                LedgerFailure(turn.task.ledger_id, FailureReason.TARGET_GONE, (), f"bookie {target} is not registered")
                for target in sorted(gone)
            ),
        ),
        defects=tuple(
            defect
            for defect in turn.defects
            if any(
                defect.bookie_id in metadata.segment_of(entries.first_entry_id).ensemble for entries in defect.entries
            )
        ),
    )


def _why_not_moved(turn: TurnState, position: StripePosition, bad: BadStripe) -> LedgerFailure:
    reason, detail = FailureReason.CONFLICT, "the ledger changed meanwhile: run the command again"
    if (found := turn.failures.get(position)) is not None:
        reason, detail = found.failure.reason, found.failure.bare_detail
    reason = FailureReason.STRIPE if reason is FailureReason.LOST else reason
    detail = bad.why.format(detail)
    return left_copies(turn.task.ledger_id, reason, bad.bookie_id, bad.copies, bad.entries, detail)
