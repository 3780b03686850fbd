"""Pytest hooks that order the tests, share them out among the workers, and report results and the time of each ring."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LONG_MODULES = (
    "tests/commands/test_recovery_outage.py",
    "tests/commands/test_cluster_walk.py",
    "tests/scripts/test_demo.py",
    "tests/crash/test_guards.py",
    "tests/crash/test_cuts.py",
    "tests/corruption/test_damages.py",
    "tests/commands/cluster/test_life.py",
)
"""These start first, so that no worker is still busy with one when the others have finished. Their tests share no
fixture, so each test may run on another worker. The tests of any other module stay together on one worker."""

ONE_WORKER_DIRECTORIES = ("tests/spark_reports/",)
"""The tests of such a directory share a fixture that costs ten seconds of CPU time in each worker: a Spark session.
They take longest of all on one worker, so they start next."""

_PROCESS_FIXTURES = frozenset({"zookeeper", "start_cluster", "start_dev_cluster"})


def ring_of(item: pytest.Item) -> str:
    """The ring of a test (docs/development.md)."""
    for marker in ("interop", "battery"):
        if item.get_closest_marker(marker):
            return marker
    has_processes = any(item.get_closest_marker(marker) for marker in ("cluster", "strace"))
    if has_processes or _PROCESS_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return "real processes"
    return "unit"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The battery is in a few modules, which name its mark: to collect the others takes 20 seconds of CPU time."""
    return True if _has_no_test(collection_path, config) else None


def _has_no_test(path: Path, config: pytest.Config) -> bool:
    is_battery = str(config.getoption("markexpr")).startswith("battery")
    is_module = path.name.startswith("test_") and path.suffix == ".py"
    return is_battery and is_module and b"battery" not in path.read_bytes()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules first, then those of one worker, modules that start processes, and the rest.

    Those directly in ``tests`` start programs, such as pytest itself, and some take half a minute.
    """
    ranks: dict[str, int] = {}
    for item in items:
        module, ring = _module_of(item.nodeid), ring_of(item)
        item.user_properties.append(("ring", ring))
        if module in LONG_MODULES:
            ranks[module] = LONG_MODULES.index(module)
        else:
            is_short = ring == "unit" and module.count("/") > 1
            rank = len(LONG_MODULES) + (0 if module.startswith(ONE_WORKER_DIRECTORIES) else 2 if is_short else 1)
            ranks[module] = min(rank, ranks.get(module, rank))
    items.sort(key=lambda item: ranks[_module_of(item.nodeid)])


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """More workers than cores, because many tests wait for other processes; most in `make test` and `make battery`."""
    is_without_java = str(config.getoption("markexpr")).startswith(("not interop", "battery"))
    return (3 if is_without_java else 2) * len(os.sched_getaffinity(0))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Replace ``--dist loadfile``."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order is that of the collection
    return _ModuleScheduling(config, log)


class _ModuleScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests of a module stay together, except those of long modules."""

    def _split_scope(self, nodeid: str) -> str:
        module = _module_of(nodeid)
        if module in LONG_MODULES:
            return nodeid
        return next((directory for directory in ONE_WORKER_DIRECTORIES if module.startswith(directory)), module)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without searches for reference cycles: the modules and the tests stay to the end, in each worker.

    They cost a quarter of the collection's CPU time, and afterwards every search would go through all tests again.
    """
    gc.disable()
    try:
        _import_own_part(session)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _import_own_part(session: pytest.Session) -> None:
    """Share out the compilation of the test modules, which takes ten seconds in each worker after a checkout.

    Each worker first imports its part of the modules. It then finds most of the others in Python's cache.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    modules = sorted(session.config.rootpath.glob("tests/**/test_*.py"))
    modules = [each for each in modules if not _has_no_test(each, session.config)]
    for path in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Escape lone surrogates, as in the name of a file that is no UTF-8.

    A worker cannot send them to the main process: it would end, and its other tests would not run.
    """
    return _sendable((yield))


def _sendable(data: object) -> object:
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {_sendable(key): _sendable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(map(_sendable, data))
    return data


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line with the seconds that the workers spent in each ring."""
    seconds: dict[str, float] = defaultdict(float)
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[str(dict(report.user_properties).get("ring"))] += report.duration
    if seconds:
        rings = ", ".join(f"{ring} {spent:.0f} s" for ring, spent in sorted(seconds.items()))
        terminalreporter.write_line(f"time of all workers: {rings}")


def _module_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
