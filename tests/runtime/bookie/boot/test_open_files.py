"""How a bookie shares the files that it may have open."""

from __future__ import annotations

import resource
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.open_files import CONNECTIONS_MIN, connections_warning, fit_open_files
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import StorageConfig
from tests.runtime.bookie.bookie_process import BookieUnderTest, open_files

INVALID_CONF_EXIT_CODE = 1


def config_of(journal_count: int, ledger_count: int) -> BookieConfig:
    storage = StorageConfig(
        journal_directories=tuple(f"/j{number}" for number in range(journal_count)),
        ledger_directories=tuple(f"/l{number}" for number in range(ledger_count)),
    )
    return BookieConfig(metadata_uri="zk+hierarchical://zookeeper:2181/ledgers", storage=storage)


@pytest.mark.parametrize("directories", [(1, 1), (2, 6), (1, 24)])
def test_a_higher_limit_gives_more_connections_up_to_the_setting(directories: tuple[int, int]) -> None:
    config = config_of(*directories)
    before, refusals = 0, 0
    for limit in range(8, 20_000, 16):
        try:
            fitted = fit_open_files(config, limit)
        except ConfigurationError as error:
            assert before == 0, "with a lower limit it was accepted"
            refusals += 1
            needed = int(str(error).split("needs ")[1].split(":")[0])
            assert fit_open_files(config, needed).connections_max >= CONNECTIONS_MIN
            with pytest.raises(ConfigurationError):
                fit_open_files(config, needed - 1)
            continue
        logs = fitted.storage.engine.entry_log.open_files_max
        assert before <= fitted.connections_max <= config.connections_max
        assert fitted.connections_max + logs * directories[1] < limit * 0.8, "LevelDB may use a fifth"
        assert 1 <= logs <= config.storage.engine.entry_log.open_files_max
        warning = connections_warning(config, fitted, limit)
        assert bool(warning) == (fitted.connections_max < 2000)
        before = fitted.connections_max
    assert refusals
    assert before == 2000


def test_without_a_limit_the_settings_stay() -> None:
    config = config_of(1, 1)
    assert fit_open_files(config, None) is config
    assert fit_open_files(config, 1_048_576) == config
    assert "at most" in connections_warning(config, msgspec.structs.replace(config, connections_max=5), 100)


@pytest.fixture
def bookie(tmp_path: Path, metadata_uri: str, store: ZooKeeperStore) -> BookieUnderTest:
    return BookieUnderTest(tmp_path, metadata_uri, store)


@pytest.mark.cluster
async def test_too_few_open_files_for_a_bookie_are_one_sentence(bookie: BookieUnderTest) -> None:
    assert await bookie.refused(open_files(64, 64)) == INVALID_CONF_EXIT_CODE
    (line,) = bookie.said().splitlines()
    assert line.startswith("error: this process may have only 64 files open, and this bookie needs ")
    assert "ulimit -n" in line


@pytest.mark.cluster
async def test_a_bookie_raises_the_soft_limit(bookie: BookieUnderTest) -> None:
    async with bookie.running(open_files(64, 9000)) as (process, _):
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (9000, 9000)
        assert "files open" not in bookie.said()


@pytest.mark.cluster
async def test_a_bookie_with_room_for_fewer_connections_says_so(bookie: BookieUnderTest) -> None:
    async with bookie.running(open_files(300, 300)) as (_, peer):
        assert bookie.said().count("this process may have only 300 files open, so the bookie accepts at most ") == 1
        assert await peer.add(7, 0) is Status.OK
