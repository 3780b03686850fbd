"""Claims the directories for this bookie: checks the cookies, locks, checks again, and stamps new directories.

Nothing is changed before both checks have passed. Source: metadata section 7.3, storage sections 2 and 9.4.
"""

from __future__ import annotations

import functools

from bkctl.runtime.bookie.cookies.check import (
    CookieCheck,
    CookieCheckService,
    CookieDecision,
    expected_cookie,
    require_no_ledgers,
)
from bkctl.runtime.bookie.identity import BookieNames, former_bookie_ids
from bkctl.runtime.bookie.ports import BookieMetadata, BookiePorts
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.cluster.root import read_cluster_info
from bkctl.storage.dirty_marks import CrashRisk, leave_dirty_marks
from bkctl.storage.engine.ledger_storage import lock_directories
from bkctl.storage.filenames import current_directory
from bkctl.storage.ports import DirectoryLock


class DirectoryClaim:
    """The steps, in the order of the methods. They raise CookieError or ConfigurationError with the fix,
    DirectoryLockedError, MetadataError, OSError."""

    def __init__(self, ports: BookiePorts, metadata: BookieMetadata) -> None:
        config = metadata.config
        self._ports = ports
        self._config = config
        self._metadata = metadata
        self._service = CookieCheckService(
            ports.file_system,
            config.storage,
            CookieStore(metadata.store, metadata.uri.root),
            functools.partial(ports.workers.run, CHECKPOINT_LANE),
            is_expansion_allowed=config.is_storage_expansion_allowed,
            is_loss_accepted=config.integrity.stamps_missing_cookies,
        )

    async def check(self, bookie_id: str, port: int) -> BookieNames:
        """Check the cookies. Runs before the locks too, because creating a lock file would already be a change."""
        ports, metadata = self._ports, self._metadata
        cluster = await read_cluster_info(metadata.store, metadata.uri.root, self._config.zookeeper.layout)
        former_ids = await ports.workers.run(CHECKPOINT_LANE, former_bookie_ids, self._config, port, ports.host)
        cookie = expected_cookie(self._config.storage, bookie_id, cluster.instance_id)
        await self._service.check(cookie, former_ids)
        return BookieNames((bookie_id, *former_ids), cluster.instance_id, cookie)

    async def lock(self) -> list[DirectoryLock]:
        """Lock the directories; the caller releases them."""
        return lock_directories(self._ports.file_system, self._config.storage)

    async def check_again(self, names: BookieNames) -> CookieCheck:
        """Check the cookies of the locked directories, and whether ledgers reference a bookie that looks new."""
        check = await self._service.check(names.cookie, names.known_as[1:])
        if check.depends_on_references:
            is_loss_accepted = self._config.integrity.stamps_missing_cookies
            ledgers = await self._metadata.open_ledgers(self._ports.clock)
            check = await require_no_ledgers(check, self._metadata.store, ledgers, is_loss_accepted=is_loss_accepted)
        return check

    async def stamp(self, names: BookieNames, check: CookieCheck, machine_boot: str) -> Cookie:
        """Write the cookie where it is missing; returns the stored cookie."""
        if check.decision is CookieDecision.REFILL:
            # Until the affected ledgers are recorded, every start must know of the loss.
            directories = list(map(current_directory, self._config.storage.ledger_directories))
            leave_dirty_marks(self._ports.file_system, directories, CrashRisk.CRASH, machine_boot)
            await self._service.stamp_emptied(names.cookie, check.stored_version)
        elif check.decision is not CookieDecision.BOOT:
            await self._service.stamp(names.cookie, check.stored_version)
        is_stored_kept = check.decision in {CookieDecision.BOOT, CookieDecision.REFILL}
        return (check.evidence.stored if is_stored_kept else None) or names.cookie


async def release(locks: list[DirectoryLock]) -> None:
    """Release the locks of the directories."""
    for lock in locks:
        lock.release()
