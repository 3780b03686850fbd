"""Whatever is damaged of an index, the boot serves what was stored, or says which database it is and what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.advice import REBUILD_ADVICE
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.errors import IndexDamagedError, IndexMissingError, StorageError
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE
from bkctl.storage.index.ledger_index import LedgerRow
from tests.storage.adapters.test_index_store import flip
from tests.storage.engines import KEY, entry, open_engine

DAMAGES: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink,
    "emptied": lambda path: os.truncate(path, 0),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "first byte flipped": lambda path: flip(path, 0),
    "middle byte flipped": lambda path: flip(path, path.stat().st_size // 2),
    "last byte flipped": lambda path: flip(path, path.stat().st_size - 1),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger directory after three runs: its databases have tables, a log and a manifest."""
    root = tmp_path_factory.mktemp("stored")
    for entry_id in range(3):
        engine = open_engine(root)
        engine.rows.set_master_key(5 + entry_id, KEY)
        engine.rows.set_master_key(5, KEY)
        engine.add(5, entry_id, entry(5, entry_id))
        checkpoint_now(engine)
        engine.close()
    return root


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("database", [LEDGERS_DATABASE, LOCATIONS_DATABASE])
@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.log", "*.ldb"])
def test_damage_is_refused_with_the_path_and_the_way_out(
    stored: Path, tmp_path: Path, database: str, pattern: str, damage: str
) -> None:
    names = sorted(path.name for path in (stored / database).glob(pattern))
    assert names
    for number, name in enumerate(names):
        root = tmp_path / str(number)
        shutil.copytree(stored, root)
        DAMAGES[damage](root / database / name)
        engine, refusal = opened_or_refused(root)
        if engine is None:
            assert isinstance(refusal, (IndexDamagedError, IndexMissingError))
            assert str(refusal).startswith(str(root / database))
            assert str(refusal).count(REBUILD_ADVICE) == 1
        else:
            require_all_or_an_error(engine.stored.read, range(3))
            assert [engine.rows.find(5 + number) for number in range(3)] == [LedgerRow(master_key=KEY)] * 3
            engine.close()


def opened_or_refused(root: Path) -> tuple[LedgerDirectoryEngine | None, StorageError | None]:
    try:
        return open_engine(root), None
    except StorageError as error:
        return None, error


def require_all_or_an_error(read: Callable[[int, int], bytes | None], entry_ids: range) -> None:
    """An entry whose row cannot be read is an error, never absent."""
    for entry_id in entry_ids:
        try:
            assert read(5, entry_id) == entry(5, entry_id)
        except IndexDamagedError:
            continue


@pytest.mark.parametrize("key", [b"\xffseal\x00\x00\x00short", b"1234567"])
def test_a_row_that_nobody_wrote_is_refused_with_the_way_out(stored: Path, tmp_path: Path, key: bytes) -> None:
    root = tmp_path / "copy"
    shutil.copytree(stored, root)
    store = open_plyvel(str(root / LEDGERS_DATABASE), create=False, strict=True)
    store.write([(key, b"")])
    store.close()
    with pytest.raises(IndexDamagedError, match=REBUILD_ADVICE) as raised:
        open_engine(root)
    assert str(raised.value).startswith(str(root / LEDGERS_DATABASE))
