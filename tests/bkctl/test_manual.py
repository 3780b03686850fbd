"""``bkctl help PAGE``: every page that a message names is there; no message names a path of the repository."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.bkctl.conftest import RunMain
from tests.bkctl.test_every_command import COMMANDS
from tests.test_repository import ROOT, our_modules, read

GROUPS = ("runbooks", "guide", "reference")
NAMED = re.compile(r"bkctl help ([a-z][a-z/-]*)")
REPOSITORY_PATH = re.compile(r"\b(?:docs|runbooks|guide|reference)/[\w./-]*\.md\b|\b[\w-]+\.md\b")


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Module and text of every string in the code that is no docstring, and of every help page."""
    return [*_texts_of_modules(), *((f"bkctl {name} --help", command.help) for name, command in COMMANDS.items())]


def _texts_of_modules() -> Iterator[tuple[str, str]]:
    for path in our_modules():
        if path.startswith("scripts/"):
            continue
        tree = ast.parse(read(path))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield path, node.value


def page_names(listing: str) -> list[str]:
    """Names in the list of pages."""
    return re.findall(r"^  (\S+)  ", listing.partition("\nPages, ")[2], re.MULTILINE)


def test_the_pages_are_listed_and_printed(run_main: RunMain) -> None:
    names = page_names(run_main("help").stdout)
    assert {"start-here", "lost-index", "replace-a-bookie", "exit-codes", "guide/audit"} <= set(names)
    for name in names:
        stem = name.rpartition("/")[2]
        (path,) = (path for group in GROUPS for path in Path(ROOT, "docs", group).glob(f"{stem}.md"))
        title = path.read_text().partition("\n")[0]
        page = run_main("help", name)
        assert (page.exit_code, page.stdout.partition("\n")[0], page.stderr) == (0, title, "")
        assert set(NAMED.findall(page.stdout)) <= set(names)


def test_links_lead_to_pages(run_main: RunMain) -> None:
    page = run_main("help", "lost-index").stdout
    assert "see a lost disk (bkctl help lost-disk)" in page
    assert ".md" not in page
    assert "| autorecovery.yml |" in run_main("help", "kubernetes").stdout, "a file that is no page"


def test_a_command_wins_over_a_page_and_a_wrong_name_gets_a_hint(run_main: RunMain) -> None:
    assert run_main("help", "audit").stdout == run_main("audit", "--help").stdout
    assert run_main("help", "ledger", "list").stdout == run_main("ledger", "list", "--help").stdout
    result = run_main("help", "lost-indx")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "error: no command or page is named lost-indx: did you mean lost-index?\n"
    assert "all pages: bkctl help" in run_main("help", "zzz").stderr


def test_every_page_that_a_message_names_exists(run_main: RunMain) -> None:
    names = {*page_names(run_main("help").stdout), *(name.split()[0] for name in COMMANDS)}
    named = {(path, name) for path, text in messages() for name in NAMED.findall(text)}
    assert {name for _, name in named} >= {"lost-index", "lost-entries", "lost-disk", "full-disk"}
    assert {(path, name) for path, name in named if name not in names} == set()


def test_no_message_names_a_path_of_the_repository() -> None:
    found = [(path, text) for path, text in messages() if REPOSITORY_PATH.search(text)]
    assert [each for each in found if not each[0].endswith("manual.py")] == []
