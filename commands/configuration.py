"""``bkctl config``: the settings, their values, and where these come from."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, SettingInfo, SettingsOverview
from bkctl.commands.errors import NotFoundError
from bkctl.commands.parse import near_miss
from bkctl.commands.rendering import Column, Table
from bkctl.storage.words import exact_size

_SIMILARITY_MIN = 0.6
_VALUES = Table("Settings", Column("name", "SETTING"), Column("value", "VALUE"), name="name")
_WITH_ORIGIN = Table("Settings", *_VALUES.columns, Column("origin", "ORIGIN"), name="name")
_MEANINGS = Table("Settings", Column("name", "SETTING"), Column("help", "MEANING"), name="name")

_UNCHANGED = frozenset({"default", "timeout"})
"""Origins of values that the user has not set: one follows the default of --timeout."""


@command("show", example="config show --with-origin --changed", is_listing=True)
def show(
    context: CommandContext,
    with_origin: Annotated[bool, typer.Option("--with-origin", help="Show where each value comes from")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings that are not at their default")
    ] = False,
) -> None:
    """Show the value of every setting. Of secrets only the source is shown."""
    with context.console.listing(_WITH_ORIGIN if with_origin else _VALUES) as listing:
        for setting in _overview_of(context).settings:
            if not changed or setting.origin not in _UNCHANGED:
                origin = {"origin": setting.origin} if with_origin else {}
                listing.add({"name": setting.name, "value": setting.value} | origin)


@command("explain", example="config explain journalMaxSizeMB")
def explain(
    context: CommandContext, key: Annotated[str, typer.Argument(metavar="KEY", help="Name, variable or Java key")]
) -> None:
    """Explain a setting: meaning, unit, range, default, Java key, variable, value and source."""
    overview = _overview_of(context)
    names = {name: each for each in reversed(overview.settings) for name in _names(each)}
    found = [each for each in overview.settings if key in _names(each)]
    found = found or [each for each in overview.settings if each.name.endswith(f".{key}")]
    if len(found) == 1:
        body: dict[str, object] = msgspec.to_builtins(found[0])
        context.console.record("Setting", body, name="name")
    elif found:
        with context.console.listing(_MEANINGS) as listing:
            for each in found:
                listing.add({"name": each.name, "help": each.help})
    elif key in overview.other_java_keys:
        context.console.record("JavaKey", {"name": key, "effect": overview.other_java_keys[key]}, name="name")
    else:
        last_names = {each.name.rpartition(".")[2] for each in overview.settings}
        known = (*names, *last_names, *overview.other_java_keys)
        meant = near_miss(key, known, similarity_min=_SIMILARITY_MIN)
        hint = "bkctl config show lists all" if meant is None else f"did you mean {meant}?"
        raise NotFoundError(f"unknown setting {key}: {hint}")


def _names(setting: SettingInfo) -> set[str]:
    names = {setting.name, setting.variable, setting.java_key, setting.older_java_key, setting.option}
    return {name for name in names if name is not None}


def _overview_of(context: CommandContext) -> SettingsOverview:
    assert context.load_overview is not None
    return context.load_overview()


def value_text(value: object, unit: str) -> str:
    """A value with its unit: ``64 MiB``, ``10 s``, ``true``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and unit == "bytes":
        return exact_size(value)
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}" if unit and isinstance(value, int | float) else text
