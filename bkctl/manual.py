"""``bkctl help PAGE``: the pages for operators that are installed with bkctl."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping

import typer

from bkctl.command_tree import members
from bkctl.commands.errors import NotFoundError
from bkctl.commands.parse import near_miss

_DIRECTORY = os.path.join(os.path.dirname(__file__), "docs")
_GROUPS = {"runbooks": "When something is wrong", "guide": "How to", "reference": "Reference"}
"""Directories of pages, with their headings in the list."""
_LINK = re.compile(r"\[([^][]+)\]\(([^()\s]*)\)")
_SIMILARITY_MIN = 0.6
_FENCE = "```"
_BEGINS_BLOCK = re.compile(r"#|\||\s*(?:[-*]|\d+\.) ")
"""A heading, a row of a table, an item of a list: it does not go on in the line above."""
_COMMAND = re.compile(r"`[^`]+`")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_BEGINS_ITEM = re.compile(r"\s*(?:(?:[-*]|\d+\.) |\| ?)?")


def page_text(name: str, width: int | None = None) -> str:
    """A page by its name, its text in lines of at most ``width`` characters; NotFoundError."""
    pages = _pages()
    if name not in pages:
        meant = near_miss(name, pages, similarity_min=_SIMILARITY_MIN)
        hint = "all pages: bkctl help" if meant is None else f"did you mean {meant}?"
        raise NotFoundError(f"no command or page is named {name}: {hint}")
    text = _LINK.sub(lambda link: _link_text(link[1], link[2], pages), _read(pages[name]))
    return text if width is None else "\n".join(_fitted(text, width))


def page_names() -> list[str]:
    """Names of all pages."""
    return list(_pages())


def page_list() -> str:
    """Names and titles of all pages."""
    pages = _pages()
    lines = ["Pages, shown by bkctl help PAGE (on a terminal in $PAGER or less; --no-pager: without):"]
    width = max(map(len, pages))
    for group, heading in _GROUPS.items():
        lines += ["", f"{heading}:"]
        for name, path in pages.items():
            if os.path.basename(os.path.dirname(path)) == group:
                title = _read(path).partition("\n")[0].lstrip("# ")
                lines.append(f"  {name.ljust(width)}  {title}")
    return "\n".join(lines)


def _pages() -> dict[str, str]:
    """Paths by name. A page that is named like a command needs its directory: ``guide/audit``."""
    commands = members("")
    return {
        f"{group}/{name}" if name in commands else name: os.path.join(_DIRECTORY, group, file)
        for group in _GROUPS
        for file in sorted(os.listdir(os.path.join(_DIRECTORY, group)))
        for name, extension in [os.path.splitext(file)]
        if extension == ".md"
    }


def _fitted(text: str, width: int) -> Iterator[str]:
    """Lines of a page for a terminal. Commands stay in one line each, because a shell would run the parts."""
    is_code = False
    paragraph: list[str] = []
    for line in [*text.split("\n"), ""]:
        is_fence = line.lstrip().startswith(_FENCE)
        begins_another = is_code or is_fence or not line.strip() or _BEGINS_BLOCK.match(line)
        if begins_another and paragraph:
            indent = _BEGINS_ITEM.match(paragraph[0])
            joined = " ".join([paragraph[0], *(each.strip() for each in paragraph[1:])])
            whole_commands = _COMMAND.sub(lambda command: command[0].replace(" ", _NO_BREAK), joined)
            below = " " * len(indent[0]) if indent else ""
            for each in textwrap.wrap(
                whole_commands, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
            ):
                yield each.replace(_NO_BREAK, " ")
            paragraph = []
        if is_fence:
            is_code = not is_code
        if is_code or is_fence or not line.strip():
            yield line
        else:
            paragraph.append(line)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().rstrip("\n")


def _link_text(text: str, target: str, pages: dict[str, str]) -> str:
    """A link as a reader of plain text needs it: the page that it leads to, by the name that prints it."""
    stem, extension = os.path.splitext(os.path.basename(target.partition("#")[0]))
    name = next((each for each in pages if extension == ".md" and each.rpartition("/")[2] == stem), None)
    return text if name is None else f"{text} (bkctl help {name})"


NO_PAGER = "--no-pager"
_DEFAULT = "less"
_STYLE = re.compile(r"\x1b\[\d*m")
_LESS_OPTIONS = "FRX"
"""Of less, unless LESS is set: end if the page fits the screen, show styles, leave the page on the screen."""


def width_on_terminal() -> int | None:
    """Columns of the terminal that stdout is; None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_page(text: str, environment: Mapping[str, str], *, is_paged: bool, is_colored: bool | None) -> None:
    """Print a page; on a terminal through ``$PAGER`` or less, unless ``is_paged`` is false or there is none."""
    command = _words(environment.get("PAGER") or _DEFAULT)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not (is_paged and is_terminal and command and shutil.which(command[0])):
        typer.echo(text, color=is_colored)
        return
    sys.stdout.flush()
    shown = _STYLE.sub("", text) if is_colored is False else text
    before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the pager, which gets it too
    try:
        variables = {**environment, "LESS": environment.get("LESS", _LESS_OPTIONS)}
        subprocess.run(command, input=f"{shown}\n".encode(), env=variables, check=False)  # noqa: S603  the user's pager
    finally:
        signal.signal(signal.SIGINT, before)


def _words(command: str) -> list[str]:
    """Words of a command line; none if a shell could not run it either."""
    try:
        return shlex.split(command)
    except ValueError:  # a quote that does not close
        return []
