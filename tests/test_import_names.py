"""``bkctl`` is the only import name: from a checkout, in the tests, in child processes and on Spark's executors.

The directories of the layers stand at the top of a checkout, so ``import storage`` would succeed there, and would load
each module a second time, with other classes.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bkctl
from bkctl.runtime.autorecovery.child import MODULE
from bkctl.storage.entry_log.compaction_scan import CHILD_MODULE
from tests.test_repository import FLOORS, ROOT, read, tracked_files

OLD_NAMES = frozenset(FLOORS) - {"bkctl"}
MAY_IMPORT_OLD_NAME = re.compile(rf"(?:\bimport|\bfrom|,)\s+(?:{'|'.join(sorted(OLD_NAMES))})\b")


def imported_names(path: str) -> set[str]:
    """First part of every module that a file imports; nothing if none of them can be an old name."""
    text = read(path)
    if not MAY_IMPORT_OLD_NAME.search(text):  # most files: to parse all of them takes seconds
        return set()
    nodes = list(ast.walk(ast.parse(text)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def loaded_twice() -> list[str]:
    """Files of the project that two modules of this process were made from."""
    files = [os.path.realpath(str(getattr(module, "__file__", None))) for module in list(sys.modules.values())]
    ours = tuple(os.path.join(os.path.realpath(ROOT), name, "") for name in FLOORS)
    return sorted({file for file in files if file.startswith(ours) and files.count(file) > 1})


def test_the_layers_are_links_to_the_directories_at_the_top() -> None:
    for name in OLD_NAMES:
        assert os.readlink(Path(ROOT) / "bkctl" / name) == f"../{name}"


def test_no_file_imports_an_old_name() -> None:
    paths = [path for path in tracked_files() if path.endswith(".py")]
    assert {path for path in paths if imported_names(path) & OLD_NAMES} == set()


def test_no_module_of_the_tests_is_loaded_twice() -> None:
    assert os.path.realpath(bkctl.__file__) == os.path.realpath(Path(ROOT) / "bkctl" / "__init__.py")
    assert OLD_NAMES & sys.modules.keys() == set()
    assert loaded_twice() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "bkctl", "storage", "check", "--help"),
        ("-P", "-m", "bkctl.storage.adapters.child_main", CHILD_MODULE),
        ("-P", "-m", MODULE),
    ],
    ids=["checkout", "child of the pool", "child of a bookie"],
)
def test_no_process_loads_an_old_name(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    ended = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    names = set(re.findall(r"^import time:.*\|\s+(\S+)$", ended.stderr, re.MULTILINE))
    assert any(name.startswith("bkctl.") for name in names), ended.stderr
    assert {name for name in names if name.partition(".")[0] in OLD_NAMES} == set()
