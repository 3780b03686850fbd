"""The gate that every command passes before a change.

A command builds a ``Plan`` and changes things only inside ``open_change``, which does all of this, in this order:
instance pin, saved plan (``--apply``), ``--dry-run`` and ``--plan-out``, confirmation, operation lock, trash, audit
trail. Read-only mode has already been checked (``bkctl.commands.command``); the gate checks it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import ChangeCutOffError, Outcome
from bkctl.commands.processes import identify
from bkctl.commands.rendering import Row, Table
from bkctl.commands.safety.confirmation import PLAN_TABLE, confirm_plan, show_plan
from bkctl.commands.safety.plan import Plan, PlanFinding
from bkctl.commands.safety.state_directory import AuditTrail, Trash, user_name
from bkctl.runtime.errors import MetadataUnavailableError, RefusedError, SessionExpiredError
from bkctl.runtime.metadata.cluster.operation_lock import (
    OperationHolder,
    OperationLock,
    OperationLockedError,
    acquire_operation_lock,
    lock_bookies,
    lock_modes,
    running_operations,
)
from bkctl.runtime.metadata.pulsar_migration import MigrationWatch
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.storage.errors import BkctlError
from bkctl.storage.severity import Severity

TakeLock = Callable[[], Awaitable["OperationLock"]]
_LOCK_POLL_S = 0.2
_LOCK_ANSWER_S = 2.0
_SESSION_END_SLACK_S = 5.0


class Change:
    """An operation in progress. The audit trail records ``details``, and ``result`` unless the operation fails."""

    def __init__(
        self,
        plan: Plan,
        operation_id: str,
        trash: Trash,
        lock: OperationLock | None,
        take_lock: TakeLock,
    ) -> None:
        self.plan = plan
        self.operation_id = operation_id
        self.trash = trash
        self.details: dict[str, Any] = {}
        self.result = "done"
        self._lock = self._relied_on = lock
        self._take_lock = take_lock
        self._one_takes = asyncio.Lock()

    def require_lock(self) -> None:
        """SessionExpiredError once the lock was lost: call before each step that changes something."""
        if self._relied_on is not None:
            self._relied_on.require_held()

    async def hold_lock(self) -> None:
        """Take the lock again if the ZooKeeper session that held it was replaced.

        OperationLockedError while another operation holds it. What was read before may be outdated, so
        ``require_lock`` fails all the same.
        """
        async with self._one_takes:
            if self._lock is not None and not self._lock.is_held:
                self._lock = await self._take_lock()

    async def renew_lock(self) -> None:
        """The same, for ``require_lock`` too: after the call, check again everything that was read before it."""
        await self.hold_lock()
        self._relied_on = self._lock

    def leave_lock(self) -> None:
        """ZooKeeper does not answer: do not release the lock; it ends with the session, when the command exits."""
        self._lock = self._relied_on = None

    async def release_lock(self) -> None:
        """Release the lock, if there is one."""
        if self._lock is not None:
            await self._lock.release()


@asynccontextmanager
async def open_change(
    context: CommandContext,
    plan: Plan,
    store: MetadataStore | None = None,
    *,
    is_locked: bool = True,
    bookie_ids: Sequence[str] = (),
    table: Table = PLAN_TABLE,
    totals: Row | None = None,
    outlast: Callable[[TakeLock], Awaitable[OperationLock]] | None = None,
    shown: Outcome = Outcome.OK,
) -> AsyncIterator[Change]:
    """Inside the block the plan may be carried out; check everything that was read earlier again there.

    ``store``: the session that takes the cluster's operation lock; None: for what changes no metadata, like files of
    this machine in directories that the caller has locked. ``is_locked`` False: no lock, for one small change.
    ``bookie_ids``: only these bookies are locked, and other operations may run at the same time. ``outlast`` waits
    for ZooKeeper: the work goes on after an outage, and takes a lost lock again. ``table``, ``totals``: of the plan.

    PlanShown ends the command with ``shown`` when only the plan was requested. RefusedError without a confirmation,
    while Pulsar migrates its metadata to another store, or when undo data or audit trail cannot be written; for a
    reversible plan, a failing audit trail is only a warning. ConflictError while another operation holds the lock.
    ChangeCutOffError when ZooKeeper becomes unavailable meanwhile.
    """
    plan = _filled_in(context, plan)
    if context.settings.is_rehearsal and store is not None and is_locked:
        at_work = await _operations_in_the_way(store, plan.root, bookie_ids)
        plan = msgspec.structs.replace(plan, findings=(*at_work, *plan.findings))
    show_plan(context, plan, table, totals, shown)
    if store is not None:
        await MigrationWatch(store, plan.root).require_none()
    await confirm_plan(context, plan)
    operation_id, holder = secrets.token_hex(8), holder_of(plan)

    async def take_lock() -> OperationLock:
        assert store is not None
        return await _acquire(context, store, plan, bookie_ids, holder)

    lock = None
    if store is not None and is_locked:
        lock = await (take_lock() if outlast is None else outlast(take_lock))
    trash = Trash(context.settings, plan.command, operation_id)
    change = Change(plan, operation_id, trash, lock, take_lock)
    try:
        trash.server_time = None if lock is None else await lock.taken_at()
        with trash:
            trail = _begin(context, plan, operation_id)
            try:
                async with contextlib.nullcontext() if outlast is None else _keeping_lock(change):
                    yield change
            except BaseException as error:
                _end(context, trail, change, _describe(error))
                if isinstance(error, MetadataUnavailableError):
                    change.leave_lock()
                    advice = f"'{plan.command}' may be partly done: run it again when ZooKeeper answers"
                    raise ChangeCutOffError(f"{error}; {advice}", error.path) from error
                raise
            _end(context, trail, change, change.result)
    finally:
        await change.release_lock()


@asynccontextmanager
async def _keeping_lock(change: Change) -> AsyncIterator[None]:
    """Take the lock again each time its session has ended; if that is refused, end the work inside with the error."""
    refusal: BkctlError | None = None

    async def keep(limit: asyncio.Timeout) -> None:
        nonlocal refusal
        while refusal is None:
            await asyncio.sleep(_LOCK_POLL_S)
            try:
                await change.hold_lock()
            except MetadataUnavailableError:
                continue  # the work itself waits for ZooKeeper, or gives up
            except BkctlError as error:
                refusal = error
                limit.reschedule(0.0)

    try:
        async with asyncio.timeout(None) as limit:
            keeping = asyncio.create_task(keep(limit))
            try:
                yield
            except SessionExpiredError as error:
                await _require_free(change, error)
                raise
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
    except TimeoutError:
        if refusal is None:
            raise
        raise refusal from None


async def _require_free(change: Change, error: SessionExpiredError) -> None:
    """OperationLockedError if another operation holds the lock since the session of this one has ended."""
    with contextlib.suppress(MetadataUnavailableError, TimeoutError):
        async with asyncio.timeout(_LOCK_ANSWER_S):
            try:
                await change.hold_lock()
            except OperationLockedError as refusal:
                raise refusal from error


def nothing_to_change(
    context: CommandContext,
    plan: Plan,
    *,
    table: Table = PLAN_TABLE,
    totals: Row | None = None,
    shown: Outcome = Outcome.OK,
) -> None:
    """The gate for a plan without changes, as its summary says: it does not ask, lock or record anything.

    PlanShown as in ``open_change``; otherwise the caller prints a result in which nothing was done. A plan that was
    saved with changes no longer fits: applying it reports that they were made already, or are not needed.
    """
    show_plan(context, _filled_in(context, plan), table, totals, shown)


def _filled_in(context: CommandContext, plan: Plan) -> Plan:
    """The plan with the command's name and effect; RefusedError for one that this command must not carry out."""
    plan = msgspec.structs.replace(
        plan, command=plan.command or context.command, tier=plan.tier or context.effects[0].tier
    )
    is_declared = plan.tier in {effect.tier for effect in context.effects if effect.tier}
    if not is_declared or (context.settings.is_read_only and not context.settings.is_rehearsal):
        raise RefusedError(
            f"nothing was changed: '{plan.command}' was about to make changes in read-only mode, or without having "
            "declared them; this is a bug in bkctl, please report it"
        )
    return plan


def _begin(context: CommandContext, plan: Plan, operation_id: str) -> AuditTrail | None:
    try:
        trail = AuditTrail(context.settings, plan, operation_id)
        trail.begin()
    except RefusedError as error:
        if plan.tier != Effect.REVERSIBLE.tier:
            raise
        context.console.warn(str(error).replace("nothing was changed: ", "no audit trail: "))
        return None
    return trail


def _end(context: CommandContext, trail: AuditTrail | None, change: Change, result: str) -> None:
    if change.trash.path is not None:
        change.details["trash"] = change.trash.path
        context.console.say(f"the former data is saved in {change.trash.path}")
    if trail is None:
        return
    try:
        trail.end(result, change.details)
    except OSError as error:  # only warn: the result of the work matters more
        context.console.warn(f"cannot write the end of this operation to the audit trail: {error.strerror}")


def _describe(error: BaseException) -> str:
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return "interrupted"
    if isinstance(error, (BkctlError, OSError)):
        return f"failed: {error}"
    return f"failed: {type(error).__name__}"


async def _acquire(
    context: CommandContext, store: MetadataStore, plan: Plan, bookie_ids: Sequence[str], holder: OperationHolder
) -> OperationLock:
    """The lock of the cluster, or of some bookies.

    Waits for a holder whose process has died on this machine, and for a former session of this process: the lock ends
    with the session.
    """
    wait_s = context.settings.zookeeper.session_timeout_ms / 1000 + _SESSION_END_SLACK_S
    is_reported = False
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        try:
            if bookie_ids:
                return await lock_bookies(store, plan.root, holder, bookie_ids)
            return await acquire_operation_lock(store, plan.root, holder)
        except OperationLockedError as error:
            is_own = error.holder == holder
            if loop.time() >= deadline or not (is_own or is_dead(error.holder)):
                raise
            if not (is_own or is_reported):
                context.console.say(f"waiting for the ZooKeeper session of a killed process to end: {error.holder}")
                is_reported = True
        await asyncio.sleep(_LOCK_POLL_S)


async def _operations_in_the_way(store: MetadataStore, root: str, bookie_ids: Sequence[str]) -> list[PlanFinding]:
    """Operations that hold a lock now which a run of the plan would need, for a plan that is only shown."""
    return [
        PlanFinding(Severity.WARNING, f"until it has ended, another operation is in the way: {holder}")
        for holder, held in (await running_operations(store, root)).items()
        if not is_dead(holder)
        and (set(held) & set(bookie_ids) or (not held and (holder.is_of_whole_cluster or not bookie_ids)))
    ]


def holder_of(plan: Plan) -> OperationHolder:
    """This process, as other operators see it in its locks."""
    return OperationHolder(
        operation=plan.command,
        user=user_name(),
        host=socket.gethostname(),
        pid=os.getpid(),
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def is_dead(holder: OperationHolder) -> bool:
    """Whether the holder was a process on this machine that has ended."""
    return holder.host == socket.gethostname() and holder.pid > 0 and identify(holder.pid) is None


_WAIT_S = 30.0
_POLL_S = 0.5


@asynccontextmanager
async def mode_turn(
    context: CommandContext, store: MetadataStore, root: str, change: Change
) -> AsyncIterator[OperationLock]:
    """Check inside the block that the cluster can do without the bookies, then make them read-only.

    OperationLockedError while another command is in its block for longer than this waits.
    """
    holder = holder_of(change.plan)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _WAIT_S
    is_told = False
    while True:
        try:
            lock = await lock_modes(store, root, holder)
            break
        except OperationLockedError as error:
            if loop.time() >= deadline:
                raise
            if not is_told:
                context.console.say(f"waiting up to {_WAIT_S:g} s: {error}")
                is_told = True
        await asyncio.sleep(_POLL_S)
    async with lock:
        yield lock
