"""``bkctl autorecovery start``: an autorecovery daemon in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from typing import Annotated

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, DaemonFlags, Effect, LogFormat, LogSettings, shown_config
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.event_loop import handle_hangup, stoppable_server
from bkctl.commands.server_log import ServerLog
from bkctl.commands.session import require_metadata_uri
from bkctl.commands.shared_options import setting_option
from bkctl.runtime.autorecovery.config import AutorecoveryConfig, AutorecoveryRole, ReplicationTarget
from bkctl.runtime.autorecovery.process import ProcessId, run_autorecovery
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.net.systemd import Systemd
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)


@command(
    "start",
    example="autorecovery start --conf conf/bk_server.conf",
    effect=Effect.SERVES,
    has_tables=False,
)
async def start(
    context: CommandContext,
    role: Annotated[AutorecoveryRole | None, setting_option(AutorecoveryConfig, "role", "ROLE")] = None,
    bookie_id: Annotated[str | None, setting_option(AutorecoveryConfig, "own_bookie", "ID")] = None,
    admin_socket: Annotated[str | None, setting_option(AutorecoveryConfig, "admin_socket", "FILE")] = None,
    log_file: Annotated[str | None, setting_option(LogSettings, "log_file", "FILE")] = None,
    log_format: Annotated[LogFormat | None, setting_option(LogSettings, "log_format", "FORM")] = None,
) -> None:
    """Run an auditor and a worker in the foreground.

    The auditor finds ledgers that lack copies and marks them; the worker repairs marked ledgers. SIGTERM and Ctrl-C
    end it within 10 seconds, after it has given its locks and its vote back. It waits for ZooKeeper.
    """
    flags = DaemonFlags(
        role=role, own_bookie=bookie_id, admin_socket=admin_socket, log_file=log_file, log_format=log_format
    )
    with stoppable_server() as stop:
        require_metadata_uri(context)
        settings = context.load_daemon_settings(flags)
        settings.config.autorecovery.require_own_bookie()
        if bookie_id is not None and settings.config.autorecovery.replication_target is not ReplicationTarget.LOCAL:
            raise InvalidArgumentError("--bookie-id has no effect unless replication_target is local: leave it out")
        if context.settings.is_dry_run:
            for warning in settings.warnings:
                context.console.warn(warning)
            context.console.record("AutorecoveryConfig", shown_config(settings.config))
            return
        if settings.log.log_format is LogFormat.JSON:
            context.console.log_messages(logger)
        is_debug = context.settings.is_debug
        with contextlib.closing(ServerLog(settings.log, is_debug=is_debug, server="daemon")) as log:
            for warning in settings.warnings:
                logger.warning("%s", warning)
            handle_hangup(functools.partial(_reload, context, flags, log), stop.request)
            try:
                process_id = ProcessId(await asyncio.to_thread(canonical_host_name), os.getpid())
                await run_autorecovery(settings.config, process_id, stop.event, stop.note_serving, Systemd(os.environ))
            except Exception as error:
                log.note_failure(error)
                raise


def _reload(context: CommandContext, flags: DaemonFlags, log: ServerLog) -> None:
    log.reopen()
    try:
        log.reload(context.load_daemon_settings(flags).log)
    except BkctlError as error:
        logger.error("settings were not reloaded: %s", error)
