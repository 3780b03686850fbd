"""What a bookie says of a ledger that may have lost entries: the table of storage section 9.2, and how we differ.

Java cannot give an entry to a plain read of version 3 then, because that answer carries the last add confirmed: here it
goes without. READ_LAC of Java says "no such entry" (H16).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import NoSuchEntryError, NoSuchLedgerError, UnknownLedgerStateError
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.engine.ledger_storage import LedgerStorage
from tests.runtime.bookie.conftest import KEY, Peer

pytestmark = pytest.mark.cluster

Boot = Callable[[BookieConfig], AbstractAsyncContextManager[Peer]]
LEDGER_ID = 7


def change_rows(config: BookieConfig, change: Callable[[LedgerStorage], object]) -> None:
    """Change ledger rows of a stopped bookie, as a boot does it."""
    storage = LedgerStorage.open(OsFileSystem(), open_plyvel, config.storage, 1)
    try:
        change(storage)
        storage.replay()
    finally:
        storage.close()


@pytest.fixture
async def limbo_config(bookie_config: BookieConfig, boot: Boot) -> BookieConfig:
    """Of a bookie with entries 0 and 1 of a ledger that is in limbo and not fenced."""
    async with boot(bookie_config) as peer:
        for entry_id in (0, 1):
            assert await peer.add(LEDGER_ID, entry_id) is Status.OK
    change_rows(bookie_config, lambda storage: storage.engine_of(LEDGER_ID).set_limbo(LEDGER_ID))
    return bookie_config


async def test_what_is_here_is_given_and_the_rest_is_not_denied(limbo_config: BookieConfig, boot: Boot) -> None:
    async with boot(limbo_config) as peer:
        for _ in range(2):  # from disk, then from the cache
            assert await peer.read_with_lac(LEDGER_ID, 0) == (peer.body(LEDGER_ID, 0), None)
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(LEDGER_ID, 2)
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(LEDGER_ID, -1)
        with pytest.raises(NoSuchLedgerError):
            await peer.read(LEDGER_ID + 1, 0)


async def test_read_lac_keeps_the_true_error_h16(limbo_config: BookieConfig, boot: Boot) -> None:
    async with boot(limbo_config) as peer:
        with pytest.raises(UnknownLedgerStateError):
            await peer.read_lac(LEDGER_ID)
        with pytest.raises(NoSuchLedgerError):
            await peer.read_lac(LEDGER_ID + 1)


async def test_writers_are_out_and_recovery_is_let_in(limbo_config: BookieConfig, boot: Boot) -> None:
    async with boot(limbo_config) as peer:
        assert await peer.add(LEDGER_ID, 2) is Status.UNKNOWN_LEDGER_STATE
        assert await peer.add(LEDGER_ID, 2, recovery=True) is Status.OK
        assert await peer.read(LEDGER_ID, 2) == peer.body(LEDGER_ID, 2)


async def test_fencing_reads_fence_and_are_answered_like_plain_ones(limbo_config: BookieConfig, boot: Boot) -> None:
    async with boot(limbo_config) as peer:
        assert await peer.read(LEDGER_ID, 1, fence_with=KEY) == peer.body(LEDGER_ID, 1)
        for entry_id in (2, -1):
            with pytest.raises(UnknownLedgerStateError):
                await peer.read(LEDGER_ID, entry_id, fence_with=KEY)
        assert await peer.add(LEDGER_ID, 2) is Status.FENCED
        assert await peer.add(LEDGER_ID, 2, recovery=True) is Status.OK
    async with boot(limbo_config) as peer:
        assert await peer.add(LEDGER_ID, 3) is Status.FENCED
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(LEDGER_ID, 3)


async def test_after_limbo_all_is_as_before(limbo_config: BookieConfig, boot: Boot) -> None:
    change_rows(limbo_config, lambda storage: storage.engine_of(LEDGER_ID).clear_limbo(LEDGER_ID))
    async with boot(limbo_config) as peer:
        assert await peer.read_with_lac(LEDGER_ID, 0) == (peer.body(LEDGER_ID, 0), 0)
        with pytest.raises(NoSuchEntryError):
            await peer.read(LEDGER_ID, 2)
        assert await peer.add(LEDGER_ID, 2) is Status.OK
        assert (await peer.read_lac(LEDGER_ID)).last_entry_body == peer.body(LEDGER_ID, 2)
