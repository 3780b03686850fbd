"""The state of a running bookie as its admin interface answers it, and plans of what to change there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bkctl.commands.context import Effect
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.admin.api import JavaState, RebuildSize, StateAnswer
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.admin.messages import AdminError, Problem
from bkctl.runtime.errors import BookieUnavailableError, RefusedError

if TYPE_CHECKING:  # its HTTP library takes as long to import as the rest of a help page
    from bkctl.runtime.admin.client import AdminClient

_JAVA_STATE: Final = "/api/v1/bookie/state"


async def read_state(client: AdminClient) -> StateAnswer:
    """The answer of a bkctl bookie; of a Java bookie in the same form, with what it can say."""
    try:
        return await client.get(f"{BKCTL_API}/state", StateAnswer)
    except AdminError as error:
        if error.problem is not Problem.NOT_FOUND:
            raise
    java = await client.get(_JAVA_STATE, JavaState)
    return StateAnswer(
        bookie_id=client.name,
        running=java.running,
        stopping=java.shutting_down,
        mode="read-only" if java.read_only else "writable",
        accepts_recovery_writes=java.available_for_high_priority_writes,
    )


async def read_state_of(client: AdminClient, bookie_id: str) -> StateAnswer:
    """The same; BookieUnavailableError if another bookie answers. A Java bookie does not report its ID.

    Every client of ZooKeeper can put the address of another bookie into a registration.
    """
    state = await read_state(client)
    if not state.may_be_of(bookie_id):
        raise BookieUnavailableError(
            bookie_id, f"bookie {state.bookie_id} answers at {client.address}; nothing was changed"
        )
    return state


def require_own(state: StateAnswer, instead: str) -> None:
    """RefusedError for a Java bookie, which has no such path; ``instead``: what to do."""
    if state.is_java:
        raise RefusedError(f"nothing was changed: bookie {state.bookie_id} is a Java bookie: {instead}")


def joined_plan(plans: Sequence[Plan], *, is_typed: bool = False) -> Plan:
    """One plan for all bookies; those without changes are only in the summary. RefusedError if their clusters differ.

    ``is_typed``: the subject must be typed, which is the number of several.
    """
    changing = [each for each in plans if each.items] or plans
    first = changing[0]
    for each in plans:
        if (each.root, each.instance_id) != (first.root, first.instance_id):
            is_known = each.root and first.root  # a Java bookie does not say where it is
            what = "belong to different clusters" if is_known else "are not known to belong to the same cluster"
            raise RefusedError(
                f"nothing was changed: bookies {first.subject} and {each.subject} {what}: run a command for each"
            )
    subjects = [each.subject for each in changing]
    return msgspec.structs.replace(
        first,
        subject=str(len(subjects)) if is_typed and len(subjects) > 1 else ", ".join(subjects),
        summary=tuple(sentence for each in plans for sentence in each.summary),
        items=tuple(item for each in plans for item in each.items),
    )


def change_plan(
    state: StateAnswer | RebuildSize,
    item: dict[str, Any],
    *,
    summary: Sequence[str] = (),
    arguments: dict[str, Any] | None = None,
    effect: Effect | None = None,
) -> Plan:
    """A plan for one change of a running bookie; ``effect`` None: that of the command."""
    return Plan(
        root=state.metadata_root,
        instance_id=state.instance_id,
        subject=state.bookie_id,
        summary=tuple(summary),
        items=({"path": state.bookie_id, "expected_version": None, **item},),
        arguments=arguments or {},
        tier=0 if effect is None else effect.tier,
    )
