"""``bkctl cluster format``: empty a cluster's metadata, under a new instance id."""

from __future__ import annotations

import typer

from commands.cluster.survey import TREE_COLUMNS, find_tree, look, new_header, save_before, tree_items
from commands.cluster_access import open_store
from commands.command import command
from commands.context import CommandContext


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl cluster``."""
    command(app, "format", planned_tier=3)(format_cluster)


async def format_cluster(context: CommandContext) -> None:
    """Delete all ledgers, cookies and marks of a cluster whose bookies are all stopped, and give it a new instance id.

    All metadata is saved before. Entries on the bookies' disks become unreachable, and the bookies do not start again
    before their disks are formatted too. The layout stays. The instance id must be typed, or given by --confirm.
    """
    import random

    from commands.safety.change import open_change
    from commands.safety.confirmation import settle_plan
    from commands.safety.plan import Plan
    from runtime.metadata import cluster_format

    async with open_store(context) as (store, uri):
        tree = await find_tree(context, store, uri)
        await cluster_format.require_nobody_connected(store, uri.root)
        header = await new_header(store, uri.root, tree)
        survey = await look(context, store, uri.root, tree)
        actions = {"ledgers": "delete", "ledger ids": "delete", "cookies": "delete", "LAYOUT": "write anew"}
        actions |= {"INSTANCEID": "replace", "underreplication": "delete marks and locks"}
        plan = Plan(
            command="cluster format",
            tier=3,
            root=uri.root,
            instance_id=header.instance_id,
            subject=header.instance_id or uri.root,
            summary=(
                f"will delete all metadata at {uri.root}: {survey.ledgers} ledgers, {survey.nodes} nodes "
                "(it is backed up first)",
                "afterwards the bookies' disks must be formatted before they can join again",
            ),
            items=tree_items(uri.root, survey, actions),
            arguments={"layout": tree.value},
        )
        if not await settle_plan(context, plan, columns=TREE_COLUMNS):
            return
        async with open_change(context, store, plan) as change:
            await cluster_format.require_nobody_connected(store, uri.root)
            backup_path = await save_before(context, store, header, tree, survey)
            change.details["backup"] = backup_path
            instance_id = await cluster_format.format_cluster(
                store, uri.root, tree, random.SystemRandom(), before_each=change.require_lock
            )
            change.details["new_instance_id"] = instance_id
        context.console.say(f"to undo: bkctl cluster nuke, then bkctl cluster restore {backup_path}")
        body = {
            "root": uri.root,
            "old_instance_id": header.instance_id,
            "instance_id": instance_id,
            "layout": tree.value,
            "ledgers_deleted": survey.ledgers,
            "backup": backup_path,
        }
        context.console.record("ClusterFormat", body, name="instance_id")
