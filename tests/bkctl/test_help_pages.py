"""Every help page fits a small terminal; the page of a command has one example, and it can be parsed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
from typer.core import TyperGroup

from tests.bkctl.conftest import RunMain
from tests.bkctl.test_every_command import APP, COMMANDS, is_taken

LINES_MAX = 25
WIDTH = "80"


def groups(member: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each group, the root included."""
    if isinstance(member, TyperGroup):
        yield words
        for name in member.list_commands(None):  # type: ignore[arg-type]
            yield from groups(member.get_command(None, name), (*words, name))  # type: ignore[arg-type]


GROUPS = list(groups(APP))


@pytest.mark.parametrize(
    "words", [*GROUPS, ("options",), *(tuple(name.split()) for name in sorted(COMMANDS))], ids=" ".join
)
def test_a_page_fits_a_small_terminal(run_main: RunMain, words: tuple[str, ...]) -> None:
    page = run_main(*words, "--help", COLUMNS=WIDTH).stdout.splitlines()
    assert 3 < len(page) <= LINES_MAX
    assert max(map(len, page)) <= int(WIDTH)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_one_example_that_can_be_parsed(run_main: RunMain, name: str) -> None:
    page = run_main(*name.split(), "--help", COLUMNS=WIDTH).stdout
    assert page.count("Example:") == 1
    example = page.partition("Example:\n  ")[2].partition("\n")[0]
    assert example.startswith(f"bkctl {name}")
    assert is_taken(shlex.split(example)[1:])
    assert " ".join(page.split()).endswith("(see bkctl options)")


def test_help_has_the_spellings_of_git_and_kubectl(run_main: RunMain) -> None:
    for words in ((), ("ledger",), ("ledger", "list"), ("options",)):
        assert run_main("help", *words).stdout == run_main(*words, "--help").stdout
    assert run_main("options").stdout == run_main("options", "--help").stdout
