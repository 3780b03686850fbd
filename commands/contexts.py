"""``bkctl config contexts`` and ``use-context``: the clusters in the TOML file, and which one commands are for."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Contexts, Effect
from bkctl.commands.errors import NotFoundError
from bkctl.commands.parse import near_miss
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.new_file import write_whole
from bkctl.storage.adapters.given_files import read_given_file

_SIMILARITY_MIN = 0.6
_CONTEXT = re.compile(r"""[ \t]*context[ \t]*=[ \t]*(?:"[^"\n]*"|'[^'\n]*')""")
_TABLE = Table(
    "ContextList",
    Column("current", "CURRENT", lambda value: "*" if value else ""),
    Column("name", "NAME"),
    Column("metadata_uri", "CLUSTER"),
    Column("read_only", "READ-ONLY", priority=1),
    Column("instance_id", "INSTANCE", is_wide=True),
    name="name",
)


@command("contexts", example="config contexts", is_listing=True, is_local=True)
def list_contexts(context: CommandContext) -> None:
    """List the contexts of the TOML file, and mark the current one.

    A context is a cluster with a name: [contexts.NAME] with its metadata_uri.
    """
    found = context.load_contexts()
    with context.console.listing(_TABLE) as listing:
        for each in found.contexts:
            listing.add(msgspec.to_builtins(each) | {"current": each.name == found.current})
    if not found.contexts:
        context.console.say(_how_to_add(found))
    elif found.overriding:
        context.console.say(f"{found.overriding} is set, and has precedence over the context of {found.path}")


@command("use-context", example="config use-context prod", effect=Effect.REVERSIBLE, is_local=True)
async def use_context(
    context: CommandContext, name: Annotated[str, typer.Argument(metavar="NAME", help="A name of config contexts")]
) -> None:
    """Make a context the current one: commands are for its cluster, unless an option or variable names another.

    Writes context = "NAME" into the TOML file; the rest of the file stays as it is.
    """
    found = context.load_contexts()
    names = [each.name for each in found.contexts]
    if name not in names:
        raise NotFoundError(_missing(name, names, found))
    item = {"action": "set", "path": found.path, "expected_version": None, "context": name, "was": found.stored}
    sentence = f"will make context {name} the current one in {found.path}"
    plan = Plan(root="", instance_id=None, subject=name, summary=(sentence,), items=(item,))
    if found.stored == name:
        nothing_to_change(context, plan.emptied(f"context {name} is the current one of {found.path} already"))
    else:
        async with open_change(context, plan):
            _write(found.path, name)
        if found.stored is not None:
            context.console.say(f"to undo: bkctl config use-context {found.stored}")
    if found.overriding:
        context.console.warn(f"{found.overriding} is set, and has precedence: unset it to use context {name}")
    body = {"name": name, "changed": found.stored != name, "previous": found.stored, "path": found.path}
    context.console.record("Context", body, name="name")


def _how_to_add(found: Contexts) -> str:
    where = f"{found.path} has no contexts" if found.path else "there is no TOML file (bkctl config --help)"
    return f'{where}: a context is a table [contexts.NAME] with metadata_uri = "zk+hierarchical://..."'


def _missing(name: str, names: list[str], found: Contexts) -> str:
    if not names:
        return f"no context {name}: {_how_to_add(found)}"
    meant = near_miss(name, names, similarity_min=_SIMILARITY_MIN)
    hint = "" if meant is None else f"; did you mean {meant}?"
    return f"no context {name} in {found.path} (defined: {', '.join(names)}){hint}"


def _write(path: str, name: str) -> None:
    """Change the one line of the file; RefusedError if more would change, OSError."""
    before, mode = read_given_file(path).decode(), os.stat(path)
    after = with_context(before, name)
    try:
        is_only_change = tomllib.loads(after) == tomllib.loads(before) | {"context": name}
    except tomllib.TOMLDecodeError:
        is_only_change = False
    if not is_only_change:
        raise RefusedError(f'nothing was changed: {path} has an unusual form: write context = "{name}" yourself')
    write_whole(path, after.encode())
    os.chmod(path, stat.S_IMODE(mode.st_mode))
    if os.geteuid() == 0:
        os.chown(path, mode.st_uid, mode.st_gid)


def with_context(text: str, name: str) -> str:
    """The text of a TOML file with another value of ``context``, which is before the first table. Pure."""
    line = f"context = {msgspec.json.encode(name).decode()}"  # a string of JSON is one of TOML
    lines = text.splitlines(keepends=True)
    for number, each in enumerate(lines):
        if each.lstrip().startswith("["):
            break
        if found := _CONTEXT.match(each):
            return "".join([*lines[:number], line + each[found.end() :], *lines[number + 1 :]])
    return f"{line}\n{text}"
