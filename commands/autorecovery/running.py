"""``bkctl autorecovery running``: ledgers that somebody works on now."""

from __future__ import annotations

from contextlib import aclosing

import typer

from commands.autorecovery.access import open_view
from commands.autorecovery.pending import show_age
from commands.command import command
from commands.context import CommandContext
from commands.rendering import Column, time_text

_COLUMNS = (
    Column("ledger_id", "LEDGER", is_right=True),
    Column("worker", "WORKER"),
    Column("age_s", "FOR", show_age, is_right=True),
    Column("marked", "MARKED"),
    Column("since", "SINCE", is_wide=True),
    Column("session", "SESSION", is_wide=True),
    Column("problem", "PROBLEM"),
)


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl autorecovery``."""
    command(app, "running", is_listing=True)(list_running)


async def list_running(context: CommandContext) -> None:
    """List the ledgers whose replication lock is held, and the host of who holds it.

    A ledger that is not marked is copied by bkctl recover or decommission, or is looked at by a bookie's collector.
    Workers keep the lock of a ledger that they failed to repair for up to five minutes.
    """
    from runtime.metadata.replication_lock import list_held_locks
    from runtime.metadata.under_replication import read_mark

    async with (
        open_view(context) as view,
        aclosing(list_held_locks(view.store, view.root, view.foreign)) as locks,
    ):
        with context.console.listing("RunningLedgers", _COLUMNS, name="ledger_id") as listing:
            async for lock in locks:
                if listing.is_full:
                    listing.truncate()
                    break
                row = {
                    "ledger_id": str(lock.ledger_id),
                    "worker": lock.holder,
                    "since": time_text(lock.since_ms),
                    "age_s": view.age_s(lock.since_ms),
                    "marked": await read_mark(view.store, view.root, lock.ledger_id) is not None,
                    "session": f"0x{lock.session_id & 0xFFFF_FFFF_FFFF_FFFF:x}",
                    "problem": None if lock.problem is None else str(lock.problem),
                }
                listing.add(row)
