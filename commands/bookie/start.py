"""``bkctl bookie start``: a bookie in the foreground."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from commands.command import command
from commands.context import BookieFlags, CommandContext


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl bookie``."""
    command(app, "start", is_changing=True, is_configured_by_files=True)(start)


async def start(
    context: CommandContext,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, metavar="PORT", help="TCP port; 3181 if not given.")
    ] = None,
    bookie_id: Annotated[
        str | None, typer.Option("--bookie-id", metavar="ID", help="Permanent identity; else ADDRESS:PORT.")
    ] = None,
    advertised_address: Annotated[
        str | None, typer.Option("--advertised-address", metavar="HOST", help="What clients connect to.")
    ] = None,
    journal_directories: Annotated[
        list[str] | None, typer.Option("--journal-dir", metavar="DIR", help="Journal folder; may be repeated.")
    ] = None,
    ledger_directories: Annotated[
        list[str] | None, typer.Option("--ledger-dir", metavar="DIR", help="Ledger folder; may be repeated.")
    ] = None,
    index_directories: Annotated[
        list[str] | None, typer.Option("--index-dir", metavar="DIR", help="Index folder, one per ledger folder.")
    ] = None,
    read_only: Annotated[bool | None, typer.Option("--read-only", help="Take no writes but those of recovery.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of bk_server.conf.")
    ] = None,
) -> None:
    """Run a bookie until SIGTERM or Ctrl-C, then stop it in order.

    Settings come from these options, BKCTL_* variables, a Java bk_server.conf (--conf) and TOML (--config). With no
    configuration and no metadata URI at all it brings its own ZooKeeper and keeps everything in ./bkctl-data.
    """
    flags = BookieFlags(
        port=port,
        bookie_id=bookie_id,
        advertised_address=advertised_address,
        journal_directories=tuple(journal_directories or ()),
        ledger_directories=tuple(ledger_directories or ()),
        index_directories=tuple(index_directories or ()),
        is_read_only=read_only,
        overrides=tuple(overrides or ()),
    )
    settings = context.load_bookie_settings(flags)
    for warning in settings.warnings:
        context.console.warn(warning)
    if context.settings.is_dry_run:
        body: dict[str, object] = msgspec.to_builtins(settings.config)
        context.console.record("BookieConfig", body)
    elif settings.data_directory is None:
        from runtime.bookie.process import run_bookie

        await run_bookie(settings.config)
    else:
        from commands.bookie.own_cluster import run_with_own_zookeeper

        await run_with_own_zookeeper(settings.config, settings.data_directory, context.console.say)
