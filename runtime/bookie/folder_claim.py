"""The first step of a boot that changes anything: the folders are this bookie's, locked, and stamped if they may be.

Everything that can refuse is checked before. Source: metadata section 7.3, storage sections 2 and 9.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from runtime.bookie.cookie_check import CookieCheckService, CookieDecision, expected_cookie, require_no_ledgers
from runtime.bookie.identity import former_bookie_ids
from runtime.config import BookieConfig
from runtime.metadata.cluster import read_cluster_info
from runtime.metadata.cookies import Cookie, CookieStore
from runtime.metadata.ledgers import LedgerStore
from runtime.metadata.store import MetadataStore
from runtime.metadata.uri import MetadataUri
from storage.dirty_marks import CrashRisk, leave_dirty_marks
from storage.filenames import current_directory
from storage.ledger_storage import lock_directories
from storage.ports import DirectoryLock, FileSystem


class FolderClaim(msgspec.Struct, frozen=True):
    """Folders that belong to this process now, and the stored cookie that says so.

    ``known_as``: every id that this host's settings could have given.
    """

    locks: list[DirectoryLock]
    known_as: tuple[str, ...]
    instance_id: str | None
    cookie: Cookie


async def claim_folders(
    file_system: FileSystem,
    config: BookieConfig,
    bookie_id: str,
    port: int,
    store: MetadataStore,
    uri: MetadataUri,
    open_ledgers: Callable[[], Awaitable[LedgerStore]],
    machine_boot: str,
) -> FolderClaim:
    """Check the cookies, lock the folders, check again, stamp.

    The caller releases the locks. Raises CookieError and ConfigurationError with a way out, DirectoryLockedError,
    MetadataError, OSError; then nothing is locked.
    """
    cluster = await read_cluster_info(store, uri.root, config.zookeeper.layout)
    service = CookieCheckService(
        file_system,
        config.storage,
        CookieStore(store, uri.root),
        is_expansion_allowed=config.is_storage_expansion_allowed,
        is_loss_accepted=config.integrity.stamps_missing_cookies,
    )
    cookie = expected_cookie(config.storage, bookie_id, cluster.instance_id)
    former_ids = await asyncio.to_thread(former_bookie_ids, config, port)
    # Once before the locks, whose files would be a change already, and once under them.
    await service.check(cookie, former_ids)
    locks = lock_directories(file_system, config.storage)
    try:
        check = await service.check(cookie, former_ids)
        if check.depends_on_references:
            is_loss_accepted = config.integrity.stamps_missing_cookies
            ledgers = await open_ledgers()
            check = await require_no_ledgers(check, store, ledgers, is_loss_accepted=is_loss_accepted)
        if check.decision is CookieDecision.REFILL:
            # From here on every start knows of the loss, until one has noted which ledgers are concerned.
            folders = list(map(current_directory, config.storage.ledger_directories))
            leave_dirty_marks(file_system, folders, CrashRisk.CRASH, machine_boot)
            await service.stamp_emptied(cookie, check.stored_version)
        elif check.decision is not CookieDecision.BOOT:
            await service.stamp(cookie, check.stored_version)
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    is_stored_kept = check.decision in {CookieDecision.BOOT, CookieDecision.REFILL}
    stored = check.evidence.stored if is_stored_kept else None
    return FolderClaim(locks, (bookie_id, *former_ids), cluster.instance_id, stored or cookie)
