"""``bkctl autorecovery running``: ledgers whose replication lock is held."""

from __future__ import annotations

from contextlib import aclosing

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.replication.lock import list_held_locks
from bkctl.runtime.metadata.replication.marks import read_mark
from bkctl.storage.words import duration

_TABLE = Table(
    "RunningLedgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("worker", "WORKER"),
    Column("age_s", "FOR", duration, is_right=True),
    Column("marked", "MARKED"),
    Column("since", "SINCE", is_wide=True),
    Column("session", "SESSION", is_wide=True),
    Column("problem", "PROBLEM"),
    name="ledger_id",
)


@command("running", example="autorecovery running", is_listing=True)
async def list_running(context: CommandContext) -> None:
    """List ledgers whose replication lock is held, and the host of the holder.

    A ledger that is not marked is being copied by bkctl recover or decommission, or checked by a bookie's garbage
    collector. Workers keep the lock of a ledger that they failed to repair for up to five minutes.
    """
    async with (
        open_session(context) as session,
        aclosing(list_held_locks(session.store, session.root, session.foreign)) as locks,
    ):
        with context.console.listing(_TABLE) as listing:
            async for lock in locks:
                if listing.end_if_full():
                    break
                row = {
                    "ledger_id": str(lock.ledger_id),
                    "worker": lock.holder,
                    "since": time_text(lock.since_ms),
                    "age_s": session.age_s(lock.since_ms),
                    "marked": await read_mark(session.store, session.root, lock.ledger_id) is not None,
                    "session": f"0x{lock.session_id & 0xFFFF_FFFF_FFFF_FFFF:x}",
                    "problem": None if lock.problem is None else str(lock.problem),
                }
                listing.add(row)
