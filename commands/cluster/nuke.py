"""``bkctl cluster nuke``: remove a cluster's metadata altogether."""

from __future__ import annotations

from bkctl.commands.cluster.survey import (
    TREE_TABLE,
    find_tree,
    look_before_deletion,
    new_header,
    notes_items,
    save_before,
    tree_items,
)
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.backup import cluster_format
from bkctl.storage.words import counted


@command("nuke", example="cluster nuke --dry-run", effect=Effect.DESTROYS)
async def nuke(context: CommandContext) -> None:
    """Delete all metadata of a cluster whose bookies are all stopped, including its root.

    All metadata is backed up first. Refused if there are nodes below the root that are not BookKeeper's. Does nothing
    if there is no cluster. Type the instance id, or use --confirm.
    """
    async with open_session(context, must_exist=False) as session:
        if await session.store.exists(session.root) is None:
            nothing_to_change(context, _empty_plan(context, session.root), table=TREE_TABLE)
            context.console.record("ClusterNuke", {"root": session.root, "removed": False}, name="root")
            return
        tree = await find_tree(context, session)
        await cluster_format.require_no_connections(session.store, session.root)
        if unknown := await cluster_format.find_unknown_children(session.store, session.root, tree):
            raise cluster_format.unknown_children_error(session.root, unknown)
        header = await new_header(session, tree)
        survey = await look_before_deletion(context, session, tree)
        plan = Plan(
            root=session.root,
            instance_id=header.instance_id,
            subject=header.instance_id or session.root,
            summary=(
                f"will delete {session.root} and everything below it: {counted(survey.ledgers, 'ledger')}, "
                f"{counted(survey.nodes, 'node')} (all metadata is backed up first)",
            ),
            items=tree_items(session.root, survey, {"ledgers": "delete", "ledger ids": "delete", "special": "delete"})
            + await notes_items(session),
            arguments={"layout": tree.value},
        )
        async with open_change(context, plan, session.store, table=TREE_TABLE) as change:
            await cluster_format.require_no_connections(session.store, session.root)
            backup_path = await save_before(context, session, header, tree, survey)
            change.details["backup"] = backup_path
            await cluster_format.nuke_cluster(session.store, session.root, tree, before_each=change.require_lock)
        context.console.say(f"to undo: bkctl cluster restore {backup_path}")
        body = {
            "root": session.root,
            "removed": True,
            "instance_id": header.instance_id,
            "ledgers_deleted": survey.ledgers,
            "backup": backup_path,
        }
        context.console.record("ClusterNuke", body, name="root")


def _empty_plan(context: CommandContext, root: str) -> Plan:
    """Without a cluster there is no instance id to compare with the pinned one."""
    return Plan(
        root=root,
        instance_id=context.settings.pinned_instance_id,
        subject=root,
        summary=(f"no cluster at {root}: nothing to do",),
    )
