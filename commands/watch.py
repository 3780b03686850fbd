"""``-w``, ``--watch``: a command that shows something again and again, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
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


def parse_watch(context: CommandContext, interval: str | None, *, is_watching: bool) -> float:
    """Seconds between two looks; InvalidArgumentError for ``--interval`` alone, and for formats that are no stream."""
    if interval is not None and not is_watching:
        raise InvalidArgumentError("--interval needs --watch")
    if is_watching and not (context.console.is_for_people or context.console.form is OutputForm.JSONL):
        raise InvalidArgumentError("--watch prints tables or lines: use -o table, wide or jsonl")
    return parse_duration_s(interval or "2s")


async def keep_looking(context: CommandContext, interval_s: float, look: Callable[[], Awaitable[None]]) -> None:
    """Print by ``look`` again and again until the command is interrupted; at once when the terminal is resized."""
    resized = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    try:
        with context.console.watching():
            while True:
                resized.clear()
                await look()
                context.console.end_look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(resized.wait(), interval_s)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
