"""``.ci/repeat_failed.py`` on real runs of pytest: what is tried again, what is unreliable, what fails the run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_repository import ROOT

SCRIPT = os.path.join(ROOT, ".ci", "repeat_failed.py")

FAILS_ONCE = """
import os
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_once(number):
    path = f"{{os.path.basename(__file__)}}-{{number}}"
    if not os.path.exists(path):
        open(path, "x").close()
        raise ValueError(f"the first failure of {{number}}")

class TestGroup:
    def test_passes(self):
        pass
"""

ALWAYS_FAILS = "def test_always():\n    raise ValueError('always')\n"

SKIPS_THEN = """
import os
import pytest

def test_once():
    if os.path.exists("skip-now"):
        pytest.skip("not here")
    open("skip-now", "x").close()
    raise ValueError
"""

ENDS_THE_RUN = "import pytest\n\ndef test_ends():\n    pytest.exit('out of patience')\n"


class SmallProject:
    """A small project with a Makefile, below a temporary directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "reports").mkdir()
        (directory / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
        command = f"{sys.executable} -m pytest -q -n 0 -p no:cacheprovider --junitxml=reports/test.xml $(TESTS)"
        (directory / "Makefile").write_text(f"test:\n\t{command}\n")

    def write(self, path: str, text: str) -> None:
        """Add a test module."""
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_text(text)

    def run_tests(self, tests: str = "tests") -> None:
        """Run them all, with at least one failure, as ``.ci/run`` does."""
        with open(self.directory / "reports" / "test.log", "w") as log:
            command = ["make", "test", f"TESTS={tests}"]
            run = subprocess.run(command, cwd=self.directory, check=False, stdout=log, stderr=subprocess.STDOUT)
        assert run.returncode != 0

    def repeat(self) -> tuple[int, str]:
        """Exit code and output of the script."""
        command = [sys.executable, SCRIPT, "reports", "test", "-p", "no:cacheprovider"]
        run = subprocess.run(command, cwd=self.directory, check=False, capture_output=True, text=True)
        assert run.stderr == ""
        return run.returncode, run.stdout


@pytest.fixture
def project(tmp_path: Path) -> SmallProject:
    return SmallProject(tmp_path)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("repeat_failed", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdicts(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(("unreliable: ", "failed: "))]


def test_tests_that_pass_alone_are_unreliable_and_their_first_failure_is_kept(project: SmallProject) -> None:
    project.write("tests/net/test_a.py", FAILS_ONCE.format(count=3))
    project.run_tests()
    code, output = project.repeat()
    assert code == 0
    assert verdicts(output) == [f"unreliable: tests/net/test_a.py::test_once[{number}]" for number in range(3)]
    assert "ValueError: the first failure of 2" in output
    assert "the first failure of 2" in (project.directory / "reports" / "unreliable-3.txt").read_text()
    skips = [sys.executable, os.path.join(ROOT, ".ci", "check_skips.py"), os.devnull]
    reports = sorted(str(path) for path in (project.directory / "reports").glob("*.xml"))
    assert len(reports) == 4
    assert subprocess.run([*skips, *reports], check=False, capture_output=True, text=True).stdout == (
        "skips: 0 not allowed\n"
    )


def test_at_most_three_are_accepted(project: SmallProject) -> None:
    project.write("tests/test_a.py", FAILS_ONCE.format(count=2))
    project.write("tests/test_b.py", FAILS_ONCE.format(count=2))
    project.run_tests()
    assert project.repeat() == (
        1,
        "failed: 4 tests failed, at most 3 may be unreliable: none is repeated\n",
    )


def test_a_test_that_fails_twice_fails_the_run(project: SmallProject) -> None:
    project.write("tests/test_a.py", FAILS_ONCE.format(count=1))
    project.write("tests/test_b.py", ALWAYS_FAILS)
    project.run_tests()
    code, output = project.repeat()
    assert code == 1
    assert verdicts(output) == [
        "unreliable: tests/test_a.py::test_once[0]",
        "failed: tests/test_b.py::test_always failed twice",
    ]


@pytest.mark.parametrize(
    ("path", "first_line", "reason"),
    [
        ("tests/sim/test_a.py", "", "is never repeated"),
        ("tests/crash/test_a.py", "", "is never repeated"),
        ("tests/net/test_a.py", "from tests.sim.loop import x", "is a simulation and is never repeated"),
    ],
)
def test_simulations_and_batteries_are_never_repeated(
    project: SmallProject, path: str, first_line: str, reason: str
) -> None:
    project.write("tests/sim/loop.py", "x = 1\n")
    project.write(path, first_line + FAILS_ONCE.format(count=1))
    project.run_tests()
    assert project.repeat() == (1, f"failed: {path}::test_once[0] {reason}\n")


def test_a_test_that_is_skipped_then_has_not_passed(project: SmallProject) -> None:
    project.write("tests/test_a.py", SKIPS_THEN)
    project.run_tests()
    code, output = project.repeat()
    assert (code, verdicts(output)) == (1, ["failed: tests/test_a.py::test_once failed twice"])


def test_a_module_that_cannot_be_collected_fails_the_run(project: SmallProject) -> None:
    project.write("tests/test_a.py", "import no_such_module\n")
    project.run_tests()
    code, output = project.repeat()
    assert code == 1
    assert "is not the name of a test" in output


def test_a_run_that_ended_early_fails_whatever_passes_then(project: SmallProject) -> None:
    """The tests after the interruption did not run."""
    project.write("tests/test_a.py", FAILS_ONCE.format(count=1))
    project.write("tests/test_b.py", ENDS_THE_RUN)
    project.run_tests()
    code, output = project.repeat()
    assert code == 1
    assert "failed: test: was interrupted" in verdicts(output)


def test_a_run_without_a_report_fails(project: SmallProject) -> None:
    project.run_tests("no_such_directory")
    assert project.repeat() == (1, "failed: test: failed, and its report names no failed test\n")


def test_every_place_that_is_never_repeated_exists() -> None:
    places = script().NEVER_REPEATED
    assert [place for place in places if not os.path.exists(os.path.join(ROOT, place))] == []
