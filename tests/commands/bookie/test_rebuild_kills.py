"""kill -9 at random points of online rebuilds: the bookie starts, and never denies an entry that it has."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from tests.commands.bookie.endless_reader import payload
from tests.processes import LOOPBACK, BkctlResult, Cluster, bkctl_environment

pytestmark = pytest.mark.cluster

LEDGERS = 10
ENTRIES_PER_LEDGER = 1_000
KILLS = 20
END_S = 60.0


async def write(metadata_uri: str) -> list[int]:
    written = []
    async with await LedgerClient.connect(metadata_uri) as client:
        for _ in range(LEDGERS):
            async with await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
                bodies = [payload(writer.ledger_id, entry_id) for entry_id in range(ENTRIES_PER_LEDGER)]
                await asyncio.gather(*[writer.append_nowait(body) for body in bodies])
            written.append(writer.ledger_id)
    return written


class OneBookie:
    """A bookie that is killed and started again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._id = cluster.bookies[0].id
        self._directory = f"{cluster.bookies[0].directory}/ledgers"

    def rebuild(self, *words: str) -> BkctlResult:
        return self._ask("index", "rebuild", "--online", "--yes", *words)

    def kill(self) -> None:
        """A child that it was about to start holds its port and locks until it has become another program."""
        self._cluster.kill_bookie(self._id)
        deadline = time.monotonic() + END_S
        with contextlib.suppress(ConnectionRefusedError):
            while time.monotonic() < deadline:
                with contextlib.suppress(ConnectionResetError):
                    socket.create_connection((LOOPBACK, self._cluster.bookies[0].port)).close()

    def start(self) -> None:
        """It starts in the mode before the rebuild."""
        self._cluster.start_bookie(self._id)
        state = self._ask("state").json()
        assert (state["mode"], state["reasons"]) == ("writable", [])

    def _ask(self, *words: str) -> BkctlResult:
        result = self._cluster.run("bookie", *words, "--ledger-dir", self._directory, "-o", "json")
        assert result.exit_code == 0, result.stdout + result.stderr
        return result


@pytest.mark.battery
def test_kills_at_random_points(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    cluster = start_cluster(1)
    bookie = OneBookie(cluster)
    ledger_ids = asyncio.run(write(cluster.metadata_uri))
    first = bookie.rebuild().json()
    assert first["locations"] == LEDGERS * ENTRIES_PER_LEDGER
    said = tmp_path / "reader"
    with said.open("wb") as output:
        arguments = map(str, (cluster.bookies[0].port, ENTRIES_PER_LEDGER, *ledger_ids))
        reader = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.commands.bookie.endless_reader", *arguments],
            stdout=output,
            env=bkctl_environment(PYTHONPATH=str(Path(__file__).parents[3])),
        )
    try:
        for _ in range(KILLS):
            bookie.rebuild("--detach")
            time.sleep(source.uniform(0, 1.1 * first["seconds"]))  # the point of the kill
            bookie.kill()
            bookie.start()
        last = bookie.rebuild().json()
        assert (last["state"], last["is_complete"]) == ("done", True)
        assert (last["entries"], last["locations"]) == (LEDGERS * ENTRIES_PER_LEDGER,) * 2
        verified = cluster.run("ledger", "verify", "--all")
        assert verified.exit_code == 0, verified.stdout + verified.stderr
        assert reader.poll() is None, said.read_text()
        reader.terminate()
        assert reader.wait(END_S) == 0
    finally:
        reader.kill()
        reader.wait()
    *lines, counts = said.read_text().splitlines()
    print(counts)
    answers = json.loads(counts)
    assert lines == ["READ ALL"], lines[:10]
    assert set(answers) == {"good", "unreachable"}
    assert answers["good"] > LEDGERS * ENTRIES_PER_LEDGER
