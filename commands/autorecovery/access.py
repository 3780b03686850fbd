"""How these commands look at a cluster, and how they change one setting of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from commands.cluster_access import open_store
from commands.context import CommandContext

if TYPE_CHECKING:
    from runtime.metadata.auditor_election import Candidate
    from runtime.metadata.cluster import ClusterInfo
    from runtime.metadata.foreign_names import ForeignNames
    from runtime.metadata.replication_switches import ReplicationSwitches
    from runtime.metadata.store import MetadataStore

T = TypeVar("T")


class ReplicationView(NamedTuple):
    """A cluster that is there, and its switches. Looking creates nothing."""

    store: MetadataStore
    root: str
    info: ClusterInfo
    switches: ReplicationSwitches
    foreign: ForeignNames
    now_ms: int

    def age_s(self, since_ms: int) -> int:
        """Whole seconds from then to now; 0 when the clocks disagree."""
        return max(0, self.now_ms - since_ms) // 1000


@asynccontextmanager
async def open_view(context: CommandContext) -> AsyncIterator[ReplicationView]:
    """ConfigurationError, MetadataUnavailableError, ClusterNotFoundError."""
    from runtime.metadata.cluster import read_cluster_info
    from runtime.metadata.foreign_names import ForeignNames
    from runtime.metadata.replication_switches import ReplicationSwitches
    from runtime.net.loop import LoopClock

    async with open_store(context) as (store, uri):
        info = await read_cluster_info(store, uri.root, context.settings.zookeeper.layout)
        switches = ReplicationSwitches(store, uri.root)
        foreign = ForeignNames(context.console.warn)
        yield ReplicationView(store, uri.root, info, switches, foreign, LoopClock().now_ms())


async def readable(context: CommandContext, reading: Awaitable[T]) -> T | None:
    """What was read; None, and a warning, when the node holds nonsense, which must not hide the rest."""
    from runtime.errors import MetadataFormatError

    try:
        return await reading
    except MetadataFormatError as error:
        context.console.warn(str(error))
        return None


def warn_of_second_auditor(context: CommandContext, pulsar_auditor: Candidate | None) -> None:
    """Say that Pulsar's metadata driver has elected an auditor in addition to the one that was voted for."""
    if pulsar_auditor is not None:
        context.console.warn(
            f"there is a second auditor: Pulsar's metadata driver elected {pulsar_auditor.bookie_id or 'one'} "
            f"(underreplication/{pulsar_auditor.vote})"
        )


async def change_setting(
    context: CommandContext,
    view: ReplicationView,
    command: str,
    items: tuple[dict[str, Any], ...],
    carry_out: Callable[[], Awaitable[bool]],
    *,
    tier: int = 1,
    summary: tuple[str, ...] = (),
    arguments: dict[str, Any] | None = None,
    nothing_to_do: str | None = None,
) -> bool | None:
    """Whether it changed anything; None when the plan was only to be shown. Changes are written into the audit trail.

    ``nothing_to_do``: why the plan is empty, if the setting is already as it should be.
    """
    from commands.safety.change import open_change
    from commands.safety.confirmation import settle_empty_plan, settle_plan
    from commands.safety.plan import Plan

    if nothing_to_do is not None:
        summary, items = (nothing_to_do,), ()

    plan = Plan(
        command=f"autorecovery {command}",
        tier=tier,
        root=view.root,
        instance_id=view.info.instance_id,
        subject="",
        summary=summary,
        items=items,
        arguments=arguments or {},
    )
    if nothing_to_do is not None:
        return False if settle_empty_plan(context, plan) else None
    if not await settle_plan(context, plan):
        return None
    async with open_change(context, view.store, plan, has_lock=False) as change:
        is_changed = await carry_out()
        change.details["changed"] = is_changed
    return is_changed
