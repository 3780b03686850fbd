"""``bkctl cluster init``: create a cluster's metadata."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.cluster_access import open_store
from commands.command import command
from commands.context import CommandContext


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl cluster``."""
    command(app, "init", is_changing=True)(init)


async def init(
    context: CommandContext,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed when the cluster is there already.")
    ] = False,
) -> None:
    """Create the cluster that the metadata URI names.

    Missing parents of its root are created too. In an existing cluster nothing but missing directories is added.
    """
    import random

    from commands.safety.change import open_change
    from commands.safety.confirmation import require_pinned_instance
    from commands.safety.plan import Plan
    from runtime.errors import ClusterNotFoundError, NodeExistsError, RefusedError
    from runtime.metadata.cluster import (
        init_cluster,
        is_restore_unfinished,
        read_cluster_info,
        unfinished_restore_text,
    )

    async with open_store(context, takes_part_for_whole=False) as (store, uri):
        if await is_restore_unfinished(store, uri.root):
            raise RefusedError(f"nothing was changed: {unfinished_restore_text(uri.root)}")
        try:
            existing = await read_cluster_info(store, uri.root, context.settings.zookeeper.layout)
        except ClusterNotFoundError:
            existing = None
        if existing is not None and not if_not_exists:
            raise NodeExistsError(
                f"there is a cluster at {uri.root} already (instance id {existing.instance_id}); "
                "--if-not-exists makes this a success",
                uri.root,
            )
        require_pinned_instance(context, existing.instance_id if existing is not None else None)
        if context.settings.is_dry_run:
            body: dict[str, object] = {"root": uri.root, "would_create": existing is None}
        else:
            plan = Plan(
                command="cluster init",
                tier=1,
                root=uri.root,
                instance_id=existing.instance_id if existing is not None else None,
                subject="",
                items=({"action": "create", "path": uri.root},),
            )
            async with open_change(context, store, plan, has_lock=False) as change:
                layout = context.settings.zookeeper.layout
                info, is_created = await init_cluster(store, uri.root, uri.tree, random.SystemRandom(), layout)
                change.details |= {"created": is_created, "instance_id": info.instance_id}
            body = {
                "metadata_uri": str(uri),
                "root": info.root,
                "instance_id": info.instance_id,
                "layout": info.layout.tree.value if info.layout is not None else None,
                "created": is_created,
            }
        context.console.record("Cluster", body, name="root")
