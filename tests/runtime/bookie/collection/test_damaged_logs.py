"""What a client hears of entry logs and indexes that are damaged, beside what Java says of them.

Every damage of ``damage.json``: an I/O error where Java says that, where it denies what was stored, and where it dies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import JournalConfig
from bkctl.storage.errors import IndexMissingError
from bkctl.storage.filenames import current_directory
from tests.runtime.bookie.handler_bookie import Bookie
from tests.storage.engines import open_storage
from tests.storage.golden import DAMAGE_CASES
from tests.storage.golden_bookies import adopt
from tests.storage.offline.test_golden_sets import DAMAGES, size_word

KEY_OF_1 = bytes.fromhex("2e2a69d870796fe05c0e77c52a29ce5e4222b758")
INDEX_LOST = {"locations_dir_lost", "ledgers_dir_lost"}


async def damaged(root: Path, damage: str) -> Bookie:
    return await bookie_behind(root, DAMAGES[damage])


async def bookie_behind(root: Path, damage: Callable[[Path], object]) -> Bookie:
    config = adopt("db-4.18.0/replayed", root)
    damage(Path(current_directory(config.ledger_directories[0])))
    storage = open_storage(config)
    storage.replay()
    return Bookie(storage, JournalConfig())


@pytest.mark.parametrize("damage", sorted(set(DAMAGES) - INDEX_LOST))
async def test_damage_is_told_as_such(tmp_path: Path, damage: str) -> None:
    """H9 and H20: no denial and no end of the process. H16: READ_LAC keeps the true error, where Java denies."""
    bookie = await damaged(tmp_path, damage)
    java = DAMAGE_CASES[damage]
    expected = Status.OK if java["v3 1:8"] == "EOK" else Status.IO_ERROR
    for entry_id in (8, -1):
        assert (await bookie.read(1, entry_id))[0] is expected
    assert (await bookie.read_lac(1))[0] is expected
    if damage != "all_logs_lost":
        status, body, lac = await bookie.read(1, 0)
        assert status is Status.OK, "Java's v3 says EIO, because the last entry cannot be read"
        assert body is not None
        assert lac == (7 if expected is Status.OK else None)
    assert (await bookie.read(1, 9))[0] is Status.NO_SUCH_ENTRY, "the index is whole: this is a fact"
    assert (await bookie.read(99, 0))[0] is Status.NO_SUCH_LEDGER
    status, entries = await bookie.list_entries(1)
    assert (status, len(entries)) == (Status.OK, 9)
    assert (await bookie.read(1, 8, KEY_OF_1))[0] is expected
    row = bookie.engine.rows.find(1)
    assert row is not None
    assert row.is_fenced, "the fence of a fencing read stands, whatever became of its read"
    await bookie.close()


@pytest.mark.parametrize("size_bytes", [16, 20, 23])
async def test_an_entry_too_short_to_have_a_lac_is_damage(tmp_path: Path, size_bytes: int) -> None:
    """No client writes one, and no add takes one."""
    bookie = await bookie_behind(tmp_path, size_word(size_bytes))
    for entry_id in (8, -1):
        assert (await bookie.read(1, entry_id))[0] is Status.IO_ERROR
    assert (await bookie.read_lac(1))[0] is Status.IO_ERROR
    assert (await bookie.read(1, 0))[0] is Status.OK
    await bookie.close()


@pytest.mark.parametrize("damage", sorted(INDEX_LOST))
async def test_a_bookie_without_its_index_does_not_start(tmp_path: Path, damage: str) -> None:
    """H15: Java starts with an empty one and denies everything."""
    assert DAMAGE_CASES[damage]["v3 1:8"] in {"ENOENTRY", "ENOLEDGER"}
    with pytest.raises(IndexMissingError):
        await damaged(tmp_path, damage)
