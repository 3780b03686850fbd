"""``bkctl dev zookeeper``: one ZooKeeper server in the foreground."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.event_loop import stop_signals
from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper, find_java, find_zookeeper_jars


@command("zookeeper", example="dev zookeeper --port 2181", effect=Effect.SERVES, is_local=True, has_tables=False)
async def run_zookeeper(
    context: CommandContext,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port on 127.0.0.1; 0: any free port")
    ] = 0,
    directory: Annotated[str, typer.Option("--dir", metavar="DIR", help="Directory for its data and log")] = (
        "bkctl-data/zookeeper"
    ),
) -> None:
    """Run a ZooKeeper server until Ctrl-C.

    This is the real server, from the jars in PySpark; it needs Java 17 or newer. Its data is kept.
    """
    console = context.console
    directory = _absolute(directory)
    if context.settings.is_dry_run:
        plan = {"java": find_java(), "class_path": find_zookeeper_jars(), "dir": directory, "port": port}
        console.record("ZooKeeperPlan", plan, name="dir")
        return
    async with await EmbeddedZooKeeper.start(directory, port=port) as server:
        uri = f"zk+hierarchical://{server.connect_string}/ledgers"
        body = {"metadata_uri": uri, "pid": server.pid, "port": server.port, "dir": directory, "log": server.log_path}
        console.record("ZooKeeper", body, name="metadata_uri")
        console.say(f"export BKCTL_METADATA_URI='{uri}'")
        console.say("ZooKeeper is running; Ctrl-C stops it (to create a cluster: bkctl cluster init)")
        stopped = asyncio.create_task(stop_signals().wait())
        ended = asyncio.create_task(server.wait_ended())
        await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if ended.done():
            raise MetadataUnavailableError(
                f"ZooKeeper stopped unexpectedly with status {ended.result()}: see {server.log_path}"
            )
        ended.cancel()
    console.say("ZooKeeper stopped")


def _absolute(path: str) -> str:
    return os.path.abspath(path)
