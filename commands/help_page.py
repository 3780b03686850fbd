"""Help pages: plain text in whole sentences; a terminal sees headings and names set off.

Typer's rich pages are not used: importing and drawing them takes longer than all else that ``--help`` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup

_SENTENCE_MAX = 1000
_HEADING = re.compile(r"[A-Z]\w+:")
_NAME = re.compile(r"(?<=^  )(?:-\S*(?: \S+)*|\S+(?: \S+)*(?=  ))")


class HelpCommand(TyperCommand):
    """A command with such a page."""

    def get_help(self, ctx: Any) -> str:
        """The page, for ``typer.echo``, which takes the style out where there is no terminal."""
        return styled(super().get_help(ctx), os.environ)

    def get_short_help_str(self, limit: int = _SENTENCE_MAX) -> str:  # noqa: ARG002  click's signature
        """The first sentence, for the page of the group to wrap, where click would cut it off."""
        return super().get_short_help_str(_SENTENCE_MAX)


class HelpGroup(TyperGroup):
    """A group with such a page."""

    def get_help(self, ctx: Any) -> str:
        """As that of a command."""
        return styled(super().get_help(ctx), os.environ)

    def get_short_help_str(self, limit: int = _SENTENCE_MAX) -> str:  # noqa: ARG002  click's signature
        """As that of a command."""
        return super().get_short_help_str(_SENTENCE_MAX)


def styled(page: str, environment: Mapping[str, str]) -> str:
    """The page with bold headings and coloured names, unless the environment wants no colour."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return page
    lines = []
    is_list = False
    for line in page.split("\n"):
        if heading := _HEADING.match(line):
            is_list = heading[0] != "Usage:"  # what follows the usage is running text
            lines.append(f"\x1b[1m{heading[0]}\x1b[0m{line[heading.end() :]}")
        else:
            lines.append(_NAME.sub("\x1b[36m\\g<0>\x1b[0m", line) if is_list else line)
    return "\n".join(lines)
