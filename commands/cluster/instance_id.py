"""``bkctl cluster instance-id``: the identity of this incarnation of the cluster."""

from __future__ import annotations

import typer

from commands.cluster_access import open_store
from commands.command import command
from commands.context import CommandContext


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl cluster``."""
    command(app, "instance-id")(show_instance_id)


async def show_instance_id(context: CommandContext) -> None:
    """Show the instance id. Exit code 4 says that the cluster is not initialised, as scripts want to know.

    A cluster may be without one (old launchers made such): that is no error.
    """
    from runtime.metadata.cluster import read_cluster_info

    async with open_store(context) as (store, uri):
        info = await read_cluster_info(store, uri.root, context.settings.zookeeper.layout)
        context.console.record("InstanceId", {"instance_id": info.instance_id, "root": uri.root}, name="instance_id")
