"""The one shape of a change: examine, show and confirm, lock, examine again, apply.

A plan may be read for a long time before it is confirmed, and a lock may be waited for. So the same function makes the
plan and looks again in the gate: what it refuses at first, it refuses then too, and a plan that has become another one
is not carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

import msgspec

from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import Table
from bkctl.commands.safety.confirmation import PLAN_TABLE
from bkctl.commands.safety.gate import Change, nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan, require_unchanged
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.cluster.root import read_instance_id
from bkctl.runtime.metadata.store import MetadataStore

Found = TypeVar("Found")
Result = TypeVar("Result")


async def make_change(
    context: CommandContext,
    examine: Callable[[], Awaitable[tuple[Plan, Found]]],
    apply: Callable[[Change, Found], Awaitable[Result]],
    store: MetadataStore | None = None,
    *,
    turn: Callable[[Change], AbstractAsyncContextManager[Any]] | None = None,
    is_locked: bool = True,
    bookie_ids: Sequence[str] = (),
    table: Table = PLAN_TABLE,
) -> tuple[Found, Result | None]:
    """What was found last, and the result of ``apply``; None if the plan is empty, as its summary says.

    ``examine`` changes nothing. It returns the plan, and what ``apply`` needs for it; it raises when the change is
    refused. Everything that decides about the change is in the plan's items and arguments. ``turn`` is entered in the
    gate before the second look: other locks, for example of directories. The rest as in ``open_change``.

    The errors of the gate; ConflictError when the second plan is not the first one, RefusedError for its ``refusal``.
    """
    plan, found = await examine()
    if not plan.items:
        nothing_to_change(context, plan, table=table)
        return found, None
    async with (
        open_change(context, plan, store, is_locked=is_locked, bookie_ids=bookie_ids, table=table) as change,
        nullcontext() if turn is None else turn(change),
    ):
        with context.console.repeating():
            again, found = await examine()
        if store is not None:  # a session has that of its beginning
            again = msgspec.structs.replace(again, instance_id=await read_instance_id(store, plan.root))
        require_unchanged(plan, again)
        if again.refusal is not None:
            raise RefusedError(again.refusal)
        return found, await apply(change, found)
