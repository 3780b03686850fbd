"""Detects when a new bookie serves: its registration belongs to a new session, and it is ready; and when a new
autorecovery daemon has an auditor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from bkctl.commands.bookie.local_sockets import address_in
from bkctl.commands.processes import ProcessIdentity, is_alive
from bkctl.runtime.admin.client import AdminClient
from bkctl.runtime.errors import BookieUnavailableError, MetadataUnavailableError
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import read_auditor
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_daemons
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore

_POLL_INTERVAL_S = 0.05
_START_TIMEOUT_S = 60.0


class DevRegistrations:
    """Registrations of a development cluster, distinguished by the session that owns them."""

    def __init__(self, store: ZooKeeperStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths

    @classmethod
    @asynccontextmanager
    async def connect(cls, metadata_uri: str) -> AsyncIterator[Self]:
        """Connect, and create the cluster's metadata if this is the first time."""
        uri = parse_metadata_uri(metadata_uri)
        async with await ZooKeeperStore.connect(uri.servers) as store:
            await init_cluster(store, uri.root, uri.tree, random.SystemRandom())
            yield cls(store, Paths(uri.root))

    async def is_member(self, bookie_id: str) -> bool:
        """Whether the cluster has a cookie of the bookie."""
        return await self._store.exists(self._paths.cookie(bookie_id)) is not None

    async def registration(self, bookie_id: str) -> int | None:
        """Session that registered the bookie; None when it is not registered."""
        for path in (self._paths.writable_bookie(bookie_id), self._paths.read_only_bookie(bookie_id)):
            stat = await self._store.exists(path)
            if stat is not None:
                return stat.ephemeral_owner
        return None

    async def has_auditor(self, daemon_pid: int) -> bool:
        """Whether there is an auditor, and the daemon with this process id reports."""
        daemons = await read_daemons(RecoveryNotes(self._store, self._paths.root))
        if all(each.pid != daemon_pid for each in daemons):
            return False
        return await read_auditor(self._store, self._paths.root, ForeignNames(lambda _: None)) is not None


async def wait_ready(
    live: DevRegistrations, bookie_id: str, before: int | None, process: ProcessIdentity, ledger_directory: str
) -> bool:
    """Wait until the new process has registered and is ready; False when it ended first.

    ``before`` is the registration of a killed predecessor, which may last until its session expires.
    MetadataUnavailableError when nothing happens for a minute.
    """
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while await live.registration(bookie_id) in {None, before} or not await _is_ready(
                bookie_id, ledger_directory
            ):
                if not is_alive(process):
                    return False
                await asyncio.sleep(_POLL_INTERVAL_S)
    except TimeoutError:
        raise MetadataUnavailableError(f"bookie {bookie_id} is not ready after {_START_TIMEOUT_S:g} s") from None
    return is_alive(process)


async def wait_elected(live: DevRegistrations, process: ProcessIdentity) -> bool:
    """Wait until the new daemon reports and there is an auditor; False when it ended first.

    MetadataUnavailableError when nothing happens for a minute.
    """
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not await live.has_auditor(process.pid):
                if not is_alive(process):
                    return False
                await asyncio.sleep(_POLL_INTERVAL_S)
    except TimeoutError:
        raise MetadataUnavailableError(f"no auditor is elected after {_START_TIMEOUT_S:g} s") from None
    return is_alive(process)


async def _is_ready(bookie_id: str, ledger_directory: str) -> bool:
    try:
        address = address_in(ledger_directory)
        async with AdminClient(bookie_id, address, timeout_s=_START_TIMEOUT_S) as client:
            await client.request("GET", "/api/v1/bookie/is_ready")
    except (BookieUnavailableError, FileNotFoundError):  # the bookie is replacing a link that was left there
        return False
    return True
