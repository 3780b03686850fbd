"""``bkctl cookie generate``: the bytes of a cookie, without storing them."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, id_by_settings, load_config
from bkctl.commands.session import open_session
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.bookie.cookies.check import expected_cookie
from bkctl.runtime.metadata.bookies.cookies import encode_cookie
from bkctl.runtime.new_file import write_whole


@command(
    "generate",
    example="cookie generate --conf conf/bk_server.conf --out cookie",
    is_configured_by_files=True,
    has_tables=False,
)
@takes_bookie_options
async def generate(
    context: CommandContext,
    flags: BookieFlags,
    bookie: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Bookie ID (default: that of the settings)")
    ] = None,
    output_file: Annotated[str | None, typer.Option("--out", metavar="FILE", help="New file (default: stdout)")] = None,
    instance_id: Annotated[
        str | None,
        typer.Option("--instance-id", metavar="TEXT", help="Instance id (default: that of the cluster); empty: none"),
    ] = None,
) -> None:
    """Write the cookie that follows from a bookie's settings, without storing it in the cluster.

    bkctl cookie create and cookie_create of the Java shell read the file.
    """
    config = load_config(context, flags, bookie)
    if instance_id is None:
        async with open_session(context) as session:
            instance_id = session.instance_id
    cookie = expected_cookie(config.storage, config.bookie_id or id_by_settings(config), instance_id or None)
    data = encode_cookie(cookie)
    if output_file is None:
        context.console.raw(data)
        return
    write_whole(output_file, data, is_new=True)
    context.console.say(f"the cookie of bookie {cookie.bookie_id} is in {output_file}")
