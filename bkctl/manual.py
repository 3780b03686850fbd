"""``bkctl help PAGE``: the pages for operators that are installed with bkctl."""

from __future__ import annotations

import os
import re

from bkctl.command_tree import members
from bkctl.commands.errors import NotFoundError
from bkctl.commands.parse import near_miss

_DIRECTORY = os.path.join(os.path.dirname(__file__), "docs")
_GROUPS = {"runbooks": "When something is wrong", "guide": "How to", "reference": "Reference"}
"""Directories of pages, with their headings in the list."""
_LINK = re.compile(r"\[([^][]+)\]\(([^()\s]*)\)")
_SIMILARITY_MIN = 0.6


def page_text(name: str) -> str:
    """A page by its name; NotFoundError."""
    pages = _pages()
    if name not in pages:
        meant = near_miss(name, pages, similarity_min=_SIMILARITY_MIN)
        hint = "all pages: bkctl help" if meant is None else f"did you mean {meant}?"
        raise NotFoundError(f"no command or page is named {name}: {hint}")
    return _LINK.sub(lambda link: _link_text(link[1], link[2], pages), _read(pages[name]))


def page_names() -> list[str]:
    """Names of all pages."""
    return list(_pages())


def page_list() -> str:
    """Names and titles of all pages."""
    pages = _pages()
    lines = ["Pages, printed by bkctl help PAGE:"]
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


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().rstrip("\n")


def _link_text(text: str, target: str, pages: dict[str, str]) -> str:
    """A link as a reader of plain text needs it: the page that it leads to, by the name that prints it."""
    stem = os.path.splitext(os.path.basename(target.partition("#")[0]))[0]
    name = next((each for each in pages if each.rpartition("/")[2] == stem), None)
    return text if name is None else f"{text} (bkctl help {name})"
