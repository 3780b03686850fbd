"""``bkctl cluster backup``: all metadata of a cluster in one file."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.cluster.survey import file_size, find_tree, new_header, save
from commands.cluster_access import open_store
from commands.command import command
from commands.context import CommandContext
from commands.rendering import size
from runtime.errors import RefusedError


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl cluster``."""
    command(app, "backup")(backup)


async def backup(
    context: CommandContext,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file; the usual ending is .jsonl.gz.")],
) -> None:
    """Save ledger metadata, cookies, layout and instance id in one file, which restore brings back.

    The cluster may be at work: each ledger is saved as it was at one moment, but not all at the same. The file holds
    ledger passwords in the clear and is readable for its owner alone.
    """
    from runtime.metadata.cluster import is_restore_unfinished, unfinished_restore_text

    async with open_store(context, takes_part_for_whole=False) as (store, uri):
        if await is_restore_unfinished(store, uri.root):
            raise RefusedError(f"nothing was saved: {unfinished_restore_text(uri.root)}")
        tree = await find_tree(context, store, uri)
        header = await new_header(store, uri.root, tree)
        survey, end = await save(context, store, header, tree, file)
        for fault in survey.faults:
            context.console.warn(f"saved as it is, but no restore brings it back: {fault}")
        body = {
            "file": file,
            "root": header.root,
            "instance_id": header.instance_id,
            "layout": header.layout,
            "nodes": end.nodes,
            "ledgers": end.ledgers,
            "faults": survey.faults_count,
            "sha256": end.sha256,
            "bytes": file_size(file),
        }
        context.console.record("ClusterBackupReport", body, name="file", show={"bytes": size})
