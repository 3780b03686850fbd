"""``bkctl cluster init``, ``info`` and ``instance-id``."""

from __future__ import annotations

import random
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.rendering import plain
from bkctl.commands.safety.gate import open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.runtime.errors import ClusterNotFoundError, NodeExistsError, RefusedError
from bkctl.runtime.metadata.cluster.root import (
    init_cluster,
    is_restore_unfinished,
    read_cluster_info,
    unfinished_restore_text,
)
from bkctl.runtime.metadata.cluster.summary import read_cluster_summary


@command("init", example="cluster init --if-not-exists", effect=Effect.REVERSIBLE)
async def init(
    context: CommandContext,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the cluster already exists")
    ] = False,
) -> None:
    """Create the cluster at the metadata URI.

    Missing parents of its root are created too. In an existing cluster only missing directories are added.
    """
    async with open_session(context, must_exist=False, warns_of_restore=False) as session:
        if await is_restore_unfinished(session.store, session.root):
            raise RefusedError(f"nothing was changed: {unfinished_restore_text(session.root)}")
        try:
            existing = await read_cluster_info(session.store, session.root, context.settings.zookeeper.layout)
        except ClusterNotFoundError:
            existing = None
        if existing is not None and not if_not_exists:
            raise NodeExistsError(
                f"a cluster already exists at {session.root} (instance id {existing.instance_id}); "
                "--if-not-exists makes this a success",
                session.root,
            )
        plan = Plan(
            root=session.root,
            instance_id=existing.instance_id if existing is not None else None,
            items=({"action": "create" if existing is None else "complete", "path": session.root},),
        )
        async with open_change(context, plan, session.store, is_locked=False) as change:
            layout = context.settings.zookeeper.layout
            random_source, uri = random.SystemRandom(), session.uri
            info, is_created = await init_cluster(session.store, uri.root, uri.tree, random_source, layout)
            change.details |= {"created": is_created, "instance_id": info.instance_id}
        body: dict[str, object] = {
            "metadata_uri": str(session.uri),
            "root": info.root,
            "instance_id": info.instance_id,
            "layout": info.layout.tree.value if info.layout is not None else None,
            "created": is_created,
        }
        context.console.record("Cluster", body, name="root")


_SHOWN = {
    "cluster_under_replicated": lambda value: (
        plain(value) if value is not None else "unknown: bkctl audit counts the copies"
    ),
    "ledger_replication_enabled": lambda value: (
        plain(value) if value is not None else "unknown: enabled, but no auditor is elected"
    ),
}


@command("info", example="cluster info", has_tables=False)
async def show_info(context: CommandContext) -> None:
    """Show bookies by state, the auditor, and whether ledgers are under-replicated.

    Only an auditor detects missing copies. If none is elected, or bookies are down and no ledger is marked yet, the
    answer is "unknown" (null in JSON). bkctl audit counts the copies.
    """
    async with open_session(context, must_exist=False) as session:
        summary = await read_cluster_summary(session.store, session.root, context.settings.zookeeper.layout)
        layout = summary.info.layout
        body = {
            "auditor_elected": summary.is_auditor_elected,
            "auditor_id": summary.auditor_id,
            "cluster_under_replicated": summary.is_under_replicated,
            "ledger_replication_enabled": summary.is_replication_enabled,
            "total_bookies_count": summary.known_count,
            "writable_bookies_count": summary.writable_count,
            "readonly_bookies_count": summary.read_only_count,
            "unavailable_bookies_count": summary.unavailable_count,
            "bkctl": {
                "metadata_uri": str(session.uri),
                "instance_id": summary.info.instance_id,
                "layout": layout.tree.value if layout is not None else None,
            },
        }
        context.console.record("ClusterInfo", body, name="bkctl.metadata_uri", show=_SHOWN)


@command("instance-id", example="cluster instance-id", has_tables=False)
async def show_instance_id(context: CommandContext) -> None:
    """Show the instance id. Exits with 4 if the cluster is not initialized.

    A cluster created by an old launcher may have none; this is not an error.
    """
    async with open_session(context, must_exist=False) as session:
        info = await read_cluster_info(session.store, session.root, context.settings.zookeeper.layout)
        body = {"instance_id": info.instance_id, "root": session.root}
        context.console.record("InstanceId", body, name="instance_id")
