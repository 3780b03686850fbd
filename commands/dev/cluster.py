"""``bkctl dev cluster``: ZooKeeper, bookies and an autorecovery daemon as processes that outlive the shell."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.dev.cluster_state import ClusterStatus, ServerStatus
from bkctl.commands.dev.local_cluster import LocalCluster
from bkctl.commands.rendering import Column, Table

Directory = Annotated[str, typer.Option("--dir", metavar="DIR", help="Directory of the cluster")]
ServerArguments = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Bookie IDs, or names of directories, like bookie-2 or autorecovery"),
]
DIRECTORY_DEFAULT = "bkctl-data/cluster"

_PLANNED_TABLE = Table("Bookies", Column("id", "ID"), Column("name", "NAME"))
_SERVER_TABLE = Table(
    "DevCluster",
    Column("id", "ID"),
    Column("name", "NAME"),
    Column("state", "STATE"),
    Column("pid", "PID", is_right=True, priority=2),
    Column("port", "PORT", is_right=True, priority=3),
    Column("admin_port", "ADMIN PORT", is_right=True, priority=2),
    Column("log", "LOG", priority=1),
    Column("dir", "DIR", is_wide=True),
    name="id",
)


@command("up", example="dev cluster up --bookies 3 --dir /tmp/bookies", effect=Effect.SERVES, is_local=True)
async def up(
    context: CommandContext,
    bookies: Annotated[
        int | None,
        typer.Option(
            "--bookies", min=1, max=100, metavar="N", help="Number of bookies (default: as many as now, or 3)"
        ),
    ] = None,
    directory: Directory = DIRECTORY_DEFAULT,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            min=1,
            max=65535,
            metavar="PORT",
            help="ZooKeeper port; bookies use the next ones, admin interfaces free ones (default: free ports)",
        ),
    ] = None,
    no_autorecovery: Annotated[
        bool, typer.Option("--no-autorecovery", help="Start no daemon that copies the ledgers of lost bookies")
    ] = False,
) -> None:
    """Start ZooKeeper, bookies and an autorecovery daemon; servers that are already running are left alone.

    Ids, ports and data stay the same after down and up. ZooKeeper needs Java 17 or newer.
    """
    cluster = _cluster(context, directory)
    if context.settings.is_dry_run:
        plan = cluster.plan(bookies, base_port)
        servers = [msgspec.to_builtins(bookie) for bookie in plan.bookies]
        body = {"metadata_uri": plan.metadata_uri, "autorecovery": not no_autorecovery}
        context.console.record("DevClusterPlan", body, name="metadata_uri", details={"bookies": servers})
        context.console.table(_PLANNED_TABLE, servers)
        return
    status = await cluster.up(bookies, base_port, has_daemon=not no_autorecovery)
    _print(context, status)
    context.console.say(f"export BKCTL_METADATA_URI='{status.metadata_uri}'")


@command("status", example="dev cluster status --dir /tmp/bookies", is_local=True)
def show_status(context: CommandContext, directory: Directory = DIRECTORY_DEFAULT) -> None:
    """Show which processes run, and where their data and logs are."""
    _print(context, _cluster(context, directory).status())


@command("down", example="dev cluster down --dir /tmp/bookies", effect=Effect.SERVES, is_local=True)
async def down(
    context: CommandContext,
    directory: Directory = DIRECTORY_DEFAULT,
    delete: Annotated[bool, typer.Option("--delete", help="Also delete the data")] = False,
) -> None:
    """Stop all processes cleanly; the data is kept unless --delete is given."""
    cluster = _cluster(context, directory)
    if context.settings.is_dry_run:
        _print(context, cluster.status())
        context.console.say(f"would stop all servers{' and delete their data' if delete else ''}")
        return
    _print(context, await cluster.down(is_deleting=delete))


@command("kill", example="dev cluster kill bookie-2 --dir /tmp/bookies", effect=Effect.SERVES, is_local=True)
async def kill(context: CommandContext, server_ids: ServerArguments, directory: Directory = DIRECTORY_DEFAULT) -> None:
    """Kill bookies, or the autorecovery daemon, without warning (kill -9), as in a crash."""
    cluster = _cluster(context, directory)
    servers = {server.name: server for server in map(cluster.running_server, server_ids)}
    if not context.settings.is_dry_run:
        servers = {each: await cluster.kill(each) for each in servers}
    context.console.rows(_SERVER_TABLE.titled("DevClusterServerList"), list(map(_row, servers.values())))
    if context.settings.is_dry_run:
        context.console.say("would kill " + ", ".join(f"{each.title} (pid {each.pid})" for each in servers.values()))


@command("start", example="dev cluster start bookie-2 --dir /tmp/bookies", effect=Effect.SERVES, is_local=True)
async def start(context: CommandContext, server_ids: ServerArguments, directory: Directory = DIRECTORY_DEFAULT) -> None:
    """Start stopped bookies again on their data, or the autorecovery daemon."""
    cluster = _cluster(context, directory)
    if context.settings.is_dry_run:
        servers, status = [cluster.server(each) for each in server_ids], cluster.status()
        stopped = [each.name for each in (status.zookeeper, *servers) if each.pid is None]
        _print(context, status)
        context.console.say(f"would start {' and '.join(stopped) or f'nothing: {servers[-1].name} is running'}")
        return
    _print(context, await cluster.start(server_ids))


def _cluster(context: CommandContext, directory: str) -> LocalCluster:
    return LocalCluster(directory, context.console.say)


def _row(server: ServerStatus) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(server)
    return row


def _print(context: CommandContext, status: ClusterStatus) -> None:
    if context.console.form not in {OutputForm.JSON, OutputForm.JSONL, OutputForm.YAML, OutputForm.NAME}:
        context.console.rows(_SERVER_TABLE, [_row(each) for each in status.servers])
    else:
        context.console.record("DevCluster", msgspec.to_builtins(status), name="metadata_uri")
