"""``bkctl ledger export``: export ledger metadata to files that ``bkctl ledger import`` reads."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.ledger.named import LedgerIds
from bkctl.commands.parse import all_ledger_ids
from bkctl.commands.rendering import envelope, to_json_line
from bkctl.commands.session import open_session
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.cluster.root import read_instance_id
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, read_stored, scan_stored
from bkctl.runtime.metadata.ledgers.transfer import EXPORT_KIND, export_line
from bkctl.runtime.new_file import whole_file, write_whole
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.words import counted


@command("export", example="ledger export --all --out ledgers.jsonl", has_tables=False)
async def export(
    context: CommandContext,
    ledger: LedgerIds = None,
    all_ledgers: Annotated[bool, typer.Option("--all", help="All ledgers of the cluster")] = False,
    to: Annotated[
        str | None,
        typer.Option("--out", metavar="PATH", help="New file (default: stdout), or directory for --native"),
    ] = None,
    native: Annotated[
        bool,
        typer.Option("--native", help="Write one file per ledger with the metadata bytes, like Java's tools"),
    ] = False,
) -> Outcome:
    """Write the metadata of ledgers as JSON Lines: bytes, version and decoded fields.

    Only the owner can read the files, because metadata contains passwords in plain text. A ledger whose metadata cannot
    be decoded is exported too, with the reason. bkctl cluster backup saves a whole cluster.
    """
    if all_ledgers == bool(ledger):
        raise InvalidArgumentError("specify the ledgers to export, or --all")
    ledger_ids = None if all_ledgers else all_ledger_ids(ledger)
    if native and to is None and (ledger_ids is None or len(ledger_ids) > 1):
        raise InvalidArgumentError("--native with several ledgers needs a directory: use --out DIRECTORY")
    async with open_session(context, must_exist=False) as session:
        client = await session.client()
        async with aclosing(_read(client, ledger_ids)) as found:
            if native:
                exported, unreadable = await _export_native(context, found, to)
            else:
                exported, unreadable = await _export_lines(context, client, found, to)
    if to is not None:
        context.console.say(f"{counted(exported, 'ledger')} in {to}")
    if unreadable:
        context.console.warn(f"not exported, because this session may not read them: {counted(unreadable, 'ledger')}")
    if not unreadable:
        return Outcome.OK
    return Outcome.PARTIAL if exported else Outcome.UNAUTHORIZED


async def _read(client: LedgerClient, ledger_ids: list[int] | None) -> AsyncGenerator[StoredLedger, None]:
    if ledger_ids is None:
        async with aclosing(scan_stored(client.store, client.ports.ledgers)) as found:
            async for ledger in found:
                yield ledger
        return
    for ledger_id in ledger_ids:
        yield await read_stored(client.store, client.ports.ledgers, ledger_id)


async def _export_native(
    context: CommandContext, found: AsyncIterator[StoredLedger], to: str | None
) -> tuple[int, int]:
    exported = unreadable = 0
    if to is not None:
        OsFileSystem().make_directories(to)
    async for ledger in found:
        if ledger.node is None:
            unreadable += 1
            continue
        if to is None:
            context.console.raw(ledger.node.data)
        else:
            write_whole(os.path.join(to, f"{ledger.ledger_id}.ledger"), ledger.node.data, is_new=True)
        exported += 1
    return exported, unreadable


async def _export_lines(
    context: CommandContext, client: LedgerClient, found: AsyncIterator[StoredLedger], to: str | None
) -> tuple[int, int]:
    root = client.ports.ledgers.root
    instance_id = await read_instance_id(client.store, root)
    exported = unreadable = 0
    with whole_file(to, is_new=True) if to is not None else _stdout(context) as write:
        async for ledger in found:
            if ledger.node is None:
                unreadable += 1
                continue
            write(to_json_line(envelope(EXPORT_KIND, export_line(ledger, root, instance_id))).encode() + b"\n")
            exported += 1
    return exported, unreadable


@contextmanager
def _stdout(context: CommandContext) -> Iterator[Callable[[bytes], None]]:
    yield context.console.raw
