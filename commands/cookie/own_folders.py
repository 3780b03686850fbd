"""The bookie of this machine: its folders, locked while its cookies are changed, and what is known of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from commands.context import CommandContext
from commands.cookie.access import CookieAccess, open_cookies
from commands.own_settings import id_by_settings
from runtime.errors import RefusedError

if TYPE_CHECKING:
    from runtime.bookie.cookie_check import CookieCheckService
    from runtime.bookie.cookie_evidence import Evidence
    from runtime.config import BookieConfig
    from runtime.metadata.cookies import Cookie
    from storage.filesystem import OsFileSystem


class OwnBookie(NamedTuple):
    """A bookie's settings, the cookie that follows from them, and the cluster."""

    access: CookieAccess
    config: BookieConfig
    expected: Cookie
    file_system: OsFileSystem
    service: CookieCheckService

    async def gather(self) -> tuple[Evidence, int | None]:
        """What is known now, and the version of the stored cookie."""
        import asyncio

        from runtime.bookie.identity import former_bookie_ids
        from runtime.net.host import OsHost

        former = await asyncio.to_thread(former_bookie_ids, self.config, self.config.port, OsHost())
        return await self.service.gather(self.expected, former)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold all folders; DirectoryLockedError while the bookie runs. Folders must be there."""
        from storage.ledger_storage import lock_directories

        for path in self.config.storage.all_directories:
            if not self.file_system.exists(path):
                raise RefusedError(f"nothing was changed: {path} is not there: mount its disk, or make the folder")
        locks = lock_directories(self.file_system, self.config.storage)
        try:
            yield
        finally:
            for lock in locks:
                lock.release()


@asynccontextmanager
async def open_own_bookie(context: CommandContext, config: BookieConfig) -> AsyncIterator[OwnBookie]:
    """The bookie of these settings and its cluster; ConfigurationError, ClusterNotFoundError."""
    import asyncio

    from runtime.bookie.cookie_check import CookieCheckService, expected_cookie
    from storage.filesystem import OsFileSystem

    bookie_id = config.bookie_id or id_by_settings(config)
    async with open_cookies(_with_uri_of(context, config)) as access:
        file_system = OsFileSystem()
        expected = expected_cookie(config.storage, bookie_id, access.instance_id)
        service = CookieCheckService(
            file_system,
            config.storage,
            access.cookies,
            asyncio.to_thread,
            is_expansion_allowed=config.is_storage_expansion_allowed,
        )
        yield OwnBookie(access, config, expected, file_system, service)


def _with_uri_of(context: CommandContext, config: BookieConfig) -> CommandContext:
    """The bookie's own cluster: ``--set metadataServiceUri`` counts for it as in ``bookie start``."""
    import msgspec

    if not config.metadata_uri or config.metadata_uri == context.settings.metadata_uri:
        return context
    settings = msgspec.structs.replace(context.settings, metadata_uri=config.metadata_uri)
    return CommandContext(settings, context.console, context.load_bookie_settings)
