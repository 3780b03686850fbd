"""``bkctl storage hand-back``: give the directories of a bookie back to Java."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect
from bkctl.commands.progress import Progress
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.own_storage import (
    PLAN_TABLE,
    OwnStorage,
    make_plan,
    open_own_storage,
    require_agreeing_directories,
)
from bkctl.commands.storage.working import shown_progress, work_beside_loop
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.filenames import JAVA_DATABASES, OWN_INDEX_ASIDE, current_directory
from bkctl.storage.offline.hand_back import HandBackReport, needs_hand_back, own_paths, require_readable
from bkctl.storage.offline.hand_back import hand_back as hand_back_directories

_NEXT_STEPS = (
    "bin/bookkeeper shell rebuild-db-ledgers-index -v",
    "bin/bookkeeper shell rebuild-db-ledger-locations-index",
    "bin/bookkeeper bookie",
)
_JAVA_CLASS = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"


@command(
    "hand-back",
    example="storage hand-back --conf conf/bk_server.conf --dry-run",
    effect=Effect.HARMFUL,
    is_configured_by_files=True,
)
@takes_storage_options
async def hand_back(context: CommandContext, flags: BookieFlags) -> None:
    """Prepare the directories of a stopped bookie for a Java bookie with DbLedgerStorage.

    The journals are flushed to ledger storage. Each ledger's key, fence and explicit LAC is written to a journal for
    the Java bookie. bkctl's index is moved aside; Java's shell then rebuilds its own from the entry logs: the commands
    are printed at the end. Nothing is deleted, and bkctl storage adopt reverses it. Refused if entries of a ledger may
    be missing or an entry log is damaged, because a Java bookie would report them as "no such entry". If interrupted,
    run the same command again to finish.
    """
    with open_own_storage(context, flags, is_locked=True) as own:
        require_agreeing_directories(own)
        if not needs_hand_back(own.file_system, own.config):
            plan = make_plan(own, summary=["no index of bkctl in these directories: nothing to do"])
            nothing_to_change(context, plan, table=PLAN_TABLE)
            _print(context, HandBackReport(), next_steps=())
            return
        require_readable(own.file_system, open_plyvel, own.config)
        plan = _plan(own)
        async with open_change(context, plan, table=PLAN_TABLE) as change:
            own.locks.claim()
            with context.console.progress("handing ledgers back") as progress:
                report = await work_beside_loop(lambda require: _hand_back(own, progress, require))
            change.details["ledgers"] = report.ledger_count
    _print(context, report, next_steps=_NEXT_STEPS)
    context.console.say(f"next, with ledgerStorageClass={_JAVA_CLASS} and the same directories in bk_server.conf:")
    for step in _NEXT_STEPS:
        context.console.say(f"  {step}")


def _print(context: CommandContext, report: HandBackReport, *, next_steps: tuple[str, ...]) -> None:
    body: dict[str, object] = {
        "ledgers": report.ledger_count,
        "entries_flushed": report.replayed_entry_count,
        "ledger_storage_class": _JAVA_CLASS,
        "next_steps": list(next_steps),
    }
    context.console.record("StorageHandedBack", body, name="ledgers")


def _plan(own: OwnStorage) -> Plan:
    items: list[dict[str, Any]] = [
        {"action": f"move into {OWN_INDEX_ASIDE}", "path": path} for path in own_paths(own.file_system, own.config)
    ]
    items += [
        {"action": "make", "path": os.path.join(current_directory(directory), database)}
        for directory in own.config.effective_index_directories
        for database in JAVA_DATABASES
    ]
    summary = [
        "will flush the journals, write each ledger's key, fence and LAC to a journal, and move bkctl's index aside",
        "no bookie will start on these directories until Java's shell has rebuilt its index; that fences every ledger",
    ]
    return make_plan(own, summary=summary, items=items)


def _hand_back(own: OwnStorage, progress: Progress, require_wanted: Callable[[], None]) -> HandBackReport:
    now_ms = time.time_ns() // 1_000_000
    return hand_back_directories(
        own.file_system, open_plyvel, own.config, now_ms, on_progress=shown_progress(progress, require_wanted)
    )
