"""``bkctl cluster format``: empty a cluster's metadata, under a new instance id."""

from __future__ import annotations

import random

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
from bkctl.commands.safety.gate import open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.backup import cluster_format
from bkctl.storage.words import counted


@command("format", example="cluster format --dry-run", effect=Effect.DESTROYS)
async def format_cluster(context: CommandContext) -> None:
    """Delete all ledgers, cookies and marks of a cluster of stopped bookies; assign a new instance id.

    All metadata is backed up first, and the layout is kept. Entries on the bookies' disks become unreachable. The
    bookies do not start until their disks are formatted too. Type the instance id, or use --confirm.
    """
    async with open_session(context, must_exist=False) as session:
        tree = await find_tree(context, session)
        await cluster_format.require_no_connections(session.store, session.root)
        header = await new_header(session, tree)
        survey = await look_before_deletion(context, session, tree)
        actions = {"ledgers": "delete", "ledger ids": "delete", "cookies": "delete", "LAYOUT": "rewrite"}
        actions |= {"INSTANCEID": "replace", "underreplication": "delete marks and locks"}
        plan = Plan(
            root=session.root,
            instance_id=header.instance_id,
            subject=header.instance_id or session.root,
            summary=(
                f"will delete all metadata at {session.root}: {counted(survey.ledgers, 'ledger')}, "
                f"{counted(survey.nodes, 'node')} (it is backed up first)",
                "afterwards the bookies' disks must be formatted before they can join again",
            ),
            items=tree_items(session.root, survey, actions) + await notes_items(session),
            arguments={"layout": tree.value},
        )
        async with open_change(context, plan, session.store, table=TREE_TABLE) as change:
            await cluster_format.require_no_connections(session.store, session.root)
            backup_path = await save_before(context, session, header, tree, survey)
            change.details["backup"] = backup_path
            instance_id = await cluster_format.format_cluster(
                session.store, session.root, tree, random.SystemRandom(), before_each=change.require_lock
            )
            change.details["new_instance_id"] = instance_id
        context.console.say(f"to undo: bkctl cluster nuke, then bkctl cluster restore {backup_path}")
        body = {
            "root": session.root,
            "old_instance_id": header.instance_id,
            "instance_id": instance_id,
            "layout": tree.value,
            "ledgers_deleted": survey.ledgers,
            "backup": backup_path,
        }
        context.console.record("ClusterFormat", body, name="instance_id")
