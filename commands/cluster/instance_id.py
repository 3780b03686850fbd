"""``bkctl cluster instance-id``: the identity of this incarnation of the cluster."""

from __future__ import annotations

from commands.command import command
from commands.context import CommandContext
from commands.session import open_session


@command("instance-id", example="cluster instance-id")
async def show_instance_id(context: CommandContext) -> None:
    """Show the instance id. Exits with 4 if the cluster is not initialized.

    A cluster created by an old launcher may have none; this is not an error.
    """
    from runtime.metadata.cluster.root import read_cluster_info

    async with open_session(context, must_exist=False) as session:
        info = await read_cluster_info(session.store, session.root, context.settings.zookeeper.layout)
        body = {"instance_id": info.instance_id, "root": session.root}
        context.console.record("InstanceId", body, name="instance_id")
