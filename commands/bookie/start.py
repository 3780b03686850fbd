"""``bkctl bookie start``: a bookie in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Annotated

import msgspec

from bkctl.commands.command import command
from bkctl.commands.context import (
    BookieFlags,
    BookieSettings,
    CommandContext,
    Effect,
    JavaComparison,
    LogFormat,
    LogSettings,
    secrets_from_descriptors,
    shown_config,
)
from bkctl.commands.event_loop import ServerStop, handle_hangup, stoppable_server
from bkctl.commands.safety.confirmation import require_pinned_instance
from bkctl.commands.server_log import ServerLog
from bkctl.commands.session import open_session, require_metadata_uri
from bkctl.commands.shared_options import setting_option, takes_bookie_options
from bkctl.runtime.autorecovery.child import AutorecoveryChild
from bkctl.runtime.autorecovery.config import DaemonConfig
from bkctl.runtime.bookie.boot.listening import require_startup_user
from bkctl.runtime.bookie.boot.process import OnServing, run_bookie
from bkctl.runtime.bookie.cookies.directories import read_directory
from bkctl.runtime.bookie.ports import ChildDaemon
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError, PortInUseError, RefusedError
from bkctl.runtime.metadata.cluster.root import init_cluster, read_instance_id
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper, require_free, server_command
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.bookie_security import BookieSecurity
from bkctl.runtime.net.client_handshake import ClientSecurity
from bkctl.runtime.net.host import OsHost
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.systemd import Systemd
from bkctl.runtime.ports import ServiceManager
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import BkctlError
from bkctl.storage.json_text import JsonTextError, decode_json
from bkctl.storage.words import listed


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


STATE_FILE = "cluster.json"


class OwnCluster(msgspec.Struct, frozen=True):
    """The state of the embedded cluster, stored next to its data.

    The instance id distinguishes its directories from those of other clusters. The port stays the same, so that an
    exported metadata URI stays valid.
    """

    instance_id: str | None
    zookeeper_port: int


async def run_with_own_zookeeper(
    config: BookieConfig,
    data_directory: str,
    say: Callable[[str], None],
    stop: asyncio.Event,
    on_serving: OnServing,
    manager: ServiceManager,
    autorecovery: ChildDaemon | None,
) -> None:
    """Run ZooKeeper and the bookie until the bookie ends; the last four arguments are those of ``run_bookie``.

    RefusedError, with nothing started or written, when a directory has the cookie of another cluster.
    """
    known = _read_own_cluster(data_directory)
    _refuse_foreign_directories(config, known)
    try:
        server_command()
    except ConfigurationError as error:
        raise ConfigurationError(
            f"nothing is configured: name a cluster with --conf or --metadata-uri; {error}"
        ) from error
    port = 0
    if known is not None:
        with contextlib.suppress(PortInUseError):
            require_free(known.zookeeper_port, "ZooKeeper")
            port = known.zookeeper_port
    async with await EmbeddedZooKeeper.start(os.path.join(data_directory, "zookeeper"), port=port) as server:
        uri = f"zk+hierarchical://{server.connect_string}/ledgers"
        instance_id = await _init_cluster(uri)
        _write_own_cluster(data_directory, OwnCluster(instance_id, server.port))
        say(
            f"nothing is configured: using an embedded ZooKeeper and ./{data_directory} "
            f"(export BKCTL_METADATA_URI='{uri}')"
        )
        config = msgspec.structs.replace(config, metadata_uri=uri)
        await run_bookie(config, stop, on_serving, manager, autorecovery)


def _refuse_foreign_directories(config: BookieConfig, known: OwnCluster | None) -> None:
    for path in config.storage.all_directories:
        cookie = read_directory(OsFileSystem(), path).cookie
        if cookie is not None and (known is None or cookie.instance_id != known.instance_id):
            raise RefusedError(
                f"{path} belongs to bookie {cookie.bookie_id} of cluster {cookie.instance_id}, not to an embedded "
                "cluster: use that cluster's --metadata-uri or --conf, or empty directories"
            )


async def _init_cluster(uri: str) -> str | None:
    parsed = parse_metadata_uri(uri)
    async with await ZooKeeperStore.connect(parsed.servers) as store:
        info, _ = await init_cluster(store, parsed.root, parsed.tree, random.SystemRandom())
    return info.instance_id


def _read_own_cluster(data_directory: str) -> OwnCluster | None:
    path = os.path.join(data_directory, STATE_FILE)
    try:
        return decode_json(OsFileSystem().read_file(path), OwnCluster)
    except FileNotFoundError:
        return None
    except JsonTextError as error:
        raise RefusedError(
            f"{path} is damaged ({error}): restore it, or specify the cluster with --metadata-uri"
        ) from error


def _write_own_cluster(data_directory: str, state: OwnCluster) -> None:
    if _read_own_cluster(data_directory) != state:
        OsFileSystem().write_file_atomically(os.path.join(data_directory, STATE_FILE), msgspec.json.encode(state))


logger = logging.getLogger(__name__)


class Reloader:
    """Effect of SIGHUP: the log file is opened again, and changed settings are applied."""

    def __init__(
        self,
        settings: BookieSettings,
        load: Callable[[], BookieSettings],
        log: ServerLog,
        manager: ServiceManager,
    ) -> None:
        """``settings``: those of the start. ``manager`` is notified when a reload begins and ends."""
        self._settings = settings
        self._manager = manager
        self._load = load
        self._log = log
        self._apply_settings: Callable[[BookieConfig | None], None] | None = None
        self._is_due = False

    def note_serving(self, apply_settings: Callable[[BookieConfig | None], None]) -> None:
        """The bookie can apply settings from now on. ``apply_settings`` gets None if they cannot be read."""
        self._apply_settings = apply_settings
        log_comparison(self._settings.comparison)
        if self._is_due:
            self._reload_settings(apply_settings)

    def reload(self) -> None:
        """Open the log file again and read the settings again. If either cannot be read, nothing changes."""
        self._log.reopen()
        if self._apply_settings is None:
            self._is_due = True
            logger.info("settings will be reloaded when the bookie has started")
            return
        self._manager.notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        self._reload_settings(self._apply_settings)
        self._manager.notify(READY=1)

    def _reload_settings(self, apply_settings: Callable[[BookieConfig | None], None]) -> None:
        try:
            settings = self._load()
        except BkctlError as error:
            logger.error("settings were not reloaded: %s", error)
            apply_settings(None)
            return
        before, self._settings = self._settings, settings
        for warning in settings.warnings:
            if warning not in before.warnings:
                logger.warning("%s", warning)
        # The admin port does not change before a restart.
        comparison = msgspec.structs.replace(settings.comparison, admin=before.comparison.admin)
        if comparison != before.comparison:
            log_comparison(msgspec.structs.replace(comparison, admin=()))
        self._log.reload(settings.log)
        apply_settings(settings.config)


def log_comparison(comparison: JavaComparison) -> None:
    """Log what a Java bookie does otherwise: as warnings what may break, in one short line keys without effect."""
    for warning in java_warnings(comparison):
        logger.warning("%s", warning)
    if summary := ignored_keys_summary(comparison):
        logger.info("%s", summary, extra={"attributes": {"ignored_keys": ignored_key_notes(comparison)}})


def java_warnings(comparison: JavaComparison) -> list[str]:
    """What may break: a line for each."""
    differences = (*comparison.missing, *comparison.admin)
    return [*comparison.clear_text, *(f"compared with a Java bookie: {each}" for each in differences)]


def ignored_key_notes(comparison: JavaComparison) -> list[str]:
    """A line for all keys without effect for the same reason."""
    return [f"{_have(keys)} no effect ({reason})" for reason, keys in comparison.ignored.items()]


def ignored_keys_summary(comparison: JavaComparison) -> str | None:
    """One short line for all keys without effect."""
    keys = [key for several in comparison.ignored.values() for key in several]
    if not keys:
        return None
    return f"bk_server.conf: {_have(keys)} no effect (bkctl bookie start --dry-run shows why)"


def _have(keys: list[str] | tuple[str, ...]) -> str:
    return f"{listed(keys)} {'has' if len(keys) == 1 else 'have'}"
