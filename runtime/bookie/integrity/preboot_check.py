"""After a loss, before the bookie is registered: record which ledgers may miss entries. Source: storage section 9.3.

Runs if the previous process may have acknowledged entries that are no longer on disk, or if a directory was emptied or
restored from an older copy.
The metadata of all ledgers shows what this bookie should have; the disk is not searched, because lost entries leave no
trace there. Every step is awaited, and any error ends the boot (hazard H11): a bookie that registers before it knows
what it may have lost would deny entries that it acknowledged.

    1. the flag NEEDS_INTEGRITY_CHECK, synced immediately: from here on check and repair are due, whatever happens
    2. a row for every ledger that references this bookie; limbo and fence if the end of the ledger is open
    3. a checkpoint, even if the write cache is empty (hazard H1); then the flag LEDGERS_NOTED
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from bkctl.runtime.bookie.integrity.rules import LedgerNeeds, needs_of
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.ports import Workers
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.index.ledger_index import LEDGERS_NOTED, NEEDS_INTEGRITY_CHECK

logger = logging.getLogger(__name__)

_PROGRESS_STEP = 10_000


async def note_open_ledgers(
    storage: LedgerStorage,
    bookie_id: str,
    store: MetadataStore,
    ledgers: LedgerStore,
    workers: Workers,
    write_rows: Callable[[], Awaitable[None]],
) -> None:
    """Run the whole check. ``write_rows``: runs a checkpoint of the new rows.

    MetadataError when a ledger could not be listed or read, StorageError, OSError.
    """
    first = storage.engines[0]
    await workers.run(CHECKPOINT_LANE, first.rows.write_flags, NEEDS_INTEGRITY_CHECK)
    # Whichever server answers, it must know all ledgers created before the crash.
    await store.sync(ledgers.root)
    read_count = here_count = limbo_count = 0
    async for ledger_id, found in ledgers.read_all():
        read_count += 1
        if read_count % _PROGRESS_STEP == 0:
            logger.info("integrity check: checked %d ledgers", read_count)
        # Unreadable metadata may reference any bookie.
        mark = needs_of(found.value, bookie_id) if isinstance(found, Versioned) else LedgerNeeds(True, True)
        if mark.needs_row:
            here_count += 1
            limbo_count += mark.needs_limbo
            engine = storage.engine_of(ledger_id)
            engine.rows.create_row(ledger_id, is_fenced=mark.needs_limbo, is_limbo=mark.needs_limbo)
            if not engine.rows.has_room:
                await write_rows()
    await write_rows()
    await workers.run(CHECKPOINT_LANE, set_integrity_flag, first, is_needed=True)
    logger.warning(
        "integrity check: of %d ledgers, %d have data on this bookie (%d open); missing entries of open ones are "
        "reported as unknown until restored",
        read_count,
        here_count,
        limbo_count,
    )


def read_integrity_flag(engine: LedgerDirectoryEngine) -> bool:
    """Whether a repair is due; ``engine`` is that of the first ledger directory. IndexDamagedError for an unknown flag.

    Lane side.
    """
    flags = engine.rows.read_flags()
    if flags & ~(NEEDS_INTEGRITY_CHECK | LEDGERS_NOTED):
        raise IndexDamagedError(f"unknown storage flags {flags:#x}: they were written by a newer bkctl")
    return bool(flags & NEEDS_INTEGRITY_CHECK)


def needs_preboot_check(engine: LedgerDirectoryEngine) -> bool:
    """Whether a repair is due whose ledgers are not recorded yet. As ``read_integrity_flag``."""
    return read_integrity_flag(engine) and not engine.rows.read_flags() & LEDGERS_NOTED


def set_integrity_flag(engine: LedgerDirectoryEngine, *, is_needed: bool) -> None:
    """Record durably that a repair is due and its ledgers are recorded in their rows, or that it is done.

    Lane side.
    """
    flags = NEEDS_INTEGRITY_CHECK | LEDGERS_NOTED if is_needed else 0
    if engine.rows.read_flags() != flags:
        engine.rows.write_flags(flags)
