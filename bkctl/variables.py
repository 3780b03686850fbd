"""The BKCTL_* variables that bkctl reads; a misspelt one is not silently ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bkctl.commands.parse import near_miss
from bkctl.runtime.errors import ConfigurationError
from bkctl.setting_readers import all_settings

if TYPE_CHECKING:
    from bkctl.settings import Sources

_PREFIX = "BKCTL_"
_SIMILARITY_MIN = 0.8
_REFERENCE = re.compile(r"env:([A-Za-z0-9_]+)")


def variable_warnings(sources: Sources) -> list[str]:
    """A line for each BKCTL_* variable that bkctl does not read; ConfigurationError if it resembles a known one.

    A misspelt name is refused as in the TOML file: BKCTL_READONLY would not stop a change. Variables that a file
    refers to by ``env:NAME`` may have any name.
    """
    unknown = [name for name, value in sources.environment.items() if name.startswith(_PREFIX) and value]
    known = {each.variable for each in all_settings()} if unknown else set()
    unknown = sorted(frozenset(unknown) - known)
    if unknown:
        unknown = [name for name in unknown if name not in frozenset(_names_referred_to(sources))]
    for name in unknown:
        meant = near_miss(
            name.removeprefix(_PREFIX),
            (each.removeprefix(_PREFIX) for each in known),
            similarity_min=_SIMILARITY_MIN,
        )
        if meant is not None:
            raise ConfigurationError(f"{name}: unknown environment variable: set {_PREFIX}{meant}, or unset this one")
    return [f"{name}: unknown environment variable, ignored" for name in unknown]


def _names_referred_to(sources: Sources) -> Iterator[str]:
    texts = [str(sources.toml)]
    if sources.conf is not None:
        texts += sources.conf.all_values()
    for text in texts:
        yield from _REFERENCE.findall(text)
