"""``bkctl cluster nuke``: remove a cluster's metadata altogether."""

from __future__ import annotations

from bkctl.commands.cluster.deletion import Backups, back_up, reporting_deletion
from bkctl.commands.cluster.survey import TREE_TABLE, Examined, deletion_plan, examine_before_deletion
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.backup import cluster_format


@command("nuke", example="cluster nuke --dry-run", effect=Effect.DESTROYS)
async def nuke(context: CommandContext) -> None:
    """Delete all metadata of a cluster whose bookies are all stopped, including its root.

    All metadata is backed up first. Refused in the same cases as bkctl cluster format, and if there are nodes below
    the root that are not BookKeeper's. Does nothing if there is no cluster. To undo: bkctl cluster restore. Type
    the instance id (without one, the ledgers root), or use --confirm.
    """
    async with open_session(context, must_exist=False) as session:
        store, root = session.store, session.root

        async def examine() -> tuple[Plan, Examined | None]:
            if await store.exists(root) is None:
                return _empty_plan(context, root), None
            found = await examine_before_deletion(context, session, is_root_deleted=True)
            actions = {"ledgers": "delete", "ledger ids": "delete", "special": "delete"}
            sentence = f"will delete {root} and everything below it: {found.size} (all metadata is backed up first)"
            return deletion_plan(context, found, actions, sentence), found

        async def apply(change: Change, found: Examined | None) -> Backups:
            assert found is not None
            backups = await back_up(context, session, change, found)
            async with reporting_deletion(context, session, change, found.survey.nodes, backups) as before_each:
                await cluster_format.nuke_cluster(store, root, found.tree, before_each=before_each)
            return backups

        found, backups = await make_change(context, examine, apply, store, table=TREE_TABLE)
    body: dict[str, object] = {"root": root, "removed": found is not None}
    if found is not None and backups is not None:
        backups.say_undo(context)
        body |= {
            "instance_id": found.header.instance_id,
            "ledgers_deleted": found.survey.ledgers,
            "backup": backups.own,
            "earlier_backup": backups.earlier,
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
