"""Commands make bookies read-only one after another, because each counts on those that are writable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bkctl.commands.context import CommandContext
from bkctl.commands.safety.gate import Change, holder_of
from bkctl.runtime.metadata.cluster.operation_lock import OperationLock, OperationLockedError, lock_modes
from bkctl.runtime.metadata.store import MetadataStore

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
