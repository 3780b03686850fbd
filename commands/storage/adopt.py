"""``bkctl storage adopt``: take over the directories of a Java bookie."""

from __future__ import annotations

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
from bkctl.commands.storage.own_storage import (
    PLAN_TABLE,
    OwnStorage,
    make_plan,
    open_own_storage,
    require_agreeing_directories,
    require_stopped,
    require_version_files,
)
from bkctl.commands.storage.working import shown_progress, work_beside_loop
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.filenames import JAVA_INDEX_ASIDE, LEDGERS_DATABASE, LOCATIONS_DATABASE, current_directory
from bkctl.storage.offline.adoption import AdoptionSurvey, survey_adoption
from bkctl.storage.offline.adoption import adopt as adopt_directories
from bkctl.storage.offline.adoption_build import BuildReport
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
