"""Help pages: plain text, with style on a terminal. A page shows its own options and lists the names of shared ones.

Typer's rich pages are not used: importing and drawing them takes longer than the rest of ``--help``.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from typer.core import TyperCommand, TyperGroup

GENERAL, CLUSTER, BOOKIE, STORAGE, COPYING = "General", "Cluster", "Bookie", "Storage", "Copying"
LISTING, CHANGE = "Listing", "Change"
"""Groups of shared options."""

_LISTED_BY_GROUP = (GENERAL, CLUSTER, BOOKIE, STORAGE, COPYING)
_SENTENCE_MAX = 1000
_HEADING = re.compile(r"[A-Z][a-z ]+:")
_NAME = re.compile(r"(?<=^  )(?:-\S*(?: \S+)*|\S+(?: \S+)*(?=  ))")


class HelpCommand(TyperCommand):
    """A command with a plain help page; its epilog is an example."""

    shown_groups: frozenset[str] = frozenset()
    """Shared options that this page explains itself."""

    def get_help(self, ctx: Any) -> str:
        """The page, for ``typer.echo``, which removes the style where the context does not want it."""
        return styled(super().get_help(ctx))

    def get_short_help_str(self, limit: int = _SENTENCE_MAX) -> str:  # noqa: ARG002  click's signature
        """The whole first sentence, for the page of the group; click would shorten it."""
        return super().get_short_help_str(_SENTENCE_MAX)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, and the options of this command only."""
        own = [each for each in self.params if group_of(each) in {None, *self.shown_groups}]
        for heading, kind in (("Arguments", "argument"), ("Options", "option")):
            records = [each.get_help_record(ctx) for each in own if each.param_type_name == kind]
            if records:
                with formatter.section(heading):
                    formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  click's signature
        """The example, and the shared options that the command accepts."""
        shared = f"Shared options: {', '.join(self.shared_options())} (see bkctl options)"
        formatter.write(f"\nExample:\n  {self.epilog}\n\n")
        formatter.write(textwrap.fill(shared, formatter.width, break_on_hyphens=False) + "\n")

    def shared_options(self) -> list[str]:
        """Groups of options of which all are accepted, then single options."""
        found: dict[str, list[Any]] = {group: [] for group in (*_LISTED_BY_GROUP, LISTING, CHANGE)}
        for each in self.params:
            group = group_of(each)
            if group is not None and group not in self.shown_groups:
                found[group].append(each)
        names: list[str] = []
        for group, options in found.items():
            if options and group in _LISTED_BY_GROUP and not any(each.hidden for each in options):
                names.append(group.lower())
            else:
                names += [each.opts[0] for each in options if not each.hidden]
        return names


class OptionsPage(HelpCommand):
    """The page of ``bkctl options``: the shared options by group."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """A heading for each group, without blank lines, so that the page fits a small terminal."""
        formatter.write("Others are explained by bkctl bookie start --help, recover failed-bookie --help.\n")
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
    """The group of a shared option; None for a command's own options and arguments."""
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
