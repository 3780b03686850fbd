"""``bkctl cluster init``: create a cluster's metadata."""

from __future__ import annotations

import random
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
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
