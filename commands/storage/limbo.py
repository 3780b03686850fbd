"""``bkctl storage limbo``: ledgers whose missing entries a stopped bookie reports as unknown; list or clear them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Any

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect
from bkctl.commands.errors import NotFoundError, Outcome
from bkctl.commands.parse import parse_ledger_id
from bkctl.commands.progress import Progress
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.java_bookie import require_no_java_index
from bkctl.commands.storage.own_storage import OwnStorage, make_plan, open_own_storage, require_agreeing_directories
from bkctl.commands.storage.working import shown_progress, work_beside_loop
from bkctl.runtime.errors import RefusedError
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.advice import UNCLEAN_ADVICE
from bkctl.storage.offline.limbo import (
    DoubtfulLog,
    LimboDirectory,
    LimboLedger,
    LimboSurvey,
    end_limbo,
    find_doubtful_logs,
    survey_limbo,
)
from bkctl.storage.words import counted, listed

_TABLE = Table(
    "StorageLimboList",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("is_fenced", "FENCED"),
    Column("first_entry", "FIRST ENTRY", is_right=True),
    Column("last_entry", "LAST ENTRY", is_right=True),
    Column("ledger_directory", "LEDGER DIRECTORY"),
    name="ledger_id",
)
_PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("first_entry", "FIRST ENTRY", is_right=True),
    Column("last_entry", "LAST ENTRY", is_right=True),
    Column("path", "PATH"),
)
_KEPT_TABLE = Table(
    "Still in limbo",
    Column("path", "ENTRY LOG"),
    Column("reason", "PROBLEM"),
    Column("ledgers", "LEDGERS"),
)
_DoubtfulLogs = Sequence["DoubtfulLog"]


@command("list", example="storage limbo list", is_listing=True, is_local=True, is_configured_by_files=True)
@takes_storage_options
def list_ledgers(context: CommandContext, flags: BookieFlags) -> None:
    """List the ledgers in limbo of a stopped bookie: it reports their missing entries as "unknown".

    Entries of such a ledger may have been lost on this bookie. Limbo ends by itself when the bookie's repair has
    compared the ledger with other bookies. A ledger without a first and last entry has no entry here.
    """
    with (
        open_own_storage(context, flags, is_locked=True) as own,
        context.console.listing(_TABLE) as listing,
    ):
        survey = _survey(own)
        for directory in survey.directories:
            for ledger in directory.limbo:
                listing.add(_row(ledger) | {"ledger_directory": os.path.dirname(directory.ledger_directory)})
        if survey.is_unnoted:
            context.console.warn("the next start reads the metadata of all ledgers, and puts open ones in limbo")


@command(
    "end",
    example="storage limbo end --ledger 17",
    effect=Effect.HARMFUL,
    is_local=True,
    is_configured_by_files=True,
)
@takes_storage_options
async def end(
    context: CommandContext,
    flags: BookieFlags,
    ledger: Annotated[
        list[str] | None, typer.Option("--ledger", metavar="LEDGER", help="Only this ledger; repeatable")
    ] = None,
) -> Outcome:
    """End the limbo of ledgers of a stopped bookie. Use only if none of its entry logs was lost.

    Afterwards the bookie reports missing entries as "no such entry". If an acknowledged entry is missing, ledger
    recovery truncates the ledger before it: silent, permanent data loss. This command is for one case: the indexes of
    several bookies were rebuilt from complete logs, and their repairs wait for each other. End limbo on one bookie at a
    time; often one is enough.

    All entry logs are read first. Ledgers with entries in a damaged or missing log stay in limbo: with --ledger they
    are refused, otherwise they are skipped, with exit code 9.
    """
    chosen = None if ledger is None else {parse_ledger_id(each) for each in ledger}
    with open_own_storage(context, flags, is_locked=True) as own:
        require_agreeing_directories(own)
        require_no_java_index(own)
        survey = _survey(own)
        wanted = _wanted(survey, chosen)
        if not wanted:
            which = "no ledger" if chosen is None else "none of these ledgers"
            plan = make_plan(own, summary=[f"{which} is in limbo: nothing to do"])
            nothing_to_change(context, plan, table=_PLAN_TABLE)
            _report(context, ended_count=0, left_count=_limbo_count(survey), logs=())
            return Outcome.OK
        _require_settled(survey)
        with context.console.progress("reading entry logs") as progress:
            logs = await work_beside_loop(lambda require: _find_doubtful_logs(own, survey, wanted, progress, require))
        kept = {ledger_id for log in logs for ledger_id in log.ledger_ids}
        _require_any(wanted, kept, logs, is_named=chosen is not None)
        plan = _plan(own, survey, wanted - kept, logs)
        async with open_change(context, plan, table=_PLAN_TABLE) as change:
            own.locks.claim()
            ended_count = await work_beside_loop(lambda _: _end(own, survey, wanted - kept))
            change.details["ledgers"] = ended_count
    _report(context, ended_count=ended_count, left_count=_limbo_count(survey) - ended_count, logs=logs)
    context.console.say(
        "start the bookie: its repair is still due and compares all closed ledgers with other bookies; wait until its "
        "log reports the end of the integrity check, then check that the other bookies' repairs have ended too"
    )
    return Outcome.PARTIAL if kept else Outcome.OK


def _survey(own: OwnStorage) -> LimboSurvey:
    return survey_limbo(own.file_system, open_plyvel, own.config)


def _wanted(survey: LimboSurvey, chosen: Collection[int] | None) -> frozenset[int]:
    """Ledgers whose limbo is to end; omits chosen ledgers that are not in limbo."""
    limbo = frozenset(each.ledger_id for directory in survey.directories for each in directory.limbo)
    if chosen is None:
        return limbo
    known = limbo.union(*(directory.certain for directory in survey.directories))
    for ledger_id in sorted(chosen):
        if ledger_id not in known:
            raise NotFoundError(f"this bookie knows no ledger {ledger_id}")
    return limbo.intersection(chosen)


def _require_settled(survey: LimboSurvey) -> None:
    """RefusedError if more may be lost than the rows show, or if the ledgers would be in limbo again after a start."""
    if survey.dirty_path is not None:
        raise RefusedError(f"nothing was changed: {survey.dirty_path} exists, {UNCLEAN_ADVICE}")
    if survey.is_unnoted:
        raise RefusedError(
            "nothing was changed: the bookie does not know yet which ledgers may miss entries or fences; its "
            "next start reads the metadata of all ledgers: start it, wait for its repair, then stop it"
        )


def _require_any(wanted: Collection[int], kept: Collection[int], logs: _DoubtfulLogs, *, is_named: bool) -> None:
    if kept and (is_named or len(kept) == len(wanted)):
        raise RefusedError(
            f"nothing was changed: {'; '.join(map(_sentence, logs))}; entries in these logs may be lost here, and only "
            "the bookie's repair can restore them from other bookies (bkctl help lost-entries)"
        )


def _find_doubtful_logs(
    own: OwnStorage,
    survey: LimboSurvey,
    wanted: Collection[int],
    progress: Progress,
    require_wanted: Callable[[], None],
) -> list[DoubtfulLog]:
    found: list[DoubtfulLog] = []
    entry_bytes_max = own.config.engine.entry_log.entry_bytes_max
    for directory, ledgers in _by_directory(survey, wanted):
        found += find_doubtful_logs(
            own.file_system,
            open_plyvel,
            directory,
            [each.ledger_id for each in ledgers],
            entry_bytes_max,
            shown_progress(progress, require_wanted),
        )
    return found


def _end(own: OwnStorage, survey: LimboSurvey, ledger_ids: Collection[int]) -> int:
    return sum(
        end_limbo(own.file_system, open_plyvel, directory, [each.ledger_id for each in ledgers])
        for directory, ledgers in _by_directory(survey, ledger_ids)
    )


def _by_directory(
    survey: LimboSurvey, ledger_ids: Collection[int]
) -> Iterator[tuple[LimboDirectory, list[LimboLedger]]]:
    """The given ledgers of each directory, without directories that have none."""
    for directory in survey.directories:
        if ledgers := [each for each in directory.limbo if each.ledger_id in ledger_ids]:
            yield directory, ledgers


def _limbo_count(survey: LimboSurvey) -> int:
    return sum(len(directory.limbo) for directory in survey.directories)


def _plan(own: OwnStorage, survey: LimboSurvey, ledger_ids: Collection[int], logs: _DoubtfulLogs) -> Plan:
    items = [
        {"action": "end limbo", "path": directory.ledgers_path, "expected_version": None, **_row(ledger)}
        for directory, ledgers in _by_directory(survey, ledger_ids)
        for ledger in ledgers
    ]
    empty_count = sum(item["first_entry"] is None for item in items)
    summary = [
        f"will end the limbo of {counted(len(items), 'ledger')}, of {_limbo_count(survey)} in limbo here: the bookie "
        "will report missing entries as 'no such entry'; if an acknowledged entry was lost here, the loss will "
        "be permanent and silent",
        "only you can know that none was lost: no entry log, journal or directory was deleted, replaced, or restored "
        "from an older copy, and the bookie did not crash with journalWriteData=false",
    ]
    if empty_count:
        summary.append(f"{empty_count} of them have no entries on this bookie: check that this is correct")
    summary += [f"will stay in limbo: {_sentence(log)}" for log in logs]
    return make_plan(own, summary=summary, items=items)


def _report(context: CommandContext, *, ended_count: int, left_count: int, logs: _DoubtfulLogs) -> None:
    kept = [{"path": log.path, "reason": log.reason, "ledgers": _listed(log)} for log in logs]
    body = {"ledgers": ended_count, "ledgers_left": left_count}
    context.console.record("StorageLimboEnded", body, name="ledgers", details={"kept": kept})
    context.console.table(_KEPT_TABLE, kept)


def _row(ledger: LimboLedger) -> dict[str, Any]:
    return {
        "ledger_id": str(ledger.ledger_id),
        "is_fenced": ledger.is_fenced,
        "first_entry": None if ledger.first_entry_id is None else str(ledger.first_entry_id),
        "last_entry": None if ledger.last_entry_id is None else str(ledger.last_entry_id),
    }


def _sentence(log: DoubtfulLog) -> str:
    return f"{log.path}: {log.reason}, which concerns {counted(len(log.ledger_ids), 'ledger')} ({_listed(log)})"


def _listed(log: DoubtfulLog) -> str:

    return listed(log.ledger_ids)
