"""``bkctl bookie start``: a bookie in the foreground."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from commands.bookie_options import takes_bookie_options
from commands.command import command
from commands.context import BookieFlags, BookieSettings, CommandContext
from commands.event_loop import ServerStop, stoppable_server


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl bookie``."""
    command(app, "start", is_changing=True, is_configured_by_files=True, is_metadata_rate_taken=False)(start)


@takes_bookie_options
async def start(
    context: CommandContext,
    flags: BookieFlags,
    read_only: Annotated[bool | None, typer.Option("--read-only", help="Take no writes but those of recovery.")] = None,
) -> None:
    """Run a bookie until SIGTERM or Ctrl-C, then stop it in order and exit with 0, also before it serves.

    Settings come from these options, BKCTL_* variables, a Java bk_server.conf (--conf) and TOML (--config). With no
    configuration and no metadata URI at all it brings its own ZooKeeper and keeps everything in ./bkctl-data.
    """
    with stoppable_server() as stop:
        settings = context.load_bookie_settings(msgspec.structs.replace(flags, is_read_only=read_only))
        for warning in settings.warnings:
            context.console.warn(warning)
        if context.settings.is_dry_run:
            body: dict[str, object] = msgspec.to_builtins(settings.config)
            context.console.record("BookieConfig", body)
        else:
            await _run(context, settings, stop)


async def _run(context: CommandContext, settings: BookieSettings, stop: ServerStop) -> None:
    if settings.data_directory is None:
        from runtime.bookie.process import run_bookie

        await run_bookie(settings.config, stop.event, stop.note_serving)
    else:
        from commands.bookie.own_cluster import run_with_own_zookeeper

        say = context.console.say
        await run_with_own_zookeeper(settings.config, settings.data_directory, say, stop.event, stop.note_serving)
