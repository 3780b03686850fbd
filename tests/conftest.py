"""Fixtures that many test modules share: a real ZooKeeper, real bookies. Both are started only when asked for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import itertools
import logging
import os
import pkgutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

import bkctl
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.java_launcher import use_launcher
from tests.orphans import OrphanKiller
from tests.processes import Cluster, DevCluster
from tests.rings import (  # noqa: F401  hooks of pytest
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
    pytest_report_to_serializable,
    pytest_terminal_summary,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

_root_numbers = itertools.count()

_earlier_threads: set[threading.Thread] = set()

_MEMORY = "/dev/shm"
"""Temporary directories are here: thousands of syncs take no time."""
_MEMORY_BYTES_MIN = 4 * 1024**3

# A busy machine is no failure, neither of an example nor of how fast examples are drawn.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--property-rounds``."""
    parser.addoption(
        "--property-rounds",
        type=int,
        default=1,
        metavar="COUNT",
        help="run every property test so many times, each time with all its examples and a new seed",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Rounds, not more examples in one run: how many a test wants stands among its settings, and is right for it."""
    count = metafunc.config.getoption("--property-rounds")
    if count > 1 and is_hypothesis_test(metafunc.function):
        metafunc.fixturenames.append("property_round")
        metafunc.parametrize("property_round", range(count), ids=[f"round-{number}" for number in range(count)])


def pytest_collection_finish() -> None:
    """Where examples follow from the test alone (profile "ci"), they do so whatever was run or imported before.

    Hypothesis draws some values from the constants of all modules of the project that are loaded at that moment.
    """
    assert settings.default is not None
    if settings.default.derandomize:
        for module in pkgutil.walk_packages(bkctl.__path__, "bkctl."):
            if not module.name.endswith(".__main__"):
                _import(module.name)


def _import(module: str) -> None:
    """Modules of logins with Kerberos need a package that is built from source: they are left out where it is not."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "gssapi":
            raise


def pytest_configure(config: pytest.Config) -> None:
    """Who starts the tests in the background of a script leaves them, and the commands they run, deaf to Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ and _is_fit_for_tests(_MEMORY):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = _MEMORY
    if not hasattr(config, "workerinput"):  # workers inherit it
        use_launcher()
    logging.getLogger("bkctl.runtime.metadata.zookeeper.store.kazoo").addFilter(_is_of_this_test)


def pytest_runtest_setup() -> None:
    """What runs before a test is not its own."""
    _earlier_threads.clear()
    _earlier_threads.update(threading.enumerate())
    _earlier_threads.discard(threading.current_thread())


def _is_of_this_test(_: logging.LogRecord) -> bool:
    """A connection that an earlier test left may report its end late: a test that reads its log must not see that."""
    return threading.current_thread() not in _earlier_threads


def _is_fit_for_tests(directory: str) -> bool:
    """Whether there is room, and scripts may be run. No test cuts the power: what a sync saves, batteries work out."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    has_room = found.f_bavail * found.f_frsize >= _MEMORY_BYTES_MIN
    return has_room and not found.f_flag & os.ST_NOEXEC and os.access(directory, os.W_OK)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands under test leave their audit trail, backups, caches and sockets here, not in those of the developer.

    So they also find no bookie that another worker's test runs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        yield


@pytest.fixture(scope="module", autouse=True)
def leaks_of_module() -> Iterator[None]:
    """What a module has left open fails its last test, and not a test of another module, whenever Python finds it.

    What is left is still in use: no later search for cycles goes through it again.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper server for the whole run; tests keep out of each other's way by ``metadata_uri``."""
    with OrphanKiller() as orphans:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JDK_JAVA_OPTIONS", "-Dzookeeper.forceSync=no")  # no test survives a crash of the machine
            server = asyncio.run(EmbeddedZooKeeper.start(str(tmp_path_factory.mktemp("zookeeper"))))
        orphans.watch(server.pid)
        try:
            yield server
        finally:
            asyncio.run(server.stop())


@pytest.fixture(scope="session")
def new_metadata_uri(zookeeper: EmbeddedZooKeeper) -> Callable[[], str]:
    """Makes URIs of ledgers roots that no other test uses; nothing exists there yet."""
    return lambda: f"zk+hierarchical://{zookeeper.connect_string}/ledgers-{next(_root_numbers)}"


@pytest.fixture
def metadata_uri(new_metadata_uri: Callable[[], str]) -> str:
    """URI of a ledgers root that no other test uses; nothing exists there yet."""
    return new_metadata_uri()


@pytest.fixture
def start_cluster(new_metadata_uri: Callable[[], str], tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters of a given number of bookies on the shared ZooKeeper; all are ended with the test.

    With ``session_ms=HALTED_SESSION_MS`` a bookie stays registered while a test halts it.
    """
    with contextlib.ExitStack() as clusters:

        def start(bookie_count: int, session_ms: int = 5000) -> Cluster:
            cluster = Cluster(str(tmp_path / f"cluster-{next(_root_numbers)}"), new_metadata_uri(), session_ms)
            clusters.callback(cluster.stop)
            cluster.up(bookie_count)
            return cluster

        yield start


@pytest.fixture
def cluster(start_cluster: Callable[[int], Cluster]) -> Cluster:
    """Three bookies, for this test alone."""
    return start_cluster(3)


@pytest.fixture
def start_dev_cluster(tmp_path: Path) -> Iterator[Callable[[int], DevCluster]]:
    """Starts clusters with a ZooKeeper of their own by ``bkctl dev cluster``; all are ended with the test."""
    with contextlib.ExitStack() as clusters:

        def start(bookie_count: int) -> DevCluster:
            cluster = DevCluster(str(tmp_path / f"dev-cluster-{next(_root_numbers)}"))
            clusters.callback(cluster.stop)
            cluster.up(bookie_count)
            return cluster

        yield start
