"""How these commands read a cluster, and how they change one of its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from bkctl.commands.context import CommandContext
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.session import Session
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.replication.election import Candidate

T = TypeVar("T")


async def readable(context: CommandContext, reading: Awaitable[T]) -> T | None:
    """The value read; None, with a warning, for an unreadable node, so that the rest is still shown."""
    try:
        return await reading
    except MetadataFormatError as error:
        context.console.warn(str(error))
        return None


def warn_of_second_auditor(context: CommandContext, pulsar_auditor: Candidate | None) -> None:
    """Warn that Pulsar's metadata driver has elected a second auditor."""
    if pulsar_auditor is not None:
        context.console.warn(
            f"there is a second auditor: Pulsar's metadata driver elected {pulsar_auditor.bookie_id or 'one'} "
            f"(underreplication/{pulsar_auditor.vote})"
        )


async def change_setting(
    context: CommandContext,
    session: Session,
    items: tuple[dict[str, Any], ...],
    carry_out: Callable[[], Awaitable[bool]],
    *,
    summary: tuple[str, ...] = (),
    arguments: dict[str, Any] | None = None,
    nothing_to_do: str | None = None,
) -> bool:
    """Whether it changed anything.

    ``nothing_to_do``: why the plan is empty, if the setting has this value already.
    """
    if nothing_to_do is not None:
        summary, items = (nothing_to_do,), ()
    plan = session.plan(summary=summary, items=items, arguments=arguments)
    if nothing_to_do is not None:
        nothing_to_change(context, plan)
        return False
    async with open_change(context, plan, session.store, is_locked=False) as change:
        is_changed = await carry_out()
        change.details["changed"] = is_changed
    return is_changed
