"""The bookie of this machine: its directories, locked while its cookies are changed, and their state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from bkctl.commands.context import CommandContext, id_by_settings
from bkctl.commands.cookie.access import require_not_registered, scan_references
from bkctl.commands.safety.gate import Change
from bkctl.commands.session import Session, open_session
from bkctl.runtime.bookie.cookies.check import CookieCheckService, expected_cookie
from bkctl.runtime.bookie.cookies.evidence import Evidence
from bkctl.runtime.bookie.identity import former_bookie_ids
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.bookies.cookies import Cookie
from bkctl.runtime.net.host import OsHost
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.engine.ledger_storage import lock_directories


class OwnBookie(NamedTuple):
    """A bookie's settings, the cookie that follows from them, and the cluster."""

    session: Session
    config: BookieConfig
    expected: Cookie
    file_system: OsFileSystem
    service: CookieCheckService

    async def gather(self) -> tuple[Evidence, int | None]:
        """Current state, and the version of the stored cookie."""
        former = await asyncio.to_thread(former_bookie_ids, self.config, self.config.port, OsHost())
        return await self.service.gather(self.expected, former)

    async def gather_stopped(self, context: CommandContext) -> Evidence:
        """Current state, with the ledgers that reference the bookie.

        RefusedError while the bookie is registered, also after all was read.
        """
        bookie_id = self.expected.bookie_id
        await require_not_registered(self.session, bookie_id)
        references = await scan_references(context, self.session, [bookie_id])
        evidence, _ = await self.gather()
        await require_not_registered(self.session, bookie_id)
        return msgspec.structs.replace(evidence, ledgers_naming=references.counts_at_most)

    def require_directories(self) -> None:
        """RefusedError if one of the directories does not exist."""
        for path in self.config.storage.all_directories:
            if not self.file_system.exists(path):
                raise RefusedError(f"nothing was changed: {path} is missing: mount its disk, or create the directory")

    @asynccontextmanager
    async def locked(self, _: Change) -> AsyncIterator[None]:
        """Hold the locks of all directories, which must exist; DirectoryLockedError while the bookie runs."""
        self.require_directories()
        locks = lock_directories(self.file_system, self.config.storage)
        try:
            yield
        finally:
            for lock in locks:
                lock.release()


@asynccontextmanager
async def open_own_bookie(context: CommandContext, config: BookieConfig) -> AsyncIterator[OwnBookie]:
    """The bookie of these settings and its cluster; ConfigurationError, ClusterNotFoundError."""
    bookie_id = config.bookie_id or id_by_settings(config)
    # As in ``bookie start``, ``--set metadataServiceUri`` applies.
    async with open_session(context, metadata_uri=config.metadata_uri) as session:
        file_system = OsFileSystem()
        expected = expected_cookie(config.storage, bookie_id, session.instance_id)
        service = CookieCheckService(
            file_system,
            config.storage,
            session.cookies,
            asyncio.to_thread,
            is_expansion_allowed=config.is_storage_expansion_allowed,
        )
        yield OwnBookie(session, config, expected, file_system, service)
