"""``bkctl storage index``: check, show and rebuild the indexes of a stopped bookie."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer

from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import BookieFlags, CommandContext, Effect
from bkctl.commands.errors import Outcome
from bkctl.commands.progress import Progress
from bkctl.commands.rendering import Column, Lines, Table
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.java_bookie import require_no_java_index
from bkctl.commands.storage.own_storage import OwnStorage, make_plan, open_own_storage, require_agreeing_directories
from bkctl.commands.storage.working import work_beside_loop
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, VERSION
from bkctl.storage.rebuild.rebuild import DirectoryPlan, DirectoryReport, IndexRebuild, RebuildReport, plan_rebuild
from bkctl.storage.words import counted, size

_PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("path", "PATH"),
    Column("reason", "REASON"),
)
_DIRECTORY_TABLE = Table(
    "Directories",
    Column("ledger_directory", "LEDGER DIRECTORY"),
    Column("rebuilt", "REBUILT"),
    Column("logs", "LOGS", is_right=True, priority=1),
    Column("entries", "ENTRIES FOUND", is_right=True, priority=2),
    Column("locations", "LOCATIONS", is_right=True, priority=2),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("limbo", "IN LIMBO", is_right=True, priority=1),
    Column("torn_bytes", "TORN BYTES", is_right=True, is_wide=True),
)
_DAMAGE_TABLE = Table(
    "Damage",
    Column("path", "FILE"),
    Column("reason", "DAMAGE"),
    Column("ledgers", "LEDGERS"),
)

ONE_AT_A_TIME = (
    "Rebuild one bookie at a time, and wait until its log reports the end of the integrity check before the next: an "
    "open ledger cannot be recovered while all its bookies are uncertain of their copies (bkctl help lost-index)"
)


class StageWatch:
    """Shows the stages of a rebuild on a progress bar; every step raises once the command must end."""

    def __init__(self, progress: Progress, require_wanted: Callable[[], None]) -> None:
        self._progress = progress
        self._require_wanted = require_wanted
        self._stage = ""
        self._total = self._done = 0

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage."""
        self._require_wanted()
        self._stage, self._total, self._done = stage, total, 0
        self._progress.update(0, total, stage)

    def advance(self, amount: int) -> None:
        """Report more of the stage as done."""
        self._require_wanted()
        self._done += amount
        self._progress.update(self._done, self._total, self._stage)


@command(
    "rebuild",
    example="storage index rebuild --dry-run",
    effect=Effect.HARMFUL,
    is_local=True,
    is_configured_by_files=True,
)
@takes_storage_options
async def rebuild(
    context: CommandContext,
    flags: BookieFlags,
    ledgers: Annotated[bool, typer.Option("--ledger-rows", help="Rebuild the ledger rows, even if undamaged")] = False,
    locations: Annotated[bool, typer.Option("--locations", help="Rebuild the locations, even if undamaged")] = False,
) -> Outcome:
    """Rebuild the indexes of a stopped bookie from its entry logs and journals.

    Without --ledger-rows or --locations only missing or damaged indexes are rebuilt. The new index is built next to the
    old one, verified, and put in its place. If interrupted, run the command again. Ledgers whose rows had to be
    recreated are fenced, and the bookie compares itself with its peers at the next start. If a log cannot be read
    completely, the result is incomplete (exit code 9).

    After locations are rebuilt, all ledgers are in limbo: the bookie reports missing entries as "unknown" until it has
    compared them with other bookies. Rebuild one bookie at a time. If several had to be rebuilt, see bkctl storage
    limbo end.
    """
    wanted = [name for name, is_wanted in ((LEDGERS_DATABASE, ledgers), (LOCATIONS_DATABASE, locations)) if is_wanted]
    with open_own_storage(context, flags, is_locked=True) as own:
        require_agreeing_directories(own)
        require_no_java_index(own)
        plans = plan_rebuild(own.file_system, open_plyvel, own.config, wanted or None)
        if not any(plan.databases for plan in plans):
            sentence = "no index is damaged: nothing to do (--ledger-rows or --locations rebuild it anyway)"
            nothing_to_change(context, make_plan(own, summary=[sentence]), table=_PLAN_TABLE)
            _report(context, RebuildReport(directories=(), journal_damages=(), needs_integrity_check=False))
            return Outcome.OK
        plan = _plan(own, plans)
        async with open_change(context, plan, table=_PLAN_TABLE) as change:
            own.locks.claim()
            with context.console.progress("rebuilding the index") as progress:
                report = await work_beside_loop(
                    lambda require_wanted: IndexRebuild(
                        own.file_system, open_plyvel, own.children, own.config, StageWatch(progress, require_wanted)
                    ).run(plans)
                )
            change.details = {"is_complete": report.is_complete, "needs_integrity_check": report.needs_integrity_check}
    _report(context, report)
    return Outcome.OK if report.is_complete else Outcome.PARTIAL


def _plan(own: OwnStorage, plans: Sequence[DirectoryPlan]) -> Plan:
    items = [item for plan in plans for item in _items(plan)]
    log_count = sum(len(plan.logs.log_ids) for plan in plans if plan.databases)
    log_bytes = sum(plan.log_bytes for plan in plans if plan.databases)
    databases = sum(len(plan.databases) for plan in plans)
    names = {1: "1 index", 2: "2 indexes"}.get(databases, f"{databases} indexes")
    summary = [f"{names} will be built from {counted(log_count, 'entry log')} with {size(log_bytes)}"]
    if any(plan.loses_ledger_rows for plan in plans):
        summary.append(
            "the ledger rows are lost: every ledger will be fenced, keys are taken from the journals if possible, and "
            "the bookie will compare itself with its peers"
        )
    if any(LOCATIONS_DATABASE in plan.databases for plan in plans):
        summary.append(
            "the bookie will report missing entries as 'unknown' until it has compared its ledgers with other bookies. "
            f"{ONE_AT_A_TIME}"
        )
    return make_plan(own, summary=summary, items=items)


def _items(plan: DirectoryPlan) -> Iterator[dict[str, Any]]:
    if not plan.databases:
        return
    for name in plan.logs.unfinished:
        yield _item("delete", os.path.join(plan.ledger_directory, name), "an interrupted compaction was filling it")
    for name, target in plan.logs.links_due:
        yield _item(
            "create", os.path.join(plan.ledger_directory, target), f"second name of {name}, from a finished compaction"
        )
    for name in plan.databases:
        state = plan.states[name]
        yield _item("rebuild", plan.path(name), state.detail or f"{state.condition.value}; requested")
    if plan.is_version_lost:
        yield _item(
            "create", os.path.join(plan.index_directory, VERSION), "as in the ledger directory; it is missing here"
        )
    for name in plan.logs.replaced:
        yield _item("delete", os.path.join(plan.ledger_directory, name), "a finished compaction has replaced it")


def _item(action: str, path: str, reason: str) -> dict[str, Any]:
    return {"action": action, "path": path, "expected_version": None, "reason": reason}


def _report(context: CommandContext, report: RebuildReport) -> None:
    directories = [_directory_row(directory) for directory in report.directories]
    damages = [
        _damage_row(log.path, log.damage.reason, log.damage.ledger_ids)
        for directory in report.directories
        for log in directory.damaged
    ]
    damages += [{"path": None, "reason": damage, "ledgers": None} for damage in report.journal_damages]
    body = {
        "is_complete": report.is_complete,
        "needs_integrity_check": report.needs_integrity_check,
        "entries": sum(directory.entry_count for directory in report.directories),
        "locations": sum(directory.row_count for directory in report.directories),
        "ledgers": sum(directory.ledger_count for directory in report.directories),
        "limbo": sum(directory.limbo_count for directory in report.directories),
    }
    console = context.console
    console.record(
        "StorageIndexRebuild",
        body,
        name="is_complete",
        details={"directories": directories, "damages": damages},
        lines=Lines(_DIRECTORY_TABLE, directories),
    )
    console.table(_DIRECTORY_TABLE, directories)
    console.table(_DAMAGE_TABLE, damages)
    if console.form is OutputForm.CSV:  # CSV has lines only for directories
        for damage in damages:
            console.warn(f"{damage['path']}: {damage['reason']}" if damage["path"] else damage["reason"])
    if not report.is_complete:
        console.warn(
            "entries may be missing: for ledgers in limbo the bookie reports 'unknown' until it has run and compared "
            "them with its peers"
        )
    if body["limbo"]:
        console.say(f"{counted(body['limbo'], 'ledger')} in limbo until the bookie has run. {ONE_AT_A_TIME}")


def _directory_row(directory: DirectoryReport) -> dict[str, Any]:
    return {
        "ledger_directory": directory.ledger_directory,
        "rebuilt": ", ".join(name.removeprefix("ldb-") for name in directory.databases),
        "logs": directory.log_count,
        "entries": directory.entry_count,
        "locations": directory.row_count,
        "ledgers": directory.ledger_count,
        "limbo": directory.limbo_count,
        "torn_bytes": directory.torn_bytes,
    }


def _damage_row(path: str, reason: str, ledger_ids: tuple[int, ...] | None) -> dict[str, Any]:
    named = "any" if ledger_ids is None else ", ".join(map(str, ledger_ids))
    return {"path": path, "reason": reason, "ledgers": named}
