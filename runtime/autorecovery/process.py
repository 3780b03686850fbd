"""An autorecovery daemon as its own process: adapters, start and end.

This is the only module of the daemon that creates adapters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import msgspec

from bkctl.runtime.admin.calls import ALL_ADDRESSES
from bkctl.runtime.admin.connections import admin_limits
from bkctl.runtime.admin.exposition import ViewCollector
from bkctl.runtime.admin.server import AdminServer
from bkctl.runtime.admin.tcp_ports import ADMIN_LANE, admin_tls, open_tcp_ports, require_token_file
from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.config import AutorecoveryConfig, AutorecoveryRole, DaemonConfig
from bkctl.runtime.autorecovery.daemon import ASKED_MAX, AuditorOffice, AutorecoveryDaemon
from bkctl.runtime.autorecovery.lane import end_tasks
from bkctl.runtime.autorecovery.metrics import catalogue_of
from bkctl.runtime.autorecovery.routes import DaemonRoutes
from bkctl.runtime.autorecovery.worker import Worker
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.access import refusals
from bkctl.runtime.errors import ConfigurationError, MetadataAuthError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote
from bkctl.runtime.metadata.request_budget import share_of_budget
from bkctl.runtime.metadata.uri import is_pulsar_uri, parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.connect_failures import log_wait
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import OsHost, listen_tcp
from bkctl.runtime.net.local_socket import listen_unix, run_directory
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.net.secret_file import read_secret
from bkctl.runtime.ports import ServiceManager
from bkctl.runtime.security.tls_contexts import bookie_contexts
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_PAUSE_S: Final = 2.0


class ProcessId(msgspec.Struct, frozen=True):
    """Where this process runs. ``host`` is the name that Java would write to a lock (``canonical_host_name``)."""

    host: str
    pid: int


async def run_autorecovery(
    config: DaemonConfig,
    process_id: ProcessId,
    stop: asyncio.Event,
    on_serving: Callable[[], None],
    manager: ServiceManager,
    on_daemon: Callable[[ViewCollector], None] | None = None,
) -> None:
    """Run a daemon until ``stop`` is set, then give locks and vote back. ``on_daemon`` gets its metrics.

    It waits for ZooKeeper and for the cluster. ConfigurationError, MetadataAuthError if ZooKeeper rejects this process.
    """
    on_serving()
    manager.notify(READY=1, STATUS="waiting for ZooKeeper")
    async with contextlib.AsyncExitStack() as running:
        try:
            client = await _connect_unless_stopped(config, stop)
            if client is not None:
                running.push_async_callback(client.close)
                daemon = _new_daemon(config, client, process_id)
                if on_daemon is not None:
                    on_daemon(ViewCollector(daemon, catalogue_of(client.ports.clock.now_ms)))
                address = await _open_admin(config.autorecovery, process_id, daemon, running)
                daemon.who = msgspec.structs.replace(daemon.who, admin=address)
                logger.info("admin interface: %s", address or "none")
                manager.notify(STATUS="running")
                await daemon.serve(stop)
        finally:
            manager.notify(STOPPING=1, STATUS="stopping")
    logger.info("the autorecovery daemon ended cleanly")


async def _open_admin(
    config: AutorecoveryConfig,
    process_id: ProcessId,
    daemon: AutorecoveryDaemon,
    running: contextlib.AsyncExitStack,
) -> str | None:
    """Open the socket and the configured port until ``running`` ends; the address for the note of the daemon.

    ConfigurationError.
    """
    admin, workers = config.admin, LaneWorkers()
    running.push_async_callback(workers.close)
    routes = DaemonRoutes(daemon)
    server = AdminServer(routes.routes(), admin_limits(OsHost().open_files_max()))
    running.push_async_callback(server.close)

    async def read(path: str) -> bytes:
        return await workers.run(ADMIN_LANE, read_secret, path)

    async def read_token() -> bytes | None:
        return None if admin.token_file is None else await read(admin.token_file)

    await require_token_file(admin, read)
    tls = await admin_tls(admin, None, lambda files: bookie_contexts(files, os.environ), workers)
    opened = await open_tcp_ports(
        server, admin, listen_tcp, OsHost(), read_token, routes.probe_routes(), [process_id.host], workers, tls
    )
    path = await _open_socket(config.admin_socket, process_id, server)
    if opened.http is None:
        return None if path is None else f"unix:{path}"
    host = process_id.host if admin.http_host in ALL_ADDRESSES else admin.http_host
    return f"{'http' if tls is None else 'https'}://{host}:{opened.http}"


async def _open_socket(configured: str | None, process_id: ProcessId, server: AdminServer) -> str | None:
    """Path of the unix socket; None: none was configured, and the usual one cannot be opened. ConfigurationError."""
    try:
        path = configured or os.path.join(run_directory(), f"autorecovery-{process_id.pid}.admin.sock")
        await server.open_local(listen_unix, path)
    except (OSError, ConfigurationError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if configured is not None:
            raise ConfigurationError(f"cannot open the admin socket {configured}: {reason}") from error
        logger.warning("there is no admin socket: %s; choose another path with --admin-socket", reason)
        return None
    return path


async def _connect(config: DaemonConfig) -> LedgerClient:
    """A client, once ZooKeeper responds and has the cluster; what is missing is reported."""
    uri, zookeeper = parse_metadata_uri(config.metadata_uri), config.zookeeper
    connect = partial(ZooKeeperStore.connect, uri.servers, zookeeper, on_wait=log_wait)
    store = await _when_possible(connect, "", (ConfigurationError, MetadataAuthError))
    try:
        budgeted = BudgetedStore(store, share_of_budget(LoopClock(), zookeeper))
        ledgers = await _when_possible(
            lambda: open_ledger_store(budgeted, uri.root, uri.tree, layout_config=zookeeper.layout),
            f"cannot read the cluster at {uri}: ",
            (ConfigurationError,),
        )
        if not ledgers.is_layout_recorded:  # legal before the first ledger is created, and otherwise damage
            path, name = Paths(ledgers.root).layout, ledgers.tree.value
            advice = "see bkctl metadata doctor"
            logger.warning("%s is missing: ledgers are looked for in the layout %s; %s", path, name, advice)
        return LedgerClient.on_session(budgeted, ledgers, config.client)
    except BaseException:
        await store.close()
        raise


async def _when_possible(step: Callable[[], Awaitable[T]], what: str, fatal: tuple[type[BkctlError], ...]) -> T:
    """The result of a step that is repeated after other errors than ``fatal``; each new error is reported."""
    problem = ""
    while True:
        try:
            return await step()
        except fatal:
            raise
        except BkctlError as error:
            if str(error) != problem:
                logger.warning("%s%s; still trying", what, error)
            problem = str(error)
            await LoopClock().sleep(CONNECT_PAUSE_S)


def _new_daemon(config: DaemonConfig, client: LedgerClient, process_id: ProcessId) -> AutorecoveryDaemon:
    ports, store, root = client.ports, client.store, client.ports.ledgers.root
    settings = config.autorecovery
    now_ms = ports.clock.now_ms()
    who = DaemonNote(
        bookie_id=daemon_id(process_id),
        host=process_id.host,
        pid=process_id.pid,
        role=settings.role.value,
        started_ms=now_ms,
        written_ms=now_ms,
        is_auditor=False,
    )

    def new_worker() -> Worker:
        return Worker(ports, store, settings, config.replication, holder=process_id.host)

    office = AuditorOffice(
        store,
        root,
        who.bookie_id,
        ports.clock,
        lambda: Auditor(ports, store, settings),
        is_beside_pulsar=settings.is_beside_pulsar_auditor,
        is_pulsar_cluster=is_pulsar_uri(config.metadata_uri),
    )
    is_auditor, is_worker = settings.role is not AutorecoveryRole.WORKER, settings.role is not AutorecoveryRole.AUDITOR
    return AutorecoveryDaemon(
        *(store, root, ports.clock, who),
        office=office if is_auditor else None,
        new_worker=new_worker if is_worker else None,
        refused=client.refused,
        ask_refusals=lambda known: refusals(ports, known, ASKED_MAX),
    )


def daemon_id(process_id: ProcessId) -> str:
    """What the vote of a daemon contains: an id that no bookie has, so that no Java process mistakes it for its own."""
    found = f"autorecovery-{process_id.host}-{process_id.pid}"
    return found if is_valid_bookie_id(found) else f"autorecovery-{process_id.pid}"


async def _connect_unless_stopped(config: DaemonConfig, stop: asyncio.Event) -> LedgerClient | None:
    """The client; None if the stop came first."""
    connecting, stopping = asyncio.ensure_future(_connect(config)), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
        return connecting.result() if connecting.done() else None
    finally:
        await end_tasks((connecting, stopping), None)
