"""``bkctl cluster backup``: all metadata of a cluster in one file."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.cluster.survey import file_size, find_tree, new_header, save
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.session import open_session
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.cluster.root import is_restore_unfinished, unfinished_restore_text
from bkctl.storage.words import size


@command("backup", example="cluster backup backup.jsonl.gz", has_tables=False)
async def backup(
    context: CommandContext,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file, usually named *.jsonl.gz")],
) -> None:
    """Save ledger metadata, cookies, layout and instance id in one file.

    Safe on a live cluster. Each ledger is consistent by itself; the backup as a whole is not a point-in-time snapshot.
    The file contains ledger passwords in plain text; only its owner can read it.
    """
    async with open_session(context, must_exist=False, warns_of_restore=False) as session:
        if await is_restore_unfinished(session.store, session.root):
            raise RefusedError(f"nothing was saved: {unfinished_restore_text(session.root)}")
        tree = await find_tree(context, session)
        header = await new_header(session, tree)
        survey, end = await save(context, session, header, tree, file)
        for fault in survey.faults:
            context.console.warn(f"saved, but restore will skip it: {fault}")
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
