"""Property tests: the gate draws the same examples for the same commit, ``make fuzz`` new ones every time."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.processes import COMMAND_TIMEOUT_S
from tests.test_repository import ROOT

PROPERTY = "tests/storage/test_checked_text.py::test_lines_come_back"
LOADING_MORE_MODULES = "tests/bkctl/test_main.py::test_no_command_has_one_spelling_for_two_options"


def examples(*arguments: str, hash_seed: str = "0") -> list[str]:
    """What the property was tried with, in order, by a pytest of its own."""
    command = [sys.executable, "-P", "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", *arguments, PROPERTY]
    finished = subprocess.run(
        [*command, "--hypothesis-verbosity=verbose"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return re.findall(r"^ +lines=(.*?),\n\)$", finished.stdout, re.MULTILINE | re.DOTALL)


@pytest.mark.battery
def test_the_gate_draws_the_same_examples_whatever_ran_before() -> None:
    alone = examples("--hypothesis-profile=ci")
    assert len(alone) >= 100
    assert alone == examples("--hypothesis-profile=ci", LOADING_MORE_MODULES, hash_seed="1")


def test_every_round_of_fuzzing_draws_others() -> None:
    one, another = (examples("--hypothesis-profile=default", "--property-rounds=2") for _ in range(2))
    halves = [set(one[: len(one) // 2]), set(one[len(one) // 2 :]), set(another)]
    assert len(one) >= 200
    assert all(len(left - right) > 50 for left in halves for right in halves if left is not right)
