"""The checks of a start, without the start: would this bookie start here? Nothing is changed.

The order is that of the boot (``BookieServer._boot``). Entry logs are not read, because a start does not read them;
``bkctl storage check`` does.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from bkctl.runtime.admin.tcp_ports import admin_port_error, admin_tls, require_token_file, scrape_port_error
from bkctl.runtime.bookie.admin.interface import read_admin_secret
from bkctl.runtime.bookie.boot.directory_claim import DirectoryClaim
from bkctl.runtime.bookie.boot.listening import expiry_words, new_listener, require_startup_user
from bkctl.runtime.bookie.boot.port_error import port_error
from bkctl.runtime.bookie.boot.storage_boot import ReplayStoppedError
from bkctl.runtime.bookie.cookies.check import CookieDecision
from bkctl.runtime.bookie.disks.rules import BookieDisks, DiskSample, DiskState, judge
from bkctl.runtime.bookie.identity import resolve_identity
from bkctl.runtime.bookie.live_settings import LiveSettings
from bkctl.runtime.bookie.ports import BookieMetadata, BookiePorts
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import read_cluster_info
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.net.client_handshake import ClientSecurity
from bkctl.storage.advice import with_path
from bkctl.storage.dirty_marks import read_dirty_marks, read_machine_boot
from bkctl.storage.engine.replay_rehearsal import RehearsalImpossibleError, rehearse_replay
from bkctl.storage.errors import (
    AdoptionRefusedError,
    BkctlError,
    DirectoryLockedError,
    DiskUnusableError,
    NoWritableDiskError,
)
from bkctl.storage.filenames import LOCK, current_directory
from bkctl.storage.index.adoption_note import find_change_under_way
from bkctl.storage.index.opening import require_indexes
from bkctl.storage.words import counted, size


class CheckResult(enum.StrEnum):
    """Result of one check."""

    OK = "ok"
    WARNING = "warning"
    """The bookie would start, maybe not as wanted."""
    FAILED = "failed"
    NOT_CHECKED = "not checked"
    """It needs something that an earlier check did not find."""


class StartCheck(NamedTuple):
    """One check. ``error``: what the start would raise."""

    name: str
    result: CheckResult
    detail: str
    error: BkctlError | OSError | None = None


class Finding(NamedTuple):
    """What a check found, unless it raised an error."""

    detail: str
    is_warning: bool = False


async def run_check(name: str, check: Awaitable[Finding]) -> StartCheck:
    """Do one check."""
    try:
        finding = await check
    except (BkctlError, OSError) as error:
        return StartCheck(name, CheckResult.FAILED, with_path(error), error)
    return StartCheck(name, CheckResult.WARNING if finding.is_warning else CheckResult.OK, finding.detail)


class _Refusing(asyncio.BufferedProtocol):
    """Closes a connection that comes while the port is being tried."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


class StartChecks:
    """The checks of one bookie. ``bookie_id`` is the one that the settings give."""

    def __init__(self, config: BookieConfig, ports: BookiePorts, bookie_id: str) -> None:
        self._config = config
        self._ports = ports
        self._bookie_id = bookie_id
        self._is_refill_due = False

    async def run(self) -> list[StartCheck]:
        """Do all checks that are possible."""
        done = [
            await run_check("user", self._user()),
            await run_check("TLS and logins", self._protection()),
            await run_check("connections to bookies", self._client()),
            await run_check("port", self._port()),
        ]
        if self._config.admin.is_http_enabled:
            done.append(await run_check("admin HTTPS", self._admin_https()))
            done.append(await run_check("admin port", self._admin_port()))
            done.append(await run_check("admin token", self._admin_token()))
        elif self._config.admin.has_scrape_port:
            done.append(await run_check("scrape port", self._scrape_port()))
        uri = parse_metadata_uri(self._config.metadata_uri)
        try:
            store = await self._ports.connect_metadata(uri.servers, self._config.zookeeper)
        except BkctlError as error:
            done.append(StartCheck("metadata", CheckResult.FAILED, str(error), error))
            done += [StartCheck(name, CheckResult.NOT_CHECKED, "no metadata") for name in ("cluster", "cookies")]
        else:
            try:
                done.append(StartCheck("metadata", CheckResult.OK, f"{uri.servers} answers"))
                done += await self._of_cluster(store)
            finally:
                await store.close()
        return [*done, *await self._of_storage(), await run_check("disks", self._disks())]

    async def _of_storage(self) -> list[StartCheck]:
        locks = await run_check("locks", self._locks())
        if locks.result is CheckResult.FAILED:
            is_in_use = isinstance(locks.error, DirectoryLockedError)
            reason = f"the directories {'are in use' if is_in_use else 'cannot be locked'}"
            return [locks, *(StartCheck(name, CheckResult.NOT_CHECKED, reason) for name in ("index", "journals"))]
        index = await run_check("index", self._ports.workers.run(CHECKPOINT_LANE, self._check_indexes))
        if index.result is CheckResult.FAILED:
            return [locks, index, StartCheck("journals", CheckResult.NOT_CHECKED, "no index")]
        journals = await run_check("journals", self._journals())
        if isinstance(journals.error, RehearsalImpossibleError):
            journals = StartCheck("journals", CheckResult.NOT_CHECKED, journals.detail)
        return [locks, index, journals]

    async def _user(self) -> Finding:
        require_startup_user(self._config, self._ports.host)
        return Finding(f"{self._ports.host.user()} may start it")

    async def _protection(self) -> Finding:
        security = new_listener(self._config, self._ports.clock).security
        if security is None:
            return Finding("none: clear text without logins")
        used = [] if security.begin_login is None else ["logins"]
        expires_s = None if security.contexts is None else security.contexts.expires_at()
        if expires_s is None:
            return Finding("logins in clear text")
        left_s = expires_s - self._ports.clock.now_ms() / 1000
        return Finding(", ".join(["TLS", *used, f"the certificate {expiry_words(left_s)}"]), is_warning=left_s <= 0)

    async def _client(self) -> Finding:
        is_secured = ClientSecurity.of(self._config.client) is not None
        return Finding("as [bookie_client] says" if is_secured else "clear text without a login")

    async def _admin_https(self) -> Finding:
        config, ports = self._config, self._ports
        tls = await admin_tls(config.admin, config.tls, ports.tls_contexts, ports.workers)
        return Finding("none: clear text" if tls is None else "its files can be used")

    async def _port(self) -> Finding:
        config, ports = self._config, self._ports
        bind_host = resolve_identity(config, ports.host).bind_host
        return await self._try_port(
            bind_host, config.port, lambda error: port_error(error, config, ports.file_system, ports.host)
        )

    async def _admin_port(self) -> Finding:
        config, host = self._config.admin, self._ports.host
        return await self._try_port(
            config.http_host, config.http_port, lambda error: admin_port_error(error, config, host)
        )

    async def _admin_token(self) -> Finding:
        await require_token_file(self._config.admin, functools.partial(read_admin_secret, self._ports))
        path = self._config.admin.token_file
        return Finding("none: changes over TCP are refused" if path is None else f"{path} can be used")

    async def _scrape_port(self) -> Finding:
        config, host = self._config.admin, self._ports.host
        return await self._try_port(
            config.scrape_host, config.scrape_port, lambda error: scrape_port_error(error, config, host)
        )

    async def _try_port(
        self, host: str | None, port: int, error_of: Callable[[OSError], ConfigurationError]
    ) -> Finding:
        """Open a port for a moment."""
        try:
            listening = await self._ports.listen(_Refusing, host, port)
        except OSError as error:
            raise error_of(error) from error
        listening.close()
        return Finding(f"port {port} is free" if port else "any free port")

    async def _of_cluster(self, store: MetadataStore) -> list[StartCheck]:
        uri = parse_metadata_uri(self._config.metadata_uri)
        metadata = BookieMetadata(store, uri, self._config, LiveSettings(self._config))
        cluster = await run_check("cluster", self._cluster(metadata))
        if cluster.result is CheckResult.FAILED:
            return [cluster, StartCheck("cookies", CheckResult.NOT_CHECKED, "no cluster")]
        cookies = await run_check("cookies", self._cookies(metadata))
        return [cluster, cookies, await run_check("registration", self._registration(metadata))]

    async def _cluster(self, metadata: BookieMetadata) -> Finding:
        info = await read_cluster_info(metadata.store, metadata.uri.root, self._config.zookeeper.layout)
        return Finding(f"{info.root}, instance id {info.instance_id}")

    async def _cookies(self, metadata: BookieMetadata) -> Finding:
        claim = DirectoryClaim(self._ports, metadata)
        names = await claim.check(self._bookie_id, self._config.port)
        decision = (await claim.check_again(names)).decision
        self._is_refill_due = decision is CookieDecision.REFILL
        return Finding(decision.value)

    async def _registration(self, metadata: BookieMetadata) -> Finding:
        registered = await RegistrationClient(metadata.store, metadata.uri.root).snapshot()
        if self._bookie_id not in registered.live:
            return Finding(f"bookie {self._bookie_id} is not registered")
        return Finding(
            f"bookie {self._bookie_id} is registered: a start waits until the session of the other process ends",
            is_warning=True,
        )

    async def _locks(self) -> Finding:
        file_system = self._ports.file_system
        for path in self._config.storage.all_directories:
            current = current_directory(path)
            if file_system.exists(os.path.join(current, LOCK)):  # locking would create it
                file_system.lock_directory(current).release()
        return Finding("no process uses the directories")

    def _check_indexes(self) -> Finding:
        file_system, storage = self._ports.file_system, self._config.storage
        change = find_change_under_way(file_system, storage)
        if change is not None:
            raise AdoptionRefusedError(change.advice)
        present = [pair for pair in storage.engine_directories if all(map(file_system.exists, pair))]
        for ledger_directory, index_directory in present:
            require_indexes(file_system, self._ports.open_index, ledger_directory, index_directory)
        return Finding("no directory has data" if not present else "present and complete")

    async def _journals(self) -> Finding:
        file_system, storage = self._ports.file_system, self._config.storage
        ledger_directories = list(map(current_directory, storage.ledger_directories))
        marks = read_dirty_marks(file_system, ledger_directories, read_machine_boot(file_system))
        is_stopping = False

        def require_going() -> None:
            if is_stopping:
                raise ReplayStoppedError

        rehearse = functools.partial(
            rehearse_replay,
            *(file_system, self._ports.open_index, storage, require_going),
            are_marks_forgotten=marks.are_entries_at_risk or self._is_refill_due,
        )
        try:
            report = await self._ports.workers.run(CHECKPOINT_LANE, rehearse)
        except asyncio.CancelledError:
            is_stopping = True
            raise
        if not report.file_count:
            return Finding("nothing to replay")
        dropped = [f"; {each.path}: {each.dropped_bytes} bytes were never synced" for each in report.dropped_tails]
        text = f"{counted(report.entry_count, 'entry')} in {counted(report.file_count, 'file')} can be replayed"
        return Finding(text + "".join(dropped), is_warning=bool(dropped))

    async def _disks(self) -> Finding:
        config, storage = self._config.disks, self._config.storage
        journals, ledgers, indexes = (
            tuple(map(self._sample, paths))
            for paths in (storage.journal_directories, storage.ledger_directories, storage.effective_index_directories)
        )
        disks = BookieDisks(journals, ledgers, indexes)
        room_bytes = config.high_priority_room_bytes_or_default(storage.engine.entry_log.size_bytes_max)
        verdict = judge((DiskState.WRITABLE,) * len(disks.all), disks, config, room_bytes)
        shown = verdict.full or disks.all
        free_bytes = {each.directory: each.usable_bytes for each in shown}
        text = "; ".join(f"{path}: {size(size_bytes)} free" for path, size_bytes in free_bytes.items())
        if not verdict.is_read_only:
            return Finding(text)
        if not config.is_read_only_mode_enabled:
            raise NoWritableDiskError(f"{text}, and read-only mode is disabled (readOnlyModeEnabled=false)")
        return Finding(f"{text}: it would start as read-only", is_warning=True)

    def _sample(self, path: str) -> DiskSample:
        """Space for a directory, which may not exist yet."""
        place = path
        while not self._ports.file_system.exists(place) and place != os.path.dirname(place):
            place = os.path.dirname(place) or os.curdir
        space = self._ports.file_system.space(place)
        if space.is_read_only:
            raise DiskUnusableError(f"{path}: cannot write to the disk (mounted read-only)")
        return DiskSample(path, space.total_bytes, space.usable_bytes)
