"""A bookie whose index is gone: the start names the command, and after it everything is served again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import CookieError, UnknownLedgerStateError
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import IndexMissingError
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, seal_file_name
from tests.runtime.bookie.conftest import KEY, Peer
from tests.storage.rebuilds import rebuild

pytestmark = pytest.mark.cluster

Boot = Callable[[BookieConfig], AbstractAsyncContextManager[Peer]]


@pytest.fixture
async def config(bookie_config: BookieConfig, boot: Boot, tmp_path: Path) -> BookieConfig:
    """Of a bookie with an index directory of its own, and entries 0 to 4 of ledger 7."""
    storage = msgspec.structs.replace(bookie_config.storage, index_directories=(str(tmp_path / "index"),))
    config = msgspec.structs.replace(bookie_config, storage=storage)
    async with boot(config) as peer:
        for entry_id in range(5):
            assert await peer.add(7, entry_id) is Status.OK
    return config


async def require_entries(peer: Peer) -> None:
    for entry_id in range(5):
        assert await peer.read(7, entry_id) == peer.body(7, entry_id)


async def test_a_lost_database_stops_the_start_with_the_command(config: BookieConfig, boot: Boot) -> None:
    directory = Path(config.storage.index_directories[0]) / "current" / LOCATIONS_DATABASE
    shutil.rmtree(directory)
    Path(seal_file_name(str(directory))).unlink()
    with pytest.raises(IndexMissingError, match="run `bkctl storage index rebuild`"):
        async with boot(config):
            pass
    rebuild(config.storage)
    async with boot(config) as peer:
        await require_entries(peer)
        with pytest.raises(UnknownLedgerStateError):  # logs prove what is there, not what is not
            await peer.read(7, 5)
        assert await peer.add(7, 5) is Status.UNKNOWN_LEDGER_STATE


async def test_a_replaced_index_disk(config: BookieConfig, boot: Boot) -> None:
    directory = Path(config.storage.index_directories[0])
    shutil.rmtree(directory)
    directory.mkdir()
    with pytest.raises(CookieError, match="empty directory"):
        async with boot(config):
            pass
    report = rebuild(config.storage)
    assert report.directories[0].databases == (LEDGERS_DATABASE, LOCATIONS_DATABASE)
    async with boot(config) as peer:
        await require_entries(peer)
        assert await peer.add(7, 5) is Status.FENCED
        assert await peer.read(7, 4, fence_with=KEY) == peer.body(7, 4)


async def test_after_a_loss_of_ledger_rows_the_next_boot_looks_at_every_ledger(
    config: BookieConfig, boot: Boot, caplog: pytest.LogCaptureFixture
) -> None:
    # A ledger that was fenced here and has no entry is in no log: only the metadata tell of it.
    directory = Path(config.storage.index_directories[0]) / "current" / LEDGERS_DATABASE
    shutil.rmtree(directory)
    Path(seal_file_name(str(directory))).unlink()
    rebuild(config.storage)
    async with boot(config) as peer:
        assert "open ones are reported as unknown until restored" in caplog.text
        await require_entries(peer)
    caplog.clear()
    async with boot(config):
        assert "missing entries are reported as unknown" not in caplog.text
