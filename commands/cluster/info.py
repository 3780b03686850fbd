"""``bkctl cluster info``: the cluster at a glance."""

from __future__ import annotations

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import plain
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.cluster.root import read_cluster_info
from bkctl.runtime.metadata.cluster.summary import read_cluster_summary

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
