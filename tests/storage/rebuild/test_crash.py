"""Index rebuild killed before every change of a file.

The next boot finds the old index or the new one, or is refused with the command to run; that command then ends what was
begun.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.errors import IndexDamagedError, IndexMissingError
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE
from tests.storage.engines import PhotographedDisk, config_below, open_storage, opening_watched
from tests.storage.rebuilds import BOTH, database, lose, rebuild, require_entries, rows_of, store_entries

LEDGERS = range(4)


class EveryChangePhotographed(PhotographedDisk):
    """Also before names are changed, and directories made or deleted."""

    def rename(self, source: str, target: str) -> None:
        self.note("rename", target)
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.note("link", target)
        super().link(source, target)

    def make_directories(self, path: str) -> None:
        self.note("make", path)
        super().make_directories(path)

    def remove_directory(self, path: str) -> None:
        self.note("remove directory", path)
        super().remove_directory(path)


def lose_both(config: StorageConfig) -> None:
    for name in BOTH:
        lose(config, name)


def lose_ledgers_and_damage_locations(config: StorageConfig) -> None:
    lose(config, LEDGERS_DATABASE)
    for path in database(config, LOCATIONS_DATABASE).glob("*.ldb"):
        path.write_bytes(b"")


def keep_all(config: StorageConfig) -> None:
    pass


def photographs(tmp_path: Path, before: Callable[[StorageConfig], None], chosen: tuple[str, ...] | None) -> list[Path]:
    """Copies of a bookie's directories before every change that a rebuild makes, each state once."""
    root = tmp_path / "bookie"
    config = config_below(root)
    store_entries(config, LEDGERS, rounds=2)
    before(config)
    disk = EveryChangePhotographed(root)
    disk.photograph_into = tmp_path / "photographs"
    rebuild(config, chosen, filesystem=disk, open_index=opening_watched(disk.photograph))
    require_entries(config, LEDGERS, rounds=2)
    return list({content(path): path for _, path in disk.photographs}.values())


def content(root: Path) -> tuple[tuple[str, bytes], ...]:
    """Names and bytes, without those that LevelDB writes for people alone."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("LOG"))
    return tuple((str(path.relative_to(root)), path.read_bytes()) for path in files)


def refusal_of(config: StorageConfig) -> str | None:
    """Why a boot refuses these directories, as it tells the user; None if it does not."""
    try:
        open_storage(config).close()
    except (IndexMissingError, IndexDamagedError) as refusal:
        return str(refusal)
    return None


def require_repair_of_limbo(config: StorageConfig) -> None:
    """Else no start would ever end it."""
    storage = open_storage(config)
    rows = [storage.engines[0].rows.find(ledger_id) for ledger_id in LEDGERS]
    assert storage.engines[0].rows.read_flags() or not any(row is not None and row.is_limbo for row in rows)
    storage.close()


def leftovers(config: StorageConfig) -> list[str]:
    names = (path.name for path in database(config, LEDGERS_DATABASE).parent.iterdir())
    return [name for name in names if name.endswith((".rebuilt", ".replaced", ".kept", ".tmp", ".rebuilt.seal"))]


@pytest.mark.parametrize(
    ("before", "chosen"),
    [
        (lose_both, None),
        (lose_ledgers_and_damage_locations, None),
        (keep_all, (LOCATIONS_DATABASE,)),
    ],
)
def test_a_kill_before_any_change(
    tmp_path: Path, before: Callable[[StorageConfig], None], chosen: tuple[str, ...] | None
) -> None:
    states = photographs(tmp_path, before, chosen)
    assert len(states) > 10
    booted = 0
    for state in states:
        again = tmp_path / "again"
        shutil.copytree(state, again)
        refusal = refusal_of(config_below(state))
        if refusal is None:
            require_entries(config_below(state), LEDGERS, rounds=2)
            require_repair_of_limbo(config_below(state))
            booted += 1
            left = leftovers(config_below(state))
            assert not [name for name in left if name.endswith((".replaced", ".rebuilt.seal"))]
        else:
            assert before is not keep_all, refusal
            assert refusal.endswith("run `bkctl storage index rebuild` with the settings of this bookie")
            config = config_below(again)
            rebuild(config, is_in_process=True)
            require_entries(config, LEDGERS, rounds=2)
            assert not leftovers(config)
        shutil.rmtree(again)
    assert booted > 0


def test_no_moment_at_which_an_incomplete_index_denies_an_entry(tmp_path: Path) -> None:
    root = tmp_path / "bookie"
    config = config_below(root)
    store_entries(config, LEDGERS, rounds=2)
    filled = (path for path in (root / "ledgers-0" / "current").glob("*.log") if path.stat().st_size > HEADER_BYTES)
    last = max(filled, key=lambda path: int(path.stem, 16))
    with last.open("r+b") as stream:
        stream.seek(HEADER_BYTES + 50)
        stream.write(bytes(200))
    lose(config, LOCATIONS_DATABASE)
    disk = EveryChangePhotographed(root)
    disk.photograph_into = tmp_path / "photographs"
    rebuild(config, filesystem=disk, open_index=opening_watched(disk.photograph))
    opened = 0
    for _, state in disk.photographs:
        try:
            storage = open_storage(config_below(state))
        except (IndexMissingError, IndexDamagedError):
            continue
        opened += 1
        engine = storage.engines[0]
        assert engine.rows.read_flags() == 1
        for ledger_id in LEDGERS:
            row = engine.rows.find(ledger_id)
            assert row is not None
            assert row.is_limbo
        storage.close()
    assert opened > 0


def test_a_swap_that_was_begun_is_finished_by_the_next_rebuild_too(tmp_path: Path) -> None:
    config = config_below(tmp_path / "bookie")
    store_entries(config, LEDGERS, rounds=2)
    before = rows_of(config, LOCATIONS_DATABASE)
    directory = database(config, LOCATIONS_DATABASE)
    # As a kill leaves it behind the record: the new database counts, the old one is still in its place.
    shutil.copytree(directory, f"{directory}.rebuilt")
    shutil.copy(f"{directory}.seal", f"{directory}.rebuilt.seal")
    shutil.rmtree(directory)
    directory.mkdir()
    assert rebuild(config).directories == ()
    assert rows_of(config, LOCATIONS_DATABASE) == before
    assert not leftovers(config)
