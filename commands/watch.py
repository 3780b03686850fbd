"""``-w``, ``--watch``: a command that shows something again and again, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import parse_duration_s

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C")]
IntervalOption = Annotated[
    str | None, typer.Option("--interval", metavar="DURATION", help="Time between two looks (default: 2s)")
]

_CLEAR = b"\x1b[H\x1b[2J"


def parse_watch(context: CommandContext, interval: str | None, *, is_watching: bool) -> float:
    """Seconds between two looks; InvalidArgumentError for ``--interval`` alone, and for formats that are no stream."""
    if interval is not None and not is_watching:
        raise InvalidArgumentError("--interval needs --watch")
    if is_watching and not (context.console.is_for_people or context.console.form is OutputForm.JSONL):
        raise InvalidArgumentError("--watch prints tables or lines: use -o table, wide or jsonl")
    return parse_duration_s(interval or "2s")


def clear_screen(context: CommandContext) -> None:
    """Before the next look; does nothing if the output is not a terminal."""
    if context.console.width is not None:
        context.console.raw(_CLEAR)
