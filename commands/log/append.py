"""``bkctl log append``: each line of standard input, or of a file, becomes an entry."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, unreadable_file
from bkctl.commands.listing import Listing
from bkctl.commands.log.access import LogName, log_nodes, parse_log_name
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import open_change
from bkctl.commands.safety.state_directory import user_name
from bkctl.commands.session import open_session
from bkctl.runtime.client.access import require_access
from bkctl.runtime.ledger_log.writer import LogPosition, LogWriter
from bkctl.storage.errors import BkctlError

_TABLE = Table(
    "LogAppendList",
    Column("position", "POSITION", is_right=True),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("entry_id", "ENTRY", is_right=True),
    name="position",
)
_READ_BYTES = 64 * 1024
_LINE_BYTES_MAX = 8 * 1024 * 1024


@command("append", example="log append orders --from-file orders.txt", effect=Effect.REVERSIBLE)
async def append(
    context: CommandContext,
    name: LogName,
    from_file: Annotated[
        str | None, typer.Option("--from-file", metavar="FILE", help="Read lines from this file instead of stdin")
    ] = None,
) -> None:
    """Append each line of stdin as one entry, and print its position.

    A position is printed when its entry is acknowledged. Takes the log over from any other writer, which then ends with
    exit code 5. Line ends are not stored.
    """
    parse_log_name(name)
    try:
        source = sys.stdin.fileno() if from_file is None else os.open(from_file, os.O_RDONLY)
    except OSError as error:
        raise unreadable_file(f"the lines in {from_file}", error) from error
    async with open_session(context) as session:
        client, nodes = await session.client(), log_nodes(session)
        former = (await nodes.read(name)).value.writer
        await require_access(client.ports)
        summary = [f"will append lines to log {name}"]
        summary += [] if former is None else [f"will take over from {former.name}, if it is still running"]
        plan = session.plan(summary=summary, items=({"action": "append", "path": nodes.path(name)},))
        async with open_change(context, plan, session.store, is_locked=False):
            own_name = f"{user_name()}@{socket.gethostname()} (process {os.getpid()})"
            async with await LogWriter.open(client, nodes, client.ports.clock, name, own_name) as writer:
                with context.console.listing(_TABLE, is_live=True) as listing:
                    async with aclosing(_lines(source)) as batches:
                        async for lines in batches:
                            await _append_all(writer, lines, listing)


async def _append_all(writer: LogWriter, lines: list[bytes], listing: Listing) -> None:
    """Send the lines, and print the positions of those that are acknowledged, also before an error."""
    sent: list[asyncio.Task[LogPosition]] = []
    try:
        for line in lines:
            sent.append(await writer.submit(line))  # noqa: PERF401  those before an error count
    finally:
        for result in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            listing.add(
                {
                    "position": result.position,
                    "ledger_id": str(result.ledger_id),
                    "entry_id": str(result.entry_id),
                }
            )


async def _lines(source: int) -> AsyncGenerator[list[bytes], None]:
    """Lines as they arrive, without their ends. OSError, InvalidArgumentError for one that no entry can hold."""
    rest = b""
    async with aclosing(_chunks(source)) as chunks:
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                raise InvalidArgumentError("a line has more than 8 MiB: it does not fit into an entry")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def _chunks(source: int) -> AsyncGenerator[bytes, None]:
    """What a file, a pipe or a terminal has, read by a thread that does not delay the end of the command.

    An event loop cannot wait for a file, and its own threads would have to end first.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue(1)

    def read_all() -> None:
        data: bytes | OSError = b"-"
        while data and not isinstance(data, OSError):
            try:
                data = os.read(source, _READ_BYTES)
            except OSError as error:
                data = error
            asyncio.run_coroutine_threadsafe(arrived.put(data), loop).result()

    threading.Thread(target=read_all, name="lines", daemon=True).start()
    while data := await arrived.get():
        if isinstance(data, OSError):
            raise BkctlError(f"cannot read the lines: {data.strerror}") from data
        yield data
