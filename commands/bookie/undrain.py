"""``bkctl bookie undrain``: make drained bookies writable again."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.bookie.admin_access import TokenOption, read_credentials
from bkctl.commands.bookie.read_only import BookieSwitch
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.parse import parse_bookie_id, parse_duration_s
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.run.drain import ModeWatch


@command("undrain", example="bookie undrain b1.example.com:3181", effect=Effect.REVERSIBLE)
async def undrain(
    context: CommandContext,
    bookie_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="IDs of drained bookies")],
    token_file: TokenOption = None,
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="Longest wait for the registrations")] = "1m",
) -> None:
    """Make drained bookies writable again.

    They get new ledgers again; those that were moved away stay where they are. Needs the admin interface of each
    bookie: its socket on this machine, or its HTTP port (of a Java bookie too).
    """
    wait_s = parse_duration_s(wait)
    ids = sorted({parse_bookie_id(each) for each in bookie_ids})
    credentials = read_credentials(context, token_file)
    async with open_session(context) as session:
        clock = LoopClock()
        outage = OutageWait(session.registrations.snapshot, clock, context.settings.timeout_s, lambda _: None)
        watch = ModeWatch(session.registrations, clock, outage)
        found = await watch.read(ids)
        todo = [each for each in ids if each not in found.writable]
        switch = BookieSwitch(context, session, watch, credentials)
        await switch.require_answers(todo)
        name = ", ".join(todo or ids)
        plan = session.plan(
            subject=name,
            summary=(f"will make bookie {name} writable" if todo else f"nothing to change: bookie {name} is writable",),
            items=[{"action": "set-mode", "path": each, "mode": "writable", "expected_version": None} for each in todo],
        )
        if todo:
            async with open_change(context, plan, session.store, bookie_ids=todo):
                await switch.make_writable(todo, wait_s)
        else:
            nothing_to_change(context, plan)
    context.console.record("BookieUndrain", {"bookie_ids": ids, "changed": todo}, name="bookie_ids")
