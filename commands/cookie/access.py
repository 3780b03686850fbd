"""Shared by the cookie commands: the cluster's cookies, and the two conditions for changing one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import parse_bookie_id
from bkctl.commands.rendering import Column, Table, plain
from bkctl.commands.session import Session
from bkctl.runtime.errors import BookieNotFoundError, MetadataFormatError, NoNodeError, RefusedError
from bkctl.runtime.metadata.bookies.cookies import Cookie, decode_cookie
from bkctl.runtime.metadata.ledgers.stored_ledgers import BookieReferences, find_references
from bkctl.runtime.metadata.store import Node
from bkctl.storage.words import counted

SubjectArgument = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="Bookie ID (with --from-config by default that of the settings)")
]
FromConfigOption = Annotated[
    bool,
    typer.Option("--from-config", help="Use the cookie of this machine's bookie, verified against its directories"),
]
"""For commands that store a cookie: one from a file, or one that this machine's directories prove."""

FieldRows: TypeAlias = list[dict[str, object]]
"""What a change does to the fields of a cookie."""

DIFFERENCE_TABLE = Table("Fields", Column("field", "FIELD"), Column("stored", "STORED"), Column("new", "NEW"))


def named_file(bookie: str | None, file: str | None, *, from_config: bool) -> tuple[str, str] | None:
    """Bookie id and path of a cookie file to store, or None: use the settings; InvalidArgumentError."""
    if (file is None) == (not from_config):
        raise InvalidArgumentError("use either --from-file FILE or --from-config")
    if file is None:
        return None
    if bookie is None:
        raise InvalidArgumentError("specify the ID of the bookie that the file is for")
    return parse_bookie_id(bookie), file


async def read_cookie_node(session: Session, bookie_id: str) -> Node:
    """The stored bytes; BookieNotFoundError."""
    try:
        return await session.cookies.read_node(parse_bookie_id(bookie_id))
    except NoNodeError:
        raise BookieNotFoundError(f"bookie {bookie_id} has no cookie in this cluster", bookie_id) from None


async def require_not_registered(session: Session, *bookie_ids: str) -> None:
    """RefusedError while a bookie with one of these ids runs, or its session lasts."""
    live = (await session.registrations.snapshot()).live
    for bookie_id in bookie_ids:
        if bookie_id in live:
            raise RefusedError(
                f"nothing was changed: bookie {bookie_id} is registered: stop it first (a killed bookie stays "
                "registered until its session ends)"
            )


async def scan_references(context: CommandContext, session: Session, bookie_ids: Sequence[str]) -> BookieReferences:
    """Read all ledgers again and find those that refer to the bookies."""
    ledgers = await session.ledgers()
    with context.console.progress("reading all ledgers") as progress:
        return await find_references(session.store, ledgers, bookie_ids, progress.update)


async def require_unused(context: CommandContext, session: Session, bookie_id: str, advice: str) -> BookieReferences:
    """RefusedError while the bookie is registered, also after all ledgers were read, or a ledger refers to it."""
    await require_not_registered(session, bookie_id)
    references = await scan_references(context, session, [bookie_id])
    require_unnamed(references, bookie_id, advice)
    await require_not_registered(session, bookie_id)
    return references


def require_unnamed(references: BookieReferences, bookie_id: str, advice: str) -> None:
    """RefusedError when a ledger refers to the bookie, or is unreadable and may do so."""
    count = references.counts[bookie_id]
    if count:
        ids = ", ".join(map(str, references.first_ledger_ids[bookie_id]))
        raise RefusedError(
            f"nothing was changed: {counted(count, 'ledger references', 'ledgers reference')} bookie {bookie_id} ({ids}"
            f"{', ...' if count > len(references.first_ledger_ids[bookie_id]) else ''}): {advice}"
        )
    if references.unreadable_count:
        ids = ", ".join(map(str, references.first_unreadable_ids))
        raise RefusedError(
            f"nothing was changed: the metadata of {counted(references.unreadable_count, 'ledger')} ({ids}) cannot be "
            f"read and may reference bookie {bookie_id}: {references.unreadable_advice}"
        )


def require_fitting(session: Session, bookie_id: str, data: bytes, path: str) -> Cookie:
    """The cookie in a file, which must belong to this bookie in this cluster; InvalidArgumentError, RefusedError."""
    try:
        cookie = decode_cookie(data)
    except MetadataFormatError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    if cookie.bookie_id != bookie_id:
        raise RefusedError(
            f"nothing was changed: {path} is the cookie of bookie {cookie.bookie_id}, so {bookie_id} could not start"
        )
    if (cookie.instance_id or None) != (session.instance_id or None):
        raise RefusedError(
            f"nothing was changed: {path} is of instance {cookie.instance_id}, so no bookie of this cluster "
            f"(instance {session.instance_id}) could start"
        )
    return cookie


def cookie_body(cookie: Cookie) -> dict[str, object]:
    """A cookie as a structured result."""
    return {
        "bookie_id": cookie.bookie_id,
        "layout_version": cookie.layout_version,
        "journal_directories": list(cookie.journal_directories),
        "ledger_directories": list(cookie.ledger_directories),
        "index_directories": None if cookie.index_directories is None else list(cookie.index_directories),
        "instance_id": cookie.instance_id,
    }


def difference_rows(stored: Cookie | None, new: Cookie) -> FieldRows:
    """Differences of a change, field by field; all fields when no readable cookie is stored."""
    before = dict.fromkeys(new.fields()) if stored is None else stored.fields()
    return [
        {"field": field, "stored": listed(before[field]), "new": listed(value)}
        for field, value in new.fields().items()
        if before[field] != value
    ]


def difference_sentences(rows: Sequence[dict[str, object]]) -> list[str]:
    """The differences as text for the operator who confirms them."""
    return [f"will change {row['field']} from {plain(row['stored'])} to {plain(row['new'])}" for row in rows]


def listed(value: object) -> object:
    """Value of a cookie's field in results: directories as a list."""
    return list(value) if isinstance(value, tuple) else value
