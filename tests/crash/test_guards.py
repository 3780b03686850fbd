"""Each guard matters: switched off, some cut turns red."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.crash.battery import CutResult, cached_trace, cut_many, why_not_traceable
from tests.crash.guards import BOOTING, WRITING, WRITING_AND_BOOTING
from tests.crash.model_disk import Mode

SEEDS = range(1, 13)
CUT_COUNT = 150

LOSS = "lost|does not boot|older copy|explicit LAC"
LOSS_OF_GUARD = {
    "seal": "is lost",
    "whole-sectors-in-a-write": "does not boot",
    "torn-records-dropped": "never written",
    "copies-only-of-what-the-index-names": "older copy",
    "deletes-before-adds": "is lost",
    "rows-of-idle-ledgers": "fence|explicit LAC",
    "failed-half-first": "is lost",
    "key-before-the-records": "is lost",
    "mark-of-the-beginning": "is lost",
    "mark-after-the-flush": "is lost",
}
"""What must be seen without a guard, where not any loss will do."""

SEED_FIRST_OF_GUARD = {
    "copies-only-of-what-the-index-names": 5,
    "copies-synced-before-their-source-goes": 10,
    "whole-deletion-before-reuse": 6,
    "whole-sectors-in-a-write": 3,
}
"""Where most workloads show nothing: one that does. The others follow if it does not."""

QUICK = {"journal-sync", "entry-log-sync", "kept-files"}
"""The first cuts of the first workload show what these prevent."""

pytestmark = pytest.mark.strace


@pytest.fixture(autouse=True)
def _traceable() -> None:
    if (reason := why_not_traceable()) is not None:
        pytest.skip(reason)


@pytest.fixture
def trace_directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Traces of workloads, shared by all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "traces"
    directory.mkdir(exist_ok=True)
    return str(directory)


def results(trace_directory: str, guard: str, without: str | None) -> Iterator[CutResult]:
    """Cuts of one workload after the other."""
    first = SEED_FIRST_OF_GUARD.get(guard, SEEDS[0])
    for seed in (*range(first, SEEDS.stop), *range(SEEDS.start, first)):
        changes = cached_trace(trace_directory, seed, without=without)
        for mode in reversed(Mode):
            yield from cut_many(changes, seed, mode, CUT_COUNT)


def shared_out(guards: Iterable[str]) -> list[Any]:
    """Most guards are for the battery."""
    return [guard if guard in QUICK else pytest.param(guard, marks=pytest.mark.battery) for guard in sorted(guards)]


def is_seen(guard: str, cuts: Iterator[CutResult]) -> bool:
    """Whether some cut shows what the guard prevents."""
    pattern = re.compile(LOSS_OF_GUARD.get(guard, LOSS))
    return any(pattern.search(loss) for result in cuts for loss in result.losses)


@pytest.mark.parametrize("guard", shared_out(WRITING))
def test_without_a_guard_of_the_writing_side_something_is_lost(trace_directory: str, guard: str) -> None:
    assert is_seen(guard, results(trace_directory, guard, guard))


@pytest.mark.parametrize("guard", shared_out(BOOTING))
def test_without_a_guard_of_the_boot_something_is_lost(
    trace_directory: str, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BOOTING[guard](monkeypatch)
    assert is_seen(guard, results(trace_directory, guard, WRITING_AND_BOOTING.get(guard)))
