"""The repository holds itself to its own rules: sizes, empty package files, nothing of the machine it was made on."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import run_bkctl

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FLOORS = ("bkctl", "commands", "spark_reports", "runtime", "storage")
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 450

# Split, so that this file does not hold what it looks for.
FORBIDDEN = (
    "/" + "work/",
    "/" + "tmp/w",
    "/" + "root/",
    "/" + "home/",
    "sha" + "red/spec",
    "sha" + "red/golden",
    "pypi" + ".org",
    "python" + "hosted",
    "repo.maven" + ".apache",
    "repo1" + ".maven",
)


def read(path: str) -> str:
    """Text of a file of the repository."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def tracked_files() -> list[str]:
    """Paths that git knows, relative to the root, that still exist."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listing.split("\0") if path and os.path.exists(os.path.join(ROOT, path))]


def our_modules() -> list[str]:
    """Python modules of the five floors and the scripts, without generated ones."""
    return [
        path
        for path in tracked_files()
        if path.endswith(".py") and path.split("/")[0] in (*FLOORS, "scripts") and not path.endswith("_pb2.py")
    ]


def functions(path: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of every function in a module; decorators do not count."""
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{path}: {name} has {lines} lines"
        for path in our_modules()
        for name, lines in functions(path)
        if lines > FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_no_module_is_too_long() -> None:
    lines_by_path = {path: read(path).count("\n") for path in our_modules()}
    assert {path: lines for path, lines in lines_by_path.items() if lines > MODULE_LINES_MAX} == {}


def type_names(path: str) -> Iterator[str]:
    """Names of the classes and type aliases of a module, without type variables."""
    module = ast.parse(read(path))
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target)
    for statement in module.body:
        if isinstance(statement, ast.Assign) and not ast.unparse(statement.value).startswith("TypeVar("):
            names = [ast.unparse(target) for target in statement.targets]
            yield from (name for name in names if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name))


def test_every_type_name_is_used_once() -> None:
    """A search for the name of a type finds one type."""
    places: dict[str, list[str]] = {}
    for path in our_modules():
        for name in type_names(path):
            places.setdefault(name, []).append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


CONSTANT = re.compile(r"(?:^|\.)_?[A-Z][A-Z0-9_]+$")
MAY_BEND = re.compile(r"setattr|\.\s*_?[A-Z][A-Z0-9_]+\b[^=\n]*=")
BENT_CONSTANTS = {
    (
        "tests/crash/guards.py",
        "bkctl.storage.journal.group.JOURNAL_BLOCK_BYTES",
    ),  # the battery breaks the product on purpose
}


def bent_constants(path: str) -> Iterator[str]:
    """Constants of other modules that a module of the tests assigns to, directly or by ``setattr``."""
    text = read(path)
    if not MAY_BEND.search(text):  # most files: to parse all of them takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute) and CONSTANT.search(target.attr):
                    yield ast.unparse(target)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            named = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            yield from (name for name in named if isinstance(name, str) and CONSTANT.search(name))


def test_no_test_bends_a_constant_of_the_product() -> None:
    """What a test must change is an argument, or a field of a struct that is handed in."""
    paths = [path for path in tracked_files() if path.startswith("tests/") and path.endswith(".py")]
    found = {(path, name) for path in paths for name in bent_constants(path)}
    assert found == BENT_CONSTANTS


def test_package_files_only_say_what_is_in_them_but_for_the_public_api() -> None:
    filled = {
        path
        for path in tracked_files()
        if os.path.basename(path) == "__init__.py"
        and path.split("/")[0] in FLOORS
        and any(not isinstance(node, ast.Expr) for node in ast.parse(read(path)).body)
    }
    assert filled <= {"runtime/client/__init__.py"}


def test_nothing_names_the_machine_it_was_made_on() -> None:
    found = []
    for path in tracked_files():
        if os.path.isdir(os.path.join(ROOT, path)):  # a link
            continue
        with open(os.path.join(ROOT, path), "rb") as file:
            content = file.read()
        found += [f"{path}: {word}" for word in FORBIDDEN if word.encode() in content]
    assert found == []


def test_every_protocol_file_has_a_package_of_ours() -> None:
    protocol_files = [path for path in tracked_files() if path.endswith(".proto")]
    assert protocol_files
    assert [path for path in protocol_files if not re.search(r"^package bkctl\.\w+;", read(path), re.MULTILINE)] == []


@pytest.mark.parametrize("path", [f"bkctl/{path}" for path in tracked_files() if path.endswith(".proto")])
def test_generated_code_is_current(path: str, tmp_path: Path) -> None:
    arguments = ("-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", path)
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], cwd=ROOT, check=True)
    for suffix in ("_pb2.py", "_pb2.pyi"):
        name = path.removesuffix(".proto") + suffix
        assert (tmp_path / name).read_text() == read(name)


def test_requirements_lock_every_dependency_with_hashes() -> None:
    settings = tomllib.loads(read("pyproject.toml"))["project"]
    always, extras = settings["dependencies"], settings["optional-dependencies"]
    everything = [*always, *extras["dev"], *extras["spark"], "setuptools"]
    for path, wanted in (("requirements.txt", everything), ("requirements-run.txt", always)):
        locked = read(path)
        for requirement in wanted:
            name = re.split(r"[^A-Za-z0-9-]", requirement)[0]
            assert re.search(rf"^{re.escape(name)}==\S+( ;[^\n]*)? \\\n +--hash=sha256:", locked, re.MULTILINE), name
        assert "://" not in locked
    versions = set(re.findall(r"^\S+==\S+", read("requirements-run.txt"), re.MULTILINE))
    assert versions <= set(re.findall(r"^\S+==\S+", read("requirements.txt"), re.MULTILINE))


SAFE_FROM = {
    "aiohttp": (3, 14, 3),  # CVE-2026-69244, CVE-2026-69243 and CVE-2026-22815: bytes of peers, read without a limit
    "jinja2": (3, 1, 6),  # CVE-2025-27516
}
"""First versions without a known vulnerability, of libraries that work on foreign input."""


@pytest.mark.parametrize("name", sorted(SAFE_FROM))
def test_no_vulnerable_version_can_be_installed(name: str) -> None:
    dependencies = tomllib.loads(read("pyproject.toml"))["project"]["dependencies"]
    (bound,) = (each.removeprefix(f"{name}>=") for each in dependencies if re.match(rf"{name}\b", each))
    assert tuple(map(int, bound.split("."))) >= SAFE_FROM[name]


def test_documents_name_files_that_exist() -> None:
    documents = [path for path in tracked_files() if path.endswith(".md")]
    named = [
        (document, path)
        for document in documents
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", read(document))
        if not path.startswith((".venv/", "R/"))  # R is the root of a cluster's nodes in ZooKeeper
    ]
    assert named
    there = "\n" + "\n".join(tracked_files()) + "\n"
    assert [(document, path) for document, path in named if f"\n{path}" not in there] == []


def readme_commands() -> list[str]:
    """Every ``bkctl`` command that the README shows, without arguments and options: ``bkctl ledger verify``."""
    text = read("README.md")
    blocks = "".join(re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    words = r"bkctl((?: [a-z][a-z-]*)+)"
    shown = re.findall("`" + words, text) + re.findall("^" + words, blocks, re.MULTILINE)
    return sorted({command.strip() for command in shown})


def test_readme_shows_commands() -> None:
    assert len(readme_commands()) >= 4


@pytest.mark.parametrize("command", readme_commands())
def test_readme_commands_exist(command: str) -> None:
    result = run_bkctl(*command.split(), "--help")
    assert result.exit_code == 0, result.stderr
    assert command in re.sub(r"\s+", " ", result.stdout)


def test_readme_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    shown = set(re.findall(r"(?:^|[`$ ] ?)make ([a-z]+)(?:`|  |$)", read("README.md"), re.MULTILINE))
    assert shown <= targets
    assert {"demo", "test"} <= shown
