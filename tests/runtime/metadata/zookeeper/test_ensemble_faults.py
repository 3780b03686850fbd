"""What happens to sessions, bookies and commands when servers of a three-server ensemble fail, or a process stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.store import Node
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import (
    LOOPBACK,
    BkctlProcess,
    BkctlResult,
    free_port,
    kill_and_wait,
    run_bkctl,
    start_bkctl,
)
from tests.runtime.metadata.conftest import connect_in_time, halt
from tests.runtime.metadata.replication_peer import holder_of
from tests.until import until, wait_until
from tests.zookeeper_servers import Ensemble, ZooKeeperServer

pytestmark = pytest.mark.battery

DEADLINE_S = 60.0
"""Far above what anything here takes: it turns a hang into a failure."""

PATIENT = ZooKeeperConfig(session_timeout_ms=20_000, operation_timeout_s=40.0)
ROOT = "/faults"
BOOKIE_SETTINGS = f"""
[zookeeper]
session_timeout_ms = 4000
[bookie]
advertised_address = "{LOOPBACK}"
is_loopback_allowed = true
"""


@pytest.fixture(scope="module")
def running_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        created = run_bkctl("cluster", "init", "-u", ensemble.metadata_uri(ROOT), "--timeout", "60s")
        assert created.exit_code == 0, created.stderr
        yield ensemble


@pytest.fixture
def ensemble(running_ensemble: Ensemble) -> Ensemble:
    """All three servers run when a test begins."""
    running_ensemble.start()
    return running_ensemble


class Bookie(NamedTuple):
    """A bookie process with an id that no other test uses."""

    id: str
    process: BkctlProcess
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()


@contextlib.contextmanager
def running_bookie(ensemble: Ensemble, directory: Path) -> Iterator[Bookie]:
    """A bookie process, registered."""
    bookie_id = f"bookie-{directory.name}"
    (directory / "bkctl.toml").write_text(BOOKIE_SETTINGS)
    with open(directory / "bookie.log", "wb") as log:
        process = start_bkctl(
            *("bookie", "start", "-u", ensemble.metadata_uri(ROOT), "--config", str(directory / "bkctl.toml")),
            *("--port", str(free_port()), "--bookie-id", bookie_id),
            *("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers")),
            stdout=log,
            stderr=log,
        )
    bookie = Bookie(bookie_id, process, directory / "bookie.log")
    try:
        wait_writable(ensemble, bookie)
        yield bookie
    finally:
        kill_and_wait(process.pid)
        process.wait()


def wait_writable(ensemble: Ensemble, bookie: Bookie) -> None:
    wait_until(lambda: bookie.id in writable_bookies(ensemble).stdout, process=bookie.process, tell=lambda: bookie.log)


def writable_bookies(ensemble: Ensemble) -> BkctlResult:
    arguments = ("--state", "writable", "-o", "name", "--timeout", "40s")
    return run_bkctl("bookie", "list", "-u", ensemble.metadata_uri(ROOT), *arguments)


def require_one_error(stderr: str) -> list[str]:
    """The lines: why the command waits, then why it has ended."""
    *waiting, error = lines = stderr.splitlines()
    assert all(line.startswith("waiting for ZooKeeper: ") for line in waiting), stderr
    assert error.startswith("error: "), stderr
    return lines


def server_of(ensemble: Ensemble, store: ZooKeeperStore) -> ZooKeeperServer:
    """The server that a store is connected to."""
    port = store._client._connection._socket._connection.getpeername()[1]
    return next(server for server in ensemble.servers if server.port == port)


def test_the_leader_is_killed(ensemble: Ensemble, tmp_path: Path) -> None:
    with running_bookie(ensemble, tmp_path) as bookie:
        ensemble.leader.kill()
        during = writable_bookies(ensemble)
        assert during.exit_code == 0, during.stderr
        wait_writable(ensemble, bookie)
        assert bookie.process.poll() is None


async def test_a_session_and_its_lock_outlive_the_leader(ensemble: Ensemble) -> None:
    async with await ZooKeeperStore.connect(ensemble.addresses, PATIENT) as store:
        locks = ReplicationLocks(store, ROOT, "me")
        lock = await locks.acquire(1)
        assert lock is not None
        seen: asyncio.Queue[Node | None] = asyncio.Queue()
        path = await store.create(f"{ROOT}/leader", b"before", is_ephemeral=True)
        store.watch_node(path, seen.put_nowait)
        session_id = store.session_id
        await asyncio.to_thread(ensemble.leader.kill)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(MetadataUnavailableError):  # in doubt, so tried again
                    await store.set(path, b"after", -1)
                    break
            while (node := await seen.get()) is None or node.data != b"after":
                assert node is not None, "absent is not what a lost leader means"
        assert store.session_id == session_id
        assert lock.is_held
        assert await holder_of(locks, 1) == "me"
        await store.delete(path)


async def test_a_server_that_hangs_is_left(ensemble: Ensemble) -> None:
    config = ZooKeeperConfig(session_timeout_ms=6000, operation_timeout_s=40.0)
    async with await ZooKeeperStore.connect(ensemble.addresses, config) as store:
        session_id = store.session_id
        server = server_of(ensemble, store)
        halt(server.pid)
        try:
            async with asyncio.timeout(DEADLINE_S):
                assert await store.exists(ROOT) is not None
                assert server_of(ensemble, store) is not server
                assert store.session_id == session_id
        finally:
            server.go_on()


def test_all_servers_are_restarted(ensemble: Ensemble, tmp_path: Path) -> None:
    with running_bookie(ensemble, tmp_path) as bookie:
        ensemble.kill()
        uri = ensemble.metadata_uri(ROOT)
        during = run_bkctl("ledger", "list", "-u", uri, "--timeout", "4s")
        assert during.exit_code == 6
        assert during.stdout == ""
        for line in require_one_error(during.stderr):
            for server in ensemble.servers:
                assert f"{server.address} connection refused" in line
        waiting = start_bkctl("ledger", "list", "-u", uri, "--timeout", "60s", "-o", "json")
        ensemble.start()
        assert waiting.wait(DEADLINE_S) == 0
        wait_writable(ensemble, bookie)
        assert bookie.process.poll() is None


def test_a_bookie_that_stood_still_registers_again(ensemble: Ensemble, tmp_path: Path) -> None:
    with running_bookie(ensemble, tmp_path) as bookie:
        os.kill(bookie.process.pid, signal.SIGSTOP)
        wait_until(
            lambda: bookie.id not in writable_bookies(ensemble).stdout, process=bookie.process, tell=lambda: bookie.log
        )
        os.kill(bookie.process.pid, signal.SIGCONT)
        wait_writable(ensemble, bookie)
        assert bookie.process.poll() is None
        assert f"bookie {bookie.id}: the ZooKeeper session expired, registering again" in bookie.log
        assert f"bookie {bookie.id} is registered again" in bookie.log


async def test_a_holder_that_stood_still_knows_that_its_lock_is_gone(ensemble: Ensemble) -> None:
    """And what it began under the lock is not carried out, though somebody else holds the lock by then."""
    async with await ZooKeeperStore.connect(ensemble.addresses, PATIENT) as store:
        await store.create(f"{ROOT}/guarded")
        locks = ReplicationLocks(store, ROOT, "successor")
        process = subprocess.Popen(  # noqa: ASYNC220  its exact process id is stopped
            [sys.executable, "-m", "tests.runtime.metadata.lock_holder", ensemble.addresses, ROOT, "7"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert await asyncio.to_thread(process.stdout.readline) == "acquired\n"
            assert await locks.acquire(7) is None
            os.kill(process.pid, signal.SIGSTOP)
            await until(lambda: locks.acquire(7))
            await store.sync(f"{ROOT}/guarded")
            await store.set(f"{ROOT}/guarded", b"successor", -1)
            os.kill(process.pid, signal.SIGCONT)
            last_words, _ = await asyncio.to_thread(process.communicate, timeout=DEADLINE_S)
            assert last_words.splitlines()[-1] == "lost"
            assert process.returncode == 0
            assert (await store.get(f"{ROOT}/guarded")).data == b"successor"
        finally:
            kill_and_wait(process.pid)
            process.stdout.close()
            process.wait()


async def test_a_server_that_lost_its_ensemble_serves_nobody(ensemble: Ensemble) -> None:
    """It would answer reads, and they could be wrong: the other two may go on without it."""
    config = ZooKeeperConfig(session_timeout_ms=20_000, operation_timeout_s=1.5)
    cut_off, *others = ensemble.servers
    async with await connect_in_time(cut_off.address, config) as store:
        lost: list[int] = []
        store.on_session_lost(lambda: lost.append(1))
        session_id = store.session_id
        for server in others:
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(cut_off.wait_for_mode, "read-only")
        for operation in (store.get(ROOT), store.set(ROOT, b"", -1)):
            with pytest.raises(MetadataUnavailableError):
                await operation
        uri = f"zk+hierarchical://{cut_off.address}{ROOT}"
        commands = (("ledger", "list"), ("bookie", "list"), ("cluster", "init"))
        for refused in await asyncio.gather(
            *(asyncio.to_thread(run_bkctl, *arguments, "-u", uri, "--timeout", "4s") for arguments in commands)
        ):
            assert refused.exit_code == 6, refused.stderr
            *_, error = require_one_error(refused.stderr)
            assert f"{cut_off.address} serves reads only, it has lost its quorum" in error
        await asyncio.to_thread(ensemble.start)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(MetadataUnavailableError):
                    await store.sync(ROOT)
                    break
        assert (store.session_id, lost) == (session_id, [])


def test_a_bookie_ends_when_it_is_told_to_though_nobody_answers(ensemble: Ensemble, tmp_path: Path) -> None:
    with running_bookie(ensemble, tmp_path) as bookie:
        for server in ensemble.servers:
            server.halt()
        try:
            bookie.process.terminate()
            assert bookie.process.wait(DEADLINE_S) == 0, bookie.log
        finally:
            for server in ensemble.servers:
                server.go_on()
