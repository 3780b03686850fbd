"""Runs of the crash battery: trace a workload, cut it at many places, boot what each cut leaves, and look.

Everything follows from the seed of a run, but for where the calls of LevelDB's own thread stand in the trace.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple, cast

from tests.crash.checker import Expectation, find_losses
from tests.crash.model_disk import Mode, ModelDisk, write_tree
from tests.crash.trace import TRACED, Change, Note, read_trace
from tests.crash.workload import config_of

STEP_COUNT = 60


class Cut(NamedTuple):
    """A power failure: after so many changes, with the outcome that the seed draws."""

    seed: int
    mode: Mode
    change_count: int
    outcome: int

    def __str__(self) -> str:
        return f"--seed {self.seed} --mode {self.mode.value} --cut {self.change_count} --outcome {self.outcome}"


class CutResult(NamedTuple):
    """What was wrong after a cut; nothing if it is empty."""

    cut: Cut
    losses: list[str]


def why_not_traceable() -> str | None:
    """Why this process cannot trace others, or None if it can."""
    program = shutil.which("strace")
    if program is None:
        return "strace is not installed"
    probe = subprocess.run([program, "-e", "trace=none", "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "this process may not trace others"


def trace_workload(
    directory: str, seed: int, *, step_count: int = STEP_COUNT, without: str | None = None
) -> list[Change]:
    """Run a workload below ``directory`` under strace; its changes and notes."""
    root, notes, log = (os.path.join(directory, name) for name in ("root", "notes", "strace.log"))
    os.mkdir(root)
    command = [sys.executable, "-P", "-m", "tests.crash.workload", root, notes]
    command += ["--seed", str(seed), "--steps", str(step_count)]
    if without is not None:
        command += ["--without", without]
    tracer = ["strace", "-f", "-xx", "-s", "10000000", "-e", f"trace={TRACED}", "-o", log]
    subprocess.run([*tracer, *command], check=True, timeout=300, cwd=_project_directory(), env=_environment())
    return read_trace(log, root)


def cached_trace(directory: str, seed: int, *, without: str | None = None) -> list[Change]:
    """As ``trace_workload``; processes that give the same ``directory`` trace each workload only once."""
    path = os.path.join(directory, f"{without}-{seed}.trace")
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if data := file.read():
            return cast("list[Change]", pickle.loads(data))
        with tempfile.TemporaryDirectory() as workplace:
            changes = trace_workload(workplace, seed, without=without)
        pickle.dump(changes, file)
        return changes


def cut_many(changes: list[Change], seed: int, mode: Mode, cut_count: int) -> Iterator[CutResult]:
    """Cut a trace at ``cut_count`` places, drawn from its seed."""
    chance = random.Random(f"cuts {seed} {mode.value}")
    places = sorted(chance.randint(0, len(changes)) for _ in range(cut_count))
    disk = ModelDisk(mode)
    applied = 0
    for outcome, place in enumerate(places):
        while applied < place:
            disk.apply(applied, changes[applied])
            applied += 1
        cut = Cut(seed, mode, place, outcome)
        yield CutResult(cut, losses_after(disk, changes, cut))


def cut_once(changes: list[Change], cut: Cut) -> CutResult:
    """One cut again."""
    disk = ModelDisk(cut.mode)
    for number, change in enumerate(changes[: cut.change_count]):
        disk.apply(number, change)
    return CutResult(cut, losses_after(disk, changes, cut))


def losses_after(disk: ModelDisk, changes: list[Change], cut: Cut) -> list[str]:
    """What is wrong after the outcome of a cut that is drawn from the disk as it stands there."""
    tree = disk.survivors(random.Random(f"outcome {cut.seed} {cut.change_count} {cut.outcome}"))
    expected = Expectation(change.text for change in changes[: cut.change_count] if isinstance(change, Note))
    with tempfile.TemporaryDirectory(dir=_fast_directory()) as directory:
        root = os.path.join(directory, "root")
        write_tree(root, tree)
        config = config_of(root, cut.seed)
        losses = find_losses(config, expected)
        if not losses and cut.outcome % 8 == 0:
            losses = [f"at the second boot: {loss}" for loss in find_losses(config, expected)]
        return losses


def _project_directory() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _environment() -> dict[str, str]:
    # The child runs with -P, so it finds the tests only if told where they are; and its run must repeat exactly.
    path = os.pathsep.join(filter(None, (_project_directory(), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}


def _fast_directory() -> str | None:
    """A directory in memory, if there is one: the model disk decides what is durable, not this one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
