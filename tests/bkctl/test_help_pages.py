"""What every help page says. All that is a command's own fits a small terminal; the page has one example."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from typer.core import TyperGroup

from bkctl.commands.help_page import GROUPS as SHARED
from bkctl.commands.help_page import group_of
from tests.bkctl.conftest import RunMain
from tests.bkctl.test_every_command import APP, COMMANDS, is_taken

LINES_MAX = 25
WIDTH = "80"
HEADINGS = [f"{group} options:" for group in SHARED]


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
def test_what_is_its_own_on_a_page_fits_a_small_terminal(run_main: RunMain, words: tuple[str, ...]) -> None:
    page = run_main(*words, "--help", COLUMNS=WIDTH).stdout.splitlines()
    shared = next((number for number, line in enumerate(page) if line in HEADINGS and words != ("options",)), len(page))
    # The first page has a line per group; these groups also have the page of a command.
    assert 3 < shared <= (LINES_MAX if words else LINES_MAX + 1) or words in {("audit",), ("recover",)}
    assert max(map(len, page)) <= int(WIDTH)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_page_shows_every_option_that_the_command_accepts(run_main: RunMain, name: str) -> None:
    page = run_main(*name.split(), "--help", COLUMNS=WIDTH).stdout
    own, *shared = re.split(r"^(?=[A-Z][a-z]+ options:$)", page, flags=re.MULTILINE)
    assert {part.partition("\n")[0] for part in shared} <= set(HEADINGS)
    for each in COMMANDS[name].params:
        if each.param_type_name == "option" and not each.hidden and "--help" not in each.opts:
            group = group_of(each)
            place = own if group is None else next(part for part in shared if part.startswith(f"{group} options"))
            assert re.search(rf"^  (-\w, )?{each.opts[0]}\b", place, re.MULTILINE), each.opts


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_usage_line_shows_which_arguments_can_be_repeated(run_main: RunMain, name: str) -> None:
    usage = " ".join(run_main(*name.split(), "--help", COLUMNS=WIDTH).stdout.partition("\n\n")[0].split())
    repeatable = [each for each in COMMANDS[name].params if each.param_type_name == "argument" and each.nargs == -1]
    assert usage.count("...") == len(repeatable), usage


def test_the_page_of_a_group_with_a_default_command_shows_its_options(run_main: RunMain) -> None:
    assert "\n  --spark " in run_main("audit", "--help").stdout
    assert "\n  --open-ledgers " in run_main("recover", "--help").stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_one_example_that_can_be_parsed(run_main: RunMain, name: str) -> None:
    page = run_main(*name.split(), "--help", COLUMNS=WIDTH).stdout
    assert page.count("Example:") == 1
    example = page.partition("Example:\n  ")[2].partition("\n")[0]
    assert example.startswith(f"bkctl {name}")
    assert is_taken(shlex.split(example)[1:])


def test_help_has_the_spellings_of_git_and_kubectl(run_main: RunMain) -> None:
    for words in (("ledger",), ("ledger", "list"), ("options",)):
        assert run_main("help", *words).stdout == run_main(*words, "--help").stdout
    assert run_main("help").stdout.startswith(run_main("--help").stdout)
    assert run_main("options").stdout == run_main("options", "--help").stdout
