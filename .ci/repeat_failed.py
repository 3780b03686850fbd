"""Runs the tests that failed in a run of pytest again, once, each alone, and says which of them are only unreliable.

Usage: repeat_failed.py REPORTS_DIRECTORY RUN,... [PYTEST_OPTION...]

REPORTS_DIRECTORY has ``RUN.xml`` (junit) and ``RUN.log`` (the output of ``make``) of every failed run. The exit code is
0 only if at most three tests failed in these runs, and all of them pass now.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from xml.etree import ElementTree

ACCEPTED_MAX = 3
"""Unreliable tests that one run of everything may have."""

NEVER_REPEATED = (
    "tests/sim/",
    "tests/crash/",
    "tests/corruption/",
    "tests/soak/",
    "tests/commands/bookie/test_rebuild_kills.py",
    "tests/commands/cluster/test_life.py",
    "tests/commands/cookie/test_migrate.py",
    "tests/runtime/bookie/collection/test_collected_fences.py",
    "tests/runtime/bookie/collection/test_process.py",
    "tests/runtime/bookie/serving/test_durability.py",
    "tests/runtime/bookie/serving/test_journal_modes.py",
    "tests/storage/engine/test_checkpoint_failures.py",
)
"""Simulations, and batteries that kill or damage: a failure that is rare there is a finding."""

SIMULATOR = re.compile(r"^from tests\.sim\b", re.MULTILINE)
"""A module outside of tests/sim that imports this runs simulations too."""


def failures(report_path: str) -> dict[str, str]:
    """What failed in a run: name of each test (``tests/x/test_y.py::test_z``) and the text of its failures."""
    texts: dict[str, str] = {}
    report = ElementTree.parse(report_path)  # noqa: S314  our own pytest wrote it
    for case in report.iter("testcase"):
        name = node_id(case.get("classname") or "", case.get("name") or "")
        for failure in (*case.findall("failure"), *case.findall("error")):
            text = failure.text or failure.get("message") or "no reason given"
            texts[name] = f"{texts[name]}\n{text}" if name in texts else text
    return texts


def node_id(class_name: str, name: str) -> str:
    """The name that pytest takes, of a test that a junit report calls ``tests.x.test_y.TestClass`` and ``test_z``."""
    directories = class_name.split(".")
    for count in range(len(directories), 0, -1):
        path = "/".join(directories[:count]) + ".py"
        if os.path.isfile(path):
            return "::".join([path, *directories[count:], name])
    return f"{class_name}::{name}"  # of no module: what fails while pytest collects the tests, or in pytest itself


def reason_not_to_repeat(test: str) -> str | None:
    """Why a failure counts at once; None if the test may be tried again."""
    path = test.partition("::")[0]
    if not os.path.isfile(path):
        return "is not the name of a test"
    if path.startswith(NEVER_REPEATED):
        return "is never repeated"
    with open(path, encoding="utf-8") as file:
        return "is a simulation and is never repeated" if SIMULATOR.search(file.read()) else None


def has_ended(log_path: str) -> bool:
    """Whether pytest ran all its tests: its exit code is 1 if some failed, another one if something cut it short."""
    with open(log_path, encoding="utf-8", errors="replace") as file:
        return bool(re.search(r"^make(?:\[\d+\])?: \*\*\* .*\D1$", file.read(), re.MULTILINE))


def passes_alone(test: str, report_path: str, options: list[str]) -> bool:
    """Run one test without workers; a skipped test has not passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *options, f"--junitxml={report_path}", test]
    run = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)  # noqa: S603  the names are of our own tests
    if run.returncode != 0:
        return False
    cases = list(ElementTree.parse(report_path).iter("testcase"))  # noqa: S314  our own pytest wrote it
    return bool(cases) and not any(list(case.iter("skipped")) for case in cases)


def collect(directory: str, runs: list[str]) -> tuple[dict[str, str], list[str]]:
    """All failures of the failed runs by test, and sentences about runs that no list of failures explains."""
    failed: dict[str, str] = {}
    sentences = []
    for run in runs:
        report_path = os.path.join(directory, f"{run}.xml")
        found = failures(report_path) if os.path.exists(report_path) else {}
        if not found:
            sentences.append(f"{run}: failed, and its report names no failed test")
        elif not has_ended(os.path.join(directory, f"{run}.log")):
            sentences.append(f"{run}: was interrupted")
        failed |= found
    return failed, sentences


def repeat(failed: dict[str, str], directory: str, options: list[str]) -> Iterator[str]:
    """Repeat what may be repeated; yields a sentence for every failure that stays one."""
    repeatable = []
    for test in failed:
        if reason := reason_not_to_repeat(test):
            yield f"{test} {reason}"
        else:
            repeatable.append(test)
    if len(repeatable) > ACCEPTED_MAX:
        yield f"{len(repeatable)} tests failed, at most {ACCEPTED_MAX} may be unreliable: none is repeated"
        return
    for number, test in enumerate(repeatable, 1):
        if not passes_alone(test, os.path.join(directory, f"repeated-{number}.xml"), options):
            yield f"{test} failed twice"
            continue
        path = os.path.join(directory, f"unreliable-{number}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{test}\n\n{failed[test]}\n")
        sys.stdout.write(f"unreliable: {test}\n{failed[test]}\n(kept in {path})\n")


def main(directory: str, runs: str, *options: str) -> int:
    """Exit code: 1 when a failure stays one."""
    failed, sentences = collect(directory, runs.split(","))
    sentences += repeat(failed, directory, list(options))
    for sentence in sentences:
        sys.stdout.write(f"failed: {sentence}\n")
    return 1 if sentences else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
