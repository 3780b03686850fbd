"""``bkctl cluster nuke``: remove a cluster's metadata altogether."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from commands.cluster.survey import TREE_COLUMNS, find_tree, look, new_header, save_before, tree_items
from commands.cluster_access import open_store
from commands.command import command
from commands.context import CommandContext

if TYPE_CHECKING:
    from commands.safety.plan import Plan


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl cluster``."""
    command(app, "nuke", planned_tier=3)(nuke)


async def nuke(context: CommandContext) -> None:
    """Remove the metadata of a cluster whose bookies are all stopped, its root included.

    All metadata is saved before. Refused when something that is not BookKeeper's lies below the root. The instance id
    must be typed, or given by --confirm. Where there is no cluster nothing is to be done.
    """
    from commands.safety.change import open_change
    from commands.safety.confirmation import settle_empty_plan, settle_plan
    from commands.safety.plan import Plan
    from runtime.metadata import cluster_format

    async with open_store(context) as (store, uri):
        if await store.exists(uri.root) is None:
            if settle_empty_plan(context, _empty_plan(context, uri.root), columns=TREE_COLUMNS):
                context.console.record("ClusterNuke", {"root": uri.root, "removed": False}, name="root")
            return
        tree = await find_tree(context, store, uri)
        await cluster_format.require_nobody_connected(store, uri.root)
        if unknown := await cluster_format.find_unknown_children(store, uri.root, tree):
            raise cluster_format.unknown_children_error(uri.root, unknown)
        header = await new_header(store, uri.root, tree)
        survey = await look(context, store, uri.root, tree)
        plan = Plan(
            command="cluster nuke",
            tier=3,
            root=uri.root,
            instance_id=header.instance_id,
            subject=header.instance_id or uri.root,
            summary=(
                f"will delete {uri.root} and everything below it: {survey.ledgers} ledgers, {survey.nodes} nodes "
                "(all metadata is backed up first)",
            ),
            items=tree_items(uri.root, survey, {"ledgers": "delete", "ledger ids": "delete", "special": "delete"}),
            arguments={"layout": tree.value},
        )
        if not await settle_plan(context, plan, columns=TREE_COLUMNS):
            return
        async with open_change(context, store, plan) as change:
            await cluster_format.require_nobody_connected(store, uri.root)
            backup_path = await save_before(context, store, header, tree, survey)
            change.details["backup"] = backup_path
            await cluster_format.nuke_cluster(store, uri.root, tree, before_each=change.require_lock)
        context.console.say(f"to undo: bkctl cluster restore {backup_path}")
        body = {
            "root": uri.root,
            "removed": True,
            "instance_id": header.instance_id,
            "ledgers_deleted": survey.ledgers,
            "backup": backup_path,
        }
        context.console.record("ClusterNuke", body, name="root")


def _empty_plan(context: CommandContext, root: str) -> Plan:
    """Where there is no cluster, there is none that the context could be pinned against."""
    from commands.safety.plan import Plan

    return Plan(
        command="cluster nuke",
        tier=3,
        root=root,
        instance_id=context.settings.pinned_instance_id,
        subject=root,
        summary=(f"there is no cluster at {root}: nothing to do",),
    )
