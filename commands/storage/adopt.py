"""``bkctl storage adopt``: take over the directories of a Java bookie; ``hand-back``: give them back to Java."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect
from bkctl.commands.errors import Outcome
from bkctl.commands.progress import Progress
from bkctl.commands.rendering import Column, Lines, Table
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.java_bookie import require_stopped, require_version_files
from bkctl.commands.storage.own_storage import (
    PLAN_TABLE,
    OwnStorage,
    make_plan,
    open_own_storage,
    require_agreeing_directories,
)
from bkctl.commands.storage.working import shown_progress, work_beside_loop
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.filenames import (
    JAVA_DATABASES,
    JAVA_INDEX_ASIDE,
    LEDGERS_DATABASE,
    LOCATIONS_DATABASE,
    OWN_INDEX_ASIDE,
    current_directory,
)
from bkctl.storage.offline.adoption import AdoptionSurvey, survey_adoption
from bkctl.storage.offline.adoption import adopt as adopt_directories
from bkctl.storage.offline.adoption_build import BuildReport
from bkctl.storage.offline.hand_back import HandBackReport, awaits_java, needs_hand_back, own_paths, require_readable
from bkctl.storage.offline.hand_back import hand_back as hand_back_directories
from bkctl.storage.words import counted

_UNREADABLE_TABLE = Table("Unreadable files", Column("path", "PATH"), Column("reason", "REASON"))


@command(
    "adopt",
    example="storage adopt --conf conf/bk_server.conf --dry-run",
    effect=Effect.HARMFUL,
    is_configured_by_files=True,
)
@takes_storage_options
async def adopt(context: CommandContext, flags: BookieFlags) -> Outcome:
    """Build bkctl's index from the files of a stopped Java bookie, and move Java's index aside.

    Entry logs, journals, marks and VERSION files are not changed, and nothing is deleted. With Interleaved and Sorted
    storage, the .idx files contain keys, fences, explicit LACs and locations. With DbLedgerStorage, the index is built
    from entry logs and journals, and all ledgers are fenced. Ledgers that cannot be read completely report "unknown"
    until the integrity check has repaired them; the exit code is then 9, and -o csv lists what cannot be read. If
    interrupted, run the same command again to finish.
    """
    with open_own_storage(context, flags, is_locked=True) as own:
        require_stopped(own)
        require_agreeing_directories(own)
        require_version_files(own)
        survey = survey_adoption(own.file_system, own.config)
        if survey is None:
            plan = make_plan(own, summary=["no index of a Java bookie in these directories: nothing to do"])
            nothing_to_change(context, plan, table=PLAN_TABLE)
            _report(context, None, BuildReport())
            return Outcome.OK
        plan = _plan(own, survey)
        async with open_change(context, plan, table=PLAN_TABLE) as change:
            own.locks.claim()
            with context.console.progress("adopting") as progress:
                report = await work_beside_loop(lambda require: _adopt(own, progress, require))
            change.details.update(ledgers=report.ledger_count, unreadable=report.unreadable_count)
    _report(context, survey.storage.value, report)
    context.console.say("start the bookie with bkctl bookie start and the same settings")
    return Outcome.PARTIAL if report.unreadable_count else Outcome.OK


def _plan(own: OwnStorage, survey: AdoptionSurvey) -> Plan:
    items: list[dict[str, Any]] = [{"action": f"move into {JAVA_INDEX_ASIDE}", "path": path} for path in survey.aside]
    items += [
        {"action": "build", "path": f"{current_directory(directory)}/{database}"}
        for directory in own.config.effective_index_directories
        for database in (LEDGERS_DATABASE, LOCATIONS_DATABASE)
    ]
    ledgers = "its ledgers" if survey.ledger_count is None else counted(survey.ledger_count, "ledger")
    summary = [
        f"will adopt {ledgers} of a Java bookie with {survey.storage.value}: "
        f"{counted(survey.log_count, 'entry log')}, {survey.log_bytes} bytes",
        "will move the Java index aside; afterwards no Java bookie may start on these directories until "
        "bkctl storage hand-back",
    ]
    if survey.is_begun:
        summary.insert(0, "an adoption was interrupted after everything was built: only the last steps will run")
    if survey.is_dirty:
        summary.append("the bookie was not shut down cleanly: the next start will replay its journals")
    return make_plan(own, summary=summary, items=items)


def _adopt(own: OwnStorage, progress: Progress, require_wanted: Callable[[], None]) -> BuildReport:
    shown = shown_progress(progress, require_wanted)
    return adopt_directories(own.file_system, open_plyvel, own.children, own.config, on_progress=shown)


def _report(context: CommandContext, storage: str | None, report: BuildReport) -> None:
    unreadable = [{"path": each.path, "reason": each.reason} for each in report.unreadable]
    body: dict[str, object] = {
        "storage": storage,
        "ledgers": report.ledger_count,
        "entries": report.entry_count,
        "entries_copied": report.copied_entry_count,
        "unreadable": report.unreadable_count,
    }
    details, lines = {"unreadable_items": unreadable}, Lines(_UNREADABLE_TABLE, unreadable)
    context.console.record("StorageAdopted", body, name="ledgers", details=details, lines=lines)
    context.console.table(_UNREADABLE_TABLE, unreadable)


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
            _print_handed(context, HandBackReport(), _NEXT_STEPS if awaits_java(own.file_system, own.config) else ())
            return
        require_readable(own.file_system, open_plyvel, own.config)
        plan = _plan_to_give(own)
        async with open_change(context, plan, table=PLAN_TABLE) as change:
            own.locks.claim()
            with context.console.progress("handing ledgers back") as progress:
                report = await work_beside_loop(lambda require: _hand_back(own, progress, require))
            change.details["ledgers"] = report.ledger_count
    _print_handed(context, report, _NEXT_STEPS)


def _print_handed(context: CommandContext, report: HandBackReport, next_steps: tuple[str, ...]) -> None:
    body: dict[str, object] = {
        "ledgers": report.ledger_count,
        "entries_flushed": report.replayed_entry_count,
        "ledger_storage_class": _JAVA_CLASS,
        "next_steps": list(next_steps),
    }
    context.console.record("StorageHandedBack", body, name="ledgers")
    if next_steps:
        context.console.say(f"next, with ledgerStorageClass={_JAVA_CLASS} and the same directories in bk_server.conf:")
    for step in next_steps:
        context.console.say(f"  {step}")


def _plan_to_give(own: OwnStorage) -> Plan:
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
