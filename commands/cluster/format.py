"""``bkctl cluster format``: empty a cluster's metadata, under a new instance id."""

from __future__ import annotations

import random

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


@command("format", example="cluster format --dry-run", effect=Effect.DESTROYS)
async def format_cluster(context: CommandContext) -> None:
    """Delete all ledgers, cookies and marks of a cluster of stopped bookies; assign a new instance id.

    All metadata is backed up first, and the layout is kept, as are switches, other nodes of underreplication, and
    nodes below the root that are not BookKeeper's. Entries on the bookies' disks become unreachable. The bookies do
    not start until their disks are formatted too.

    Refused while a process is connected (a bookie, an auditor, a worker with a lock, Pulsar's auditor), or if a
    newer release wrote a ledger. If a node has changed since the plan, nothing is changed. Safe to interrupt and to
    run again; "to undo" (earlier_backup) then names the backup of the first run, because that of the last has only
    what was left. To undo: bkctl cluster nuke, then bkctl cluster restore. Type the instance id (without one, the
    ledgers root), or use --confirm.
    """
    async with open_session(context, must_exist=False) as session:
        store, root = session.store, session.root

        async def examine() -> tuple[Plan, Examined]:
            found = await examine_before_deletion(context, session, is_root_deleted=False)
            actions = {"ledgers": "delete", "ledger ids": "delete", "cookies": "delete", "LAYOUT": "rewrite"}
            actions |= {"INSTANCEID": "replace", "underreplication": "delete marks and locks"}
            plan = deletion_plan(
                context,
                found,
                actions,
                f"will delete all metadata at {root}: {found.size} (it is backed up first)",
                "afterwards the bookies' disks must be formatted before they can join again",
            )
            return plan, found

        async def apply(change: Change, found: Examined) -> tuple[str, Backups]:
            backups = await back_up(context, session, change, found)
            async with reporting_deletion(context, session, change, found.survey.nodes, backups) as before_each:
                new_id = await cluster_format.format_cluster(
                    store, root, found.tree, random.SystemRandom(), before_each=before_each
                )
            change.details["new_instance_id"] = new_id
            return new_id, backups

        found, done = await make_change(context, examine, apply, store, table=TREE_TABLE)
        assert done is not None
        instance_id, backups = done
        backups.say_undo(context)
        body = {
            "root": root,
            "old_instance_id": found.header.instance_id,
            "instance_id": instance_id,
            "layout": found.tree.value,
            "ledgers_deleted": found.survey.ledgers,
            "backup": backups.own,
            "earlier_backup": backups.earlier,
        }
        context.console.record("ClusterFormat", body, name="instance_id")
