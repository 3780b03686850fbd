"""``bkctl cookie show``: one stored cookie."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.command import command
from commands.context import CommandContext
from commands.cookie.access import cookie_body, read_cookie_node
from commands.session import open_session


@command("show", example="cookie show b1.example.com:3181")
async def show(
    context: CommandContext,
    bookie_id: Annotated[str, typer.Argument(metavar="ID", help="Bookie ID")],
    raw: Annotated[bool, typer.Option("--raw", help="Print the raw bytes without parsing them")] = False,
) -> None:
    """Show the stored cookie of a bookie. Exits with 4 if there is none, with 12 if it is unreadable."""
    from runtime.errors import MetadataFormatError
    from runtime.metadata.bookies.cookies import decode_cookie

    async with open_session(context) as session:
        node = await read_cookie_node(session, bookie_id)
        if raw:
            context.console.raw(node.data)
            return
        try:
            cookie = decode_cookie(node.data)
        except MetadataFormatError as error:
            raise MetadataFormatError(f"{session.cookies.path(bookie_id)}: {error}; --raw shows its bytes") from error
        body = {**cookie_body(cookie), "version": node.stat.version, "cluster_instance_id": session.instance_id}
        context.console.record("Cookie", body, name="bookie_id")
