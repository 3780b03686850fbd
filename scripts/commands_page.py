"""Writes docs/reference/commands.md from the commands of the app: ``make commands-page``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from bkctl.app import build_app
from bkctl.commands.context import Effect
from bkctl.commands.help_page import BOOKIE, CHANGE, CLUSTER, COPYING, GENERAL, INVENTORY, LISTING, STORAGE, group_of

HEAD = """# Commands

This page is generated from the code by `make commands-page`.

`bkctl COMMAND --help`, or `bkctl help COMMAND`, shows the same for one command, with the shared options written out.
Options can be given before or after the command's name, except those that a command has for itself.

The effect of a command decides how it asks before a change ([safety model](safety-model.md#the-safety-model)):

| effect | confirmation |
|---|---|
| looks | changes nothing |
| reversible | none |
| harmful | `y`, or `--yes` |
| destroys | the name it asks for, typed or with `--confirm` |
| serves | none; starts or stops servers on this machine |
"""
SHARED = """## Shared options

The section of a command lists the shared options that it accepts: groups and single options. `bkctl options` shows
them in a terminal. Bookie and storage options describe the bookie of this machine.
"""


def page() -> str:
    """The whole page."""
    app = build_app()
    context = app.context_class(app, info_name="bkctl")
    parts = [HEAD, SHARED, shared_options(app, context)]
    for name in app.list_commands(context):
        member = app.get_command(context, name)
        parts.append(f"## {name}\n")
        if hasattr(member, "list_commands"):
            parts.append(f"{text_of(member)}\n")
        parts += [section(path, command, context) for path, command in leaves(member, f"bkctl {name}")]
    return "\n".join(parts).rstrip() + "\n"


def leaves(member: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command below a member, with its whole name."""
    if hasattr(member, "list_commands"):
        for name in member.list_commands(None):
            yield from leaves(member.get_command(None, name), f"{path} {name}")
    else:
        yield path, member


def shared_options(app: Any, context: Any) -> str:
    """The table of shared options."""
    members = {name: app.get_command(context, name) for name in ("bookie", "decommission")}
    start = members["bookie"].get_command(context, "start")
    owners = {BOOKIE: start, STORAGE: start, COPYING: members["decommission"]}
    rows = [
        (group.lower(), *cells(each, context))
        for group in (GENERAL, CLUSTER, BOOKIE, STORAGE, COPYING, LISTING, CHANGE)
        for each in owners.get(group, app).params
        if group_of(each) == group
    ]
    return f"{table(('group', 'option', 'meaning'), rows)}\n"


def section(path: str, command: Any, context: Any) -> str:
    """What the page says about a command."""
    effects = ", ".join(effect.value for effect in Effect if effect in command.callback.effects)
    own = [each for each in command.params if group_of(each) in {None, INVENTORY}]
    pieces = " ".join(each.make_metavar(context).strip("{}") for each in own if each.param_type_name == "argument")
    parts = [f"### {path}\n", f"```\n{path} [OPTIONS]{' ' if pieces else ''}{pieces}\n```\n", f"{text_of(command)}\n"]
    if rows := [cells(each, context) for each in own]:
        parts.append(f"{table(('argument or option', 'meaning'), rows)}\n")
    shared = ", ".join(f"`{each}`" if each.startswith("-") else each for each in shared_names(command))
    parts.append(f"Effect: {effects}. Shared options: {shared}. Example:\n\n```\n{command.epilog}\n```\n")
    return "\n".join(parts)


def shared_names(command: Any) -> list[str]:
    """Groups of options of which all are accepted, then single options."""
    found: dict[str, list[Any]] = {group: [] for group in (GENERAL, CLUSTER, BOOKIE, STORAGE, COPYING, LISTING, CHANGE)}
    for each in command.params:
        if (group := group_of(each)) is not None and group != INVENTORY:
            found[group].append(each)
    names: list[str] = []
    for group, options in found.items():
        if options and group not in {LISTING, CHANGE} and not any(each.hidden for each in options):
            names.append(group.lower())
        else:
            names += [each.opts[0] for each in options if not each.hidden]
    return names


def text_of(command: Any) -> str:
    """The help text, one line per paragraph."""
    paragraphs = inspect.cleandoc(command.help).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("*", "\\*")


def cells(parameter: Any, context: Any) -> tuple[str, str]:
    """Spelling and meaning of an option or argument."""
    spelling, meaning = parameter.get_help_record(context)
    return f"`{spelling}`", " ".join(meaning.split())


def table(head: tuple[str, ...], rows: list[Any]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
