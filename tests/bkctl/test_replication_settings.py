"""[replication] is read from all sources and reaches the commands that recover."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkctl.commands.config import GlobalFlags
from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.settings import read_sources, resolve_settings
from tests.bkctl.conftest import RunMain

NOT_LISTENING = "127.0.0.1:1"


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    toml = tmp_path / "c.toml"
    toml.write_text("[replication]\nledgers_in_parallel = 3\nlock_wait_s = 1\n")
    flags = GlobalFlags(config=str(toml))
    assert resolve_settings(read_sources(flags, {})).replication == ReplicationConfig(
        ledgers_in_parallel=3, lock_wait_s=1
    )
    environment = {"BKCTL_REPLICATION_LEDGERS_IN_PARALLEL": "4", "BKCTL_REPLICATION_BACKOFF_MAX_S": "0.5"}
    assert resolve_settings(read_sources(flags, environment)).replication == ReplicationConfig(
        ledgers_in_parallel=4, lock_wait_s=1, backoff_max_s=0.5
    )


def test_a_value_out_of_range_is_refused_where_it_is_written(tmp_path: Path) -> None:
    toml = tmp_path / "c.toml"
    toml.write_text("[replication]\nledgers_in_parallel = 0\n")
    with pytest.raises(ConfigurationError, match=r"c\.toml: replication\.ledgers_in_parallel = 0: must be at least 1"):
        resolve_settings(read_sources(GlobalFlags(config=str(toml)), {}))
    with pytest.raises(ConfigurationError, match=r"^BKCTL_REPLICATION_LOCK_POLL_S=0: must be above 0$"):
        resolve_settings(read_sources(GlobalFlags(), {"BKCTL_REPLICATION_LOCK_POLL_S": "0"}))


@pytest.mark.parametrize("command", ["recover", "decommission"])
def test_a_recovery_waits_as_long_as_it_is_set_for_a_registration_to_expire(
    run_main: RunMain, metadata_uri: str, tmp_path: Path, command: str
) -> None:
    assert run_main("cluster", "init", "-u", metadata_uri).exit_code == 0
    uri = parse_metadata_uri(metadata_uri)

    async def register() -> None:
        async with await ZooKeeperStore.connect(uri.servers, ZooKeeperConfig()) as store:
            await store.create(f"{uri.root}/available/{NOT_LISTENING}", b"")

    asyncio.run(register())
    (tmp_path / "c.toml").write_text("[replication]\nregistration_wait_s = 0.25\n")
    words = (command, NOT_LISTENING, "--yes", "-u", metadata_uri, "--config", "c.toml")
    by_file = run_main(*words)
    assert by_file.exit_code == 3
    assert f"bookie {NOT_LISTENING} does not respond but is still registered after 0.25 s" in by_file.stderr
    by_variable = run_main(*words, BKCTL_REPLICATION_REGISTRATION_WAIT_S="0.125")
    assert "is still registered after 0.125 s" in by_variable.stderr
