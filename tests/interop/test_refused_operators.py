"""Commands at Java bookies that do not accept the operator: one sentence, nothing changed, nothing counted as bad."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.security_config import BookieClientConfig, ClientLoginConfig
from tests.interop.java_cluster import JavaCluster
from tests.interop.test_secured_clients import LOGIN, NEITHER, PASSWORD, SASL

ENTRIES = 6


@pytest.fixture
def cluster(new_metadata_uri: Callable[[], str], tmp_path: Path) -> Iterator[JavaCluster]:
    (tmp_path / "jaas.conf").write_text(f'Bookie {{ {LOGIN} user_bookkeeper="{PASSWORD}"; }};\n')
    flags = (f"-Djava.security.auth.login.config={tmp_path}/jaas.conf", "-Dzookeeper.sasl.client=false")
    with JavaCluster(str(tmp_path / "cluster"), new_metadata_uri(), jvm_flags=flags) as cluster:
        cluster.start_bookies(3, **SASL)
        yield cluster


async def write_ledgers(cluster: JavaCluster, tmp_path: Path) -> list[int]:
    """A closed ledger on all three bookies, and an open one."""
    (tmp_path / "password").write_text(PASSWORD)
    login = ClientLoginConfig(username="bookkeeper", password=f"file:{tmp_path}/password")
    config = ClientConfig(security=BookieClientConfig(sasl=login))
    async with await LedgerClient.connect(cluster.metadata_uri, config=config) as client:
        ids = []
        for is_closed in (True, False):
            writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
            for number in range(ENTRIES):
                await writer.append(b"entry %d" % number)
            if is_closed:
                await writer.close()
            ids.append(writer.ledger_id)
    return ids


async def test_commands_without_a_login(cluster: JavaCluster, tmp_path: Path) -> None:
    closed, still_open = await write_ledgers(cluster, tmp_path)
    first, second, dead = cluster.running
    for words in (
        ("bookie", "list"), ("bookie","list","--ask"), ("bookie", "sanity", first), ("ledger", "verify", str(closed)), ("ledger", "explain", str(closed)),
        ("status",), ("bookie", "restart-check", first), ("bookie", "drain", first, "--yes"), ("bookie", "decommission", first, "--yes"),
        ("recover", "ledger", str(closed), "--yes"), ("ledger", "close", str(still_open), "--yes"), ("ledger", "read", str(closed)),
        ("bookie", "info"), ("bookie", "show", first),
    ):
        result = cluster.run(*words)
        print("=====", words, result.exit_code)
        print(result.stdout)
        print(result.stderr)
    cluster.kill(dead)
    for words in (("recover", "failed-bookie", dead, "--yes"),("ledger", "verify", str(closed)),):
        result = cluster.run(*words)
        print("=====", words, result.exit_code)
        print(result.stdout)
        print(result.stderr)
