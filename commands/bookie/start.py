"""``bkctl bookie start``: a bookie in the foreground."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from typing import Annotated

import msgspec

from bkctl.commands.bookie.java_notes import ignored_key_notes, java_warnings
from bkctl.commands.bookie.own_cluster import run_with_own_zookeeper
from bkctl.commands.bookie.reloader import Reloader
from bkctl.commands.command import command
from bkctl.commands.context import (
    BookieFlags,
    BookieSettings,
    CommandContext,
    LogFormat,
    LogSettings,
    secrets_from_descriptors,
    shown_config,
)
from bkctl.commands.effect import Effect
from bkctl.commands.event_loop import ServerStop, handle_hangup, stoppable_server
from bkctl.commands.safety.confirmation import require_pinned_instance
from bkctl.commands.server_log import ServerLog
from bkctl.commands.session import open_session, require_metadata_uri
from bkctl.commands.shared_options import setting_option, takes_bookie_options
from bkctl.runtime.autorecovery.child import AutorecoveryChild
from bkctl.runtime.autorecovery.config import DaemonConfig
from bkctl.runtime.bookie.boot.listening import require_startup_user
from bkctl.runtime.bookie.boot.process import run_bookie
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.cluster.root import read_instance_id
from bkctl.runtime.net.bookie_security import BookieSecurity
from bkctl.runtime.net.client_handshake import ClientSecurity
from bkctl.runtime.net.host import OsHost
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.systemd import Systemd
from bkctl.runtime.ports import ServiceManager


@command(
    "start",
    example="bookie start --conf conf/bk_server.conf",
    effect=Effect.SERVES,
    is_configured_by_files=True,
    is_metadata_rate_taken=False,
    has_tables=False,
)
@takes_bookie_options
async def start(
    context: CommandContext,
    flags: BookieFlags,
    read_only: Annotated[bool | None, setting_option(BookieConfig, "is_read_only")] = None,
    with_autorecovery: Annotated[bool | None, setting_option(BookieConfig, "is_autorecovery_enabled")] = None,
    log_file: Annotated[str | None, setting_option(LogSettings, "log_file", "FILE")] = None,
    log_format: Annotated[LogFormat | None, setting_option(LogSettings, "log_format", "FORM")] = None,
) -> None:
    """Run a bookie in the foreground. SIGTERM and Ctrl-C shut it down cleanly.

    Settings come from options, BKCTL_* variables, --conf and --config. Without any, it starts its own ZooKeeper.
    SIGHUP reloads log level and rates.
    """
    flags = msgspec.structs.replace(
        flags,
        is_read_only=read_only,
        is_autorecovery_enabled=with_autorecovery,
        log_file=log_file,
        log_format=log_format,
    )
    with stoppable_server() as stop:
        settings = context.load_bookie_settings(flags)
        settings.config.storage.require_paired_indexes()
        require_secrets_of_child(settings.autorecovery)
        if context.settings.is_dry_run:
            require_startup_user(settings.config, OsHost())
            BookieSecurity.of(settings.config)
            ClientSecurity.of(settings.config.client)
            _warn(context, settings)
            for warning in java_warnings(settings.comparison):
                context.console.warn(warning)
            for note in ignored_key_notes(settings.comparison):
                context.console.say(note)
            await require_meant_cluster(context)
            context.console.record("BookieConfig", _shown(settings))
        else:
            if settings.log.log_format is LogFormat.JSON:
                context.console.log_messages(logging.getLogger(__name__))
            with contextlib.closing(ServerLog(settings.log, is_debug=context.settings.is_debug)) as log:
                _warn(context, settings)
                manager = Systemd(os.environ)
                load = functools.partial(context.load_bookie_settings, flags)
                reloader = Reloader(settings, load, log, manager)
                handle_hangup(reloader.reload, stop.request)
                try:
                    await require_meant_cluster(context)
                    await _run(context, settings, stop, reloader, manager)
                except Exception as error:
                    log.note_failure(error)
                    raise


def _warn(context: CommandContext, settings: BookieSettings) -> None:
    for warning in settings.warnings:
        context.console.warn(warning)


def _shown(settings: BookieSettings) -> dict[str, object]:
    """The settings for display; those of the daemon only if there is one."""
    body = shown_config(settings.config)
    if settings.autorecovery is not None:
        body["autorecovery"] = shown_config(settings.autorecovery.autorecovery)
    return body


async def require_meant_cluster(context: CommandContext) -> None:
    """RefusedError when the context pins another instance id: the bookie would write its cookie to that cluster."""
    if context.settings.pinned_instance_id is None:
        return
    uri = require_metadata_uri(context)
    async with open_session(context, metadata_uri=uri, must_exist=False, warns_of_restore=False) as session:
        require_pinned_instance(context, await read_instance_id(session.store, session.root))


async def _run(
    context: CommandContext, settings: BookieSettings, stop: ServerStop, reloader: Reloader, manager: ServiceManager
) -> None:
    def note_serving(apply_settings: Callable[[BookieConfig | None], None]) -> None:
        stop.note_serving()
        reloader.note_serving(apply_settings)

    autorecovery = None if settings.autorecovery is None else AutorecoveryChild(settings.autorecovery, LoopClock())
    if settings.data_directory is None:
        await run_bookie(settings.config, stop.event, note_serving, manager, autorecovery)
    else:
        say, directory = context.console.say, settings.data_directory
        await run_with_own_zookeeper(settings.config, directory, say, stop.event, note_serving, manager, autorecovery)


def require_secrets_of_child(config: DaemonConfig | None) -> None:
    """ConfigurationError for secrets that the process of the autorecovery daemon could not read."""
    found = [] if config is None else secrets_from_descriptors(config)
    if found:
        names = ", ".join(found).replace("client.security.", "bookie_client.")
        raise ConfigurationError(
            f"{names}: the process of the autorecovery daemon (is_autorecovery_enabled) has no file descriptors of "
            "this one: use file:PATH or env:VARIABLE"
        )
