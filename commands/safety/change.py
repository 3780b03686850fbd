"""Carrying out a confirmed plan: operation lock held, trash at hand, audit trail written."""

from __future__ import annotations

import asyncio
import datetime
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from commands.context import CommandContext
from commands.errors import ChangeCutOffError
from commands.safety.audit_trail import AuditTrail, user_name
from commands.safety.plan import Plan
from commands.safety.trash import Trash
from runtime.errors import MetadataUnavailableError, RefusedError
from storage.errors import BkctlError

if TYPE_CHECKING:
    from runtime.metadata.operation_lock import OperationHolder, OperationLock
    from runtime.metadata.store import MetadataStore

TIER_REVERSIBLE = 1

_LOCK_POLL_S = 0.2
_SESSION_END_SLACK_S = 5.0


class Change:
    """An operation under way. ``details`` end up in the audit trail, and ``result`` too unless the operation fails."""

    def __init__(
        self,
        plan: Plan,
        operation_id: str,
        trash: Trash,
        lock: OperationLock | None,
        take_lock: Callable[[], Awaitable[OperationLock]],
    ) -> None:
        self.plan = plan
        self.operation_id = operation_id
        self.trash = trash
        self.details: dict[str, Any] = {}
        self.result = "done"
        self._lock = lock
        self._take_lock = take_lock

    def require_lock(self) -> None:
        """SessionExpiredError once the lock is lost: ask before every step that changes something."""
        if self._lock is not None:
            self._lock.require_held()

    async def renew_share(self) -> None:
        """For an operation that shares the cluster: announce it again if its ZooKeeper session was replaced.

        OperationLockedError while another operation replaces the metadata of the whole cluster. After the call, check
        again everything that was read before it.
        """
        if self._lock is not None and not self._lock.is_held:
            self._lock = await self._take_lock()

    async def release_lock(self) -> None:
        """Give the lock back, if there is one."""
        if self._lock is not None:
            await self._lock.release()


@asynccontextmanager
async def open_change(
    context: CommandContext,
    store: MetadataStore | None,
    plan: Plan,
    *,
    has_lock: bool = True,
    is_shared: bool = False,
) -> AsyncIterator[Change]:
    """From here on the plan may be carried out; ConflictError while another operation changes the cluster.

    ``store`` None: the plan changes nothing but this machine's files, whose folders the caller has locked.
    ``is_shared``: other operations may run at the same time, but none that replaces the whole cluster's metadata.
    RefusedError when undo data or audit trail cannot be written; for a plan of tier 1 a trail that cannot is a warning.
    ChangeCutOffError when ZooKeeper goes away meanwhile. What was read before must be checked again inside.
    """
    settings = context.settings
    if settings.is_rehearsal or settings.is_read_only:
        raise RefusedError(
            f"nothing was changed: '{plan.command}' was about to make changes in spite of --dry-run, --plan-out or "
            "read-only mode; this is a bug in bkctl, please report it"
        )
    operation_id = secrets.token_hex(8)

    async def take_lock() -> OperationLock:
        assert store is not None
        return await _acquire(context, store, plan, share_id=operation_id if is_shared else None)

    lock = await take_lock() if has_lock and store is not None else None
    trash = Trash(context.settings, plan.command, operation_id)
    change = Change(plan, operation_id, trash, lock, take_lock)
    try:
        with trash:
            trail = _begin(context, plan, operation_id)
            try:
                yield change
            except BaseException as error:
                _end(context, trail, change, _describe(error))
                if isinstance(error, MetadataUnavailableError):
                    raise _cut_off(plan, error) from error
                raise
            _end(context, trail, change, change.result)
    finally:
        await change.release_lock()


def _begin(context: CommandContext, plan: Plan, operation_id: str) -> AuditTrail | None:
    try:
        trail = AuditTrail(context.settings, plan, operation_id)
        trail.begin()
    except RefusedError as error:
        if plan.tier > TIER_REVERSIBLE:
            raise
        context.console.warn(str(error).replace("nothing was changed: ", "no audit trail: "))
        return None
    return trail


def _end(context: CommandContext, trail: AuditTrail | None, change: Change, result: str) -> None:
    if change.trash.path is not None:
        change.details["trash"] = change.trash.path
        context.console.say(f"what was there before is kept in {change.trash.path}")
    if trail is None:
        return
    try:
        trail.end(result, change.details)
    except OSError as error:  # the work is done or has failed: that is the story to tell
        context.console.warn(f"the audit trail lacks the end of this operation: {error.strerror}")


def _cut_off(plan: Plan, error: MetadataUnavailableError) -> ChangeCutOffError:
    """What was changed before the answers failed stays, and an operator must not take it for nothing, nor for all."""
    return ChangeCutOffError(
        f"{error}; a part of '{plan.command}' may be done: run it again when ZooKeeper answers", error.path
    )


def _describe(error: BaseException) -> str:
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return "interrupted"
    if isinstance(error, (BkctlError, OSError)):
        return f"failed: {error}"
    return f"failed: {type(error).__name__}"


async def _acquire(context: CommandContext, store: MetadataStore, plan: Plan, *, share_id: str | None) -> OperationLock:
    """The lock, or a share of it; waits for one whose process has died on this machine to lose its session."""
    from runtime.metadata.operation_lock import (
        OperationHolder,
        OperationLockedError,
        acquire_operation_lock,
        share_cluster,
    )

    holder = OperationHolder(
        operation=plan.command,
        user=user_name(),
        host=socket.gethostname(),
        pid=os.getpid(),
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    wait_s = context.settings.zookeeper.session_timeout_ms / 1000 + _SESSION_END_SLACK_S
    is_told = False
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        try:
            if share_id is not None:
                return await share_cluster(store, plan.root, holder, share_id)
            return await acquire_operation_lock(store, plan.root, holder)
        except OperationLockedError as error:
            if loop.time() >= deadline or not is_dead(error.holder):
                raise
            if not is_told:
                context.console.say(f"waiting for the session of a process that was killed to end: {error.holder}")
                is_told = True
        await asyncio.sleep(_LOCK_POLL_S)


def is_dead(holder: OperationHolder) -> bool:
    """Whether the holder ran on this machine and does not any more."""
    if holder.host != socket.gethostname() or holder.pid <= 0:
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    return False
