"""Help pages: plain text, with style on a terminal. A page shows its own options first, then the shared ones in groups.

Typer's rich pages are not used: importing and drawing them takes longer than the rest of ``--help``.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

GENERAL, CLUSTER, BOOKIE, STORAGE, COPYING = "General", "Cluster", "Bookie", "Storage", "Copying"
LISTING, CHANGE = "Listing", "Change"
"""Groups of shared options."""
INVENTORY = "Inventory"
"""A group of ``bkctl audit``'s own options."""

GROUPS = (INVENTORY, COPYING, BOOKIE, STORAGE, LISTING, CHANGE, CLUSTER, GENERAL)
"""In the order of a page."""
_SENTENCE_MAX = 1000
_HEADING = re.compile(r"[A-Z][a-z ]+:")
_NAME = re.compile(r"(?<=^  )(?:-\S*(?: \S+)*|\S+(?: \S+)*(?=  ))")


class HelpCommand(TyperCommand):
    """A command with a plain help page; its epilog is an example."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does, but an option without its value is an error of this command, too."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def get_help(self, ctx: Any) -> str:
        """The page, for ``typer.echo``, which removes the style where the context does not want it."""
        return styled(super().get_help(ctx))

    def get_short_help_str(self, limit: int = _SENTENCE_MAX) -> str:  # noqa: ARG002  click's signature
        """The whole first sentence, for the page of the group; click would shorten it."""
        return super().get_short_help_str(_SENTENCE_MAX)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The example, the command's own arguments and options, then the shared options that it accepts."""
        formatter.write(f"\nExample:\n  {self.epilog}\n")
        self.format_parameters(ctx, formatter)

    def format_parameters(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options."""
        headings = ("Arguments", "Options", *(f"{group} options" for group in GROUPS))
        sections: dict[str, list[Any]] = {heading: [] for heading in headings}
        for each in self.params:
            group = group_of(each)
            own_heading = "Arguments" if each.param_type_name == "argument" else "Options"
            sections[own_heading if group is None else f"{group} options"].append(each.get_help_record(ctx))
        for heading, records in sections.items():
            if shown := [record for record in records if record is not None]:
                with formatter.section(heading):
                    formatter.write_dl(shown)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Nothing: the example is above the options."""


class OptionsPage(HelpCommand):
    """The page of ``bkctl options``: the shared options by group."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """A heading for each group, without blank lines, so that the page fits a small terminal."""
        formatter.write("Others are explained by the pages of the commands.\n")
        for group in (GENERAL, CLUSTER, LISTING, CHANGE):
            formatter.write_heading(f"{group} options")
            with formatter.indentation():
                formatter.write_dl([each.get_help_record(ctx) for each in self.params if group_of(each) == group])


class HelpGroup(TyperGroup):
    """A group with a page of its commands."""

    def get_help(self, ctx: Any) -> str:
        """As that of a command."""
        return styled(super().get_help(ctx))

    def get_short_help_str(self, limit: int = _SENTENCE_MAX) -> str:  # noqa: ARG002  click's signature
        """As that of a command."""
        return super().get_short_help_str(_SENTENCE_MAX)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """No options: they are on the pages of the commands."""
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Where the options are explained."""
        text = f"Run {ctx.command_path} COMMAND --help; shared options: bkctl options."
        formatter.write(f"\n{textwrap.fill(text, formatter.width)}\n")


def group_of(parameter: Any) -> str | None:
    """The group of an option; None for arguments and the other options of a command."""
    group: str | None = parameter.rich_help_panel
    return group


def styled(page: str) -> str:
    """The page with bold headings and names. Colours are for severities."""
    lines = []
    is_list = False
    for line in page.split("\n"):
        if heading := _HEADING.match(line):
            is_list = heading[0] != "Usage:"  # the text after the usage is prose
            lines.append(f"\x1b[1m{heading[0]}\x1b[0m{line[heading.end() :]}")
        else:
            lines.append(_NAME.sub("\x1b[1m\\g<0>\x1b[0m", line) if is_list else line)
    return "\n".join(lines)
