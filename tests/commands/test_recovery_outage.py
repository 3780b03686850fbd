"""Recoveries of bookies while the real ZooKeeper stands still, or is killed and started again."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bkctl.runtime.metadata.cluster.operation_lock import OperationHolder, lock_bookies, operations_on_bookies
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import COMMAND_TIMEOUT_S, BkctlProcess, Cluster, DevCluster, is_alive, kill_and_wait, start_bkctl
from tests.until import wait_until

LEDGERS = 16
BOOKIE_SESSION_TIMEOUT_S = 10.0
"""The default."""
AWAY = "ZooKeeper has not answered since"
BACK = "ZooKeeper answers again"


class DegradedCluster:
    """A cluster with a dead bookie, and a command that works slowly enough to be met by an outage in the middle."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.log = directory / "command.log"
        self.config = directory / "config.toml"
        # Two at a time: all of them together would also end together, and none would be left after an outage.
        self.config.write_text(
            "[zookeeper]\nsession_timeout_ms = 4000\noperation_timeout_s = 3\n[replication]\nledgers_in_parallel = 2\n"
        )
        written = cluster.run(
            "ledger", "write-test", "--ledgers", str(LEDGERS), "--entries", "20", "-E", "2", "-W", "2", "-A", "2"
        )
        assert written.exit_code == 0, written.stderr
        self.dead = max((each.id for each in cluster.bookies), key=lambda each: len(self.referencing(each)))
        self._stop(cluster.bookie(self.dead).pid)
        self.planned = len(self.referencing(self.dead))

    @staticmethod
    def _stop(pid: int) -> None:
        """In order, so that the registration ends at once."""
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid))

    def referencing(self, bookie_id: str) -> list[int]:
        """Ledgers whose metadata names the bookie."""

        async def read() -> list[int]:
            uri = parse_metadata_uri(self.cluster.metadata_uri)
            async with await ZooKeeperStore.connect(uri.servers) as store:
                ledgers = await open_ledger_store(store, uri.root, uri.tree)
                found = [each async for each in ledgers.read_all()]
            return [ledger_id for ledger_id, stored in found if bookie_id in stored.value.bookies()]  # type: ignore[union-attr]

        return asyncio.run(read())

    @contextmanager
    def begun(self, *arguments: str, zk_rate: int = 12) -> Iterator[BkctlProcess]:
        """A command whose run has repaired some ledgers, and not all."""
        variables = {"BKCTL_METADATA_URI": self.cluster.metadata_uri, "BKCTL_CONFIG": str(self.config)}
        with open(self.log, "wb") as log:
            # The rate makes it slow: a ledger takes about a dozen requests.
            arguments = (*arguments, "--yes", "--zk-rate", str(zk_rate))
            process = start_bkctl(*arguments, stdout=log, stderr=log, variables=variables)
        try:
            wait_until(lambda: len(self.referencing(self.dead)) < self.planned, process=process, tell=self.said)
            assert self.referencing(self.dead), "it was too fast to be met in the middle"
            yield process
        finally:
            process.kill()
            process.wait()

    def holders(self) -> list[str]:
        """The operations that hold bookies now."""

        async def read() -> list[str]:
            uri = parse_metadata_uri(self.cluster.metadata_uri)
            async with await ZooKeeperStore.connect(uri.servers) as store:
                return [holder.operation for holder in await operations_on_bookies(store, uri.root)]

        return asyncio.run(read())

    def wait_for_session_end(self) -> None:
        """The command stands still: its entry goes with its session."""
        wait_until(lambda: not self.holders(), tell=self.said)

    def said(self) -> str:
        return self.log.read_text()

    def end_of(self, process: BkctlProcess) -> int:
        return process.wait(COMMAND_TIMEOUT_S)

    def wait_until_all_are_registered(self) -> None:
        """Bookies whose sessions ended in the outage register again by themselves, at their own pace."""
        living = {each.id for each in self.cluster.bookies} - {self.dead}

        def are_writable() -> bool:
            return living <= set(self.cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout.split())

        wait_until(are_writable, tell=lambda: self.cluster.run("bookie", "list").stdout)

    def require_all_recovered(self) -> None:
        assert self.referencing(self.dead) == []
        verified = self.cluster.run("ledger", "verify", "--all")
        assert verified.exit_code == 0, verified.stdout


@pytest.fixture
def degraded(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> DegradedCluster:
    return DegradedCluster(start_cluster(4), tmp_path)


@pytest.fixture
def dev_cluster(start_dev_cluster: Callable[[int], DevCluster]) -> DevCluster:
    """With a ZooKeeper of its own."""
    return start_dev_cluster(4)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.battery
def test_an_outage_longer_than_the_session_is_waited_out(dev_cluster: DevCluster, tmp_path: Path) -> None:
    degraded = DegradedCluster(dev_cluster, tmp_path)
    with degraded.begun("decommission", degraded.dead) as process:
        with standing_still(dev_cluster.zookeeper_pid):
            wait_until(lambda: AWAY in degraded.said(), process=process, tell=degraded.said)
            time.sleep(BOOKIE_SESSION_TIMEOUT_S)  # the length of the outage is the scenario
            assert process.poll() is None, degraded.said()
        assert degraded.end_of(process) == 0, degraded.said()
    assert BACK in degraded.said()
    degraded.require_all_recovered()
    assert degraded.dead not in degraded.cluster.run("cookie", "list", "-o", "name").stdout.split()


@pytest.mark.battery
def test_a_zookeeper_that_is_killed_and_started_again_is_waited_for(dev_cluster: DevCluster, tmp_path: Path) -> None:
    degraded, cluster = DegradedCluster(dev_cluster, tmp_path), dev_cluster
    with degraded.begun("recover", "failed-bookie", degraded.dead) as process:
        kill_and_wait(cluster.zookeeper_pid)
        wait_until(lambda: AWAY in degraded.said(), process=process, tell=degraded.said)
        time.sleep(BOOKIE_SESSION_TIMEOUT_S)
        port = int(cluster.metadata_uri.partition("://")[2].partition("/")[0].rpartition(":")[2])
        server = asyncio.run(EmbeddedZooKeeper.start(str(Path(cluster.directory) / "zookeeper"), port=port))
        try:
            assert degraded.end_of(process) == 0, degraded.said()
            assert BACK in degraded.said()
            degraded.require_all_recovered()
        finally:
            asyncio.run(server.stop())


@pytest.mark.battery
def test_an_outage_that_is_too_long_ends_it_with_the_command_that_continues(
    dev_cluster: DevCluster, tmp_path: Path
) -> None:
    degraded = DegradedCluster(dev_cluster, tmp_path)
    with (
        degraded.begun("recover", "failed-bookie", degraded.dead, "--metadata-outage-max", "1s") as process,
        standing_still(dev_cluster.zookeeper_pid),
    ):
        assert degraded.end_of(process) == 6, degraded.said()
    said = degraded.said()
    assert "ZooKeeper was unavailable for over 1 s" in said
    assert "another cluster" not in said
    left = degraded.referencing(degraded.dead)
    assert 0 < len(left) < degraded.planned
    assert f"of {degraded.planned} ledgers finished, " in said
    words = shlex.split(continuing(said))
    assert words[:4] == ["bkctl", "recover", "failed-bookie", degraded.dead]
    degraded.wait_until_all_are_registered()
    continued = degraded.cluster.run(*words[1 : words.index("--zk-rate")])
    assert continued.exit_code == 0, continued.stderr
    degraded.require_all_recovered()


@pytest.mark.parametrize(
    "words",
    [
        ("recover", "failed-bookie"),
        pytest.param(("decommission",), marks=pytest.mark.battery),
        pytest.param(("bookie", "drain"), marks=pytest.mark.battery),
    ],
    ids=" ".join,
)
def test_a_run_that_outlived_its_session_is_seen_again(degraded: DegradedCluster, words: tuple[str, ...]) -> None:
    with degraded.begun(*words, degraded.dead, zk_rate=9) as process:
        assert degraded.holders() == [" ".join(words)]
        with standing_still(process.pid):
            degraded.wait_for_session_end()
        wait_until(degraded.holders, process=process, tell=degraded.said)
        assert degraded.holders() == [" ".join(words)]
        operations = degraded.cluster.run("status", "-o", "json").json()["operations"]
        assert f"'{' '.join(words)}' by " in operations[0], operations
        second = degraded.cluster.run("recover", "failed-bookie", degraded.dead, "--yes")
        assert (second.exit_code, process.poll()) == (5, None), second.stderr + degraded.said()
        assert f"another operation is working on bookie {degraded.dead}: '{' '.join(words)}'" in second.stderr
        assert degraded.end_of(process) == 0, degraded.said()
    degraded.require_all_recovered()
    assert degraded.holders() == []


def test_a_run_that_outlived_its_session_ends_when_another_has_its_bookie(degraded: DegradedCluster) -> None:
    uri = parse_metadata_uri(degraded.cluster.metadata_uri)
    other = OperationHolder("bookie drain", "ops", "elsewhere", 17, "2026-01-01T00:00:00+00:00")

    async def hold_until_its_end(process: BkctlProcess) -> int:
        async with await ZooKeeperStore.connect(uri.servers) as store:
            with standing_still(process.pid):
                await asyncio.to_thread(degraded.wait_for_session_end)
                lock = await lock_bookies(store, uri.root, other, [degraded.dead])
            async with lock:
                return await asyncio.to_thread(degraded.end_of, process)

    with degraded.begun("recover", "failed-bookie", degraded.dead, zk_rate=9) as process:
        assert asyncio.run(hold_until_its_end(process)) == 5, degraded.said()
    said = degraded.said()
    assert f"another operation is working on bookie {degraded.dead}: 'bookie drain' by ops on elsewhere" in said
    why = "the ZooKeeper session of this command has ended, because it was suspended or ZooKeeper was out of reach"
    assert why in " ".join(said.split())
    left = degraded.referencing(degraded.dead)
    assert f"{degraded.planned - len(left)} of {degraded.planned} ledgers finished, {len(left)} left" in said
    words = shlex.split(continuing(said))
    assert words[:4] == ["bkctl", "recover", "failed-bookie", degraded.dead]
    continued = degraded.cluster.run(*words[1 : words.index("--zk-rate")])
    assert continued.exit_code == 0, continued.stderr
    degraded.require_all_recovered()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.battery)]
)
def test_a_signal_ends_it_with_the_command_that_continues(
    degraded: DegradedCluster, number: signal.Signals, code: int
) -> None:
    with degraded.begun("decommission", degraded.dead) as process:
        process.send_signal(number)
        assert degraded.end_of(process) == code, degraded.said()
    said = degraded.said()
    assert f"of {degraded.planned} ledgers finished, " in said
    assert "the cookie is deleted last" in said
    words = shlex.split(continuing(said))
    assert words[:3] == ["bkctl", "decommission", degraded.dead]
    continued = degraded.cluster.run(*words[1 : words.index("--zk-rate")])
    assert continued.exit_code == 0, continued.stderr
    degraded.require_all_recovered()


def continuing(said: str) -> str:
    """The command that a message names."""
    return said.partition("to continue: ")[2].partition("\n")[0]
