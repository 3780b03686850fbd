"""``bkctl bookie index``: rebuild the location indexes of a running bookie."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from bkctl.commands.bookie.admin_access import DirectoryOption, IdArgument, TokenOption, open_for_change
from bkctl.commands.bookie.admin_state import change_plan
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, NotFoundError, Outcome
from bkctl.commands.progress import Progress
from bkctl.commands.rendering import Column, Lines, Table
from bkctl.commands.safety.gate import open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.storage.index import ONE_AT_A_TIME
from bkctl.runtime.admin.api import JobsAnswer, JobState, RebuildJob, RebuildSize, StepProgress
from bkctl.runtime.admin.calls import BKCTL_API, REBUILD_JOB
from bkctl.runtime.admin.client import AdminClient
from bkctl.runtime.admin.messages import AdminError, Problem
from bkctl.runtime.errors import BookieTimeoutError, BookieUnavailableError, RefusedError
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import counted, size

_POLL_S: Final = 0.5
_START_S: Final = 2
_ENTRIES_PER_S: Final = 300_000
"""For the plan: measured on two busy cores, logs in memory."""

_PLAN_TABLE = Table("Changes", Column("action", "ACTION"), Column("path", "PATH"))
_DIRECTORY_TABLE = Table(
    "Directories",
    Column("ledger_directory", "LEDGER DIRECTORY"),
    Column("logs", "LOGS", is_right=True, priority=1),
    Column("entries", "ENTRIES FOUND", is_right=True, priority=2),
    Column("locations", "LOCATIONS", is_right=True),
    Column("limbo", "IN LIMBO", is_right=True),
)
_DAMAGE_TABLE = Table("Damage", Column("path", "FILE"), Column("reason", "DAMAGE"))


@command(
    "rebuild", example="bookie index rebuild --online --dry-run", effect=Effect.HARMFUL, milder_effect=Effect.REVERSIBLE
)
async def rebuild(
    context: CommandContext,
    bookie_id: IdArgument = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
    online: Annotated[bool, typer.Option("--online", help="Rebuild while the bookie serves reads")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and do not wait for its end")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the rebuild that is running")] = False,
) -> Outcome:
    """Rebuild the location indexes of a running bookie from its entry logs.

    Until the end the bookie refuses writes, also those of recovery; then it returns to its mode. It serves reads, and
    reports missing entries as "unknown". If a rebuild is already running, the command follows it.
    """
    if detach and cancel:
        raise InvalidArgumentError("use either --detach or --cancel")
    if not online and not cancel:
        raise InvalidArgumentError(
            "add --online to rebuild the index of a running bookie; for a stopped one use `bkctl storage index rebuild`"
        )
    async with open_for_change(context, bookie_id, directory, token_file) as client:
        found = await _rebuild_size(client)
        running = await _running_job(client)
        if cancel:
            return await _cancel(context, client, found, running)
        if running is not None:
            context.console.say(f"a rebuild is already running in bookie {found.bookie_id}: job {running.id}")
        job = running or await _begin(context, client, found)
        if detach:
            context.console.say(_advice(found))
            return _report(context, found, job)
        return _report(context, found, await _follow(context, client, found, job))


async def _rebuild_size(client: AdminClient) -> RebuildSize:
    try:
        return await client.get(f"{BKCTL_API}/index/rebuild", RebuildSize)
    except AdminError as error:
        if error.problem is not Problem.NOT_FOUND:
            raise
        raise RefusedError(
            f"nothing was changed: bookie {client.name} cannot rebuild its index while it runs; only bkctl bookies can"
        ) from error


async def _running_job(client: AdminClient) -> RebuildJob | None:
    for job in (await client.get(f"{BKCTL_API}/jobs", JobsAnswer)).jobs:
        if job.kind == REBUILD_JOB and job.state is JobState.RUNNING:
            return await client.get(f"{BKCTL_API}/jobs/{job.id}", RebuildJob)
    return None


async def _begin(context: CommandContext, client: AdminClient, found: RebuildSize) -> RebuildJob:
    async with open_change(context, _plan(found), table=_PLAN_TABLE, totals=_totals(found)) as change:
        job = await client.post(f"{BKCTL_API}/index/rebuild", RebuildJob)
        change.details, change.result = {"job": job.id}, "started"
    return job


async def _cancel(context: CommandContext, client: AdminClient, found: RebuildSize, job: RebuildJob | None) -> Outcome:
    if job is None:
        raise NotFoundError(f"bookie {found.bookie_id}: no index rebuild is running")
    item = {"action": "cancel", "path": f"job {job.id}"}
    summary = f"will cancel the index rebuild of bookie {found.bookie_id}"
    plan = change_plan(found, item, summary=(summary,), effect=Effect.REVERSIBLE)
    async with open_change(context, plan, table=_PLAN_TABLE):
        ended = await client.delete(f"{BKCTL_API}/jobs/{job.id}", RebuildJob)
    ended = await _follow(context, client, found, ended)
    if ended.state is not JobState.CANCELLED:
        context.console.warn("the rebuild ended before it was cancelled")
        return _report(context, found, ended)
    _print(context, found, ended)
    context.console.say(_cancelled(found, ended))
    return Outcome.OK


def _totals(found: RebuildSize) -> dict[str, int]:
    names = {"log_count": "logs", "log_bytes": "log_bytes", "entry_count": "entries", "ledger_count": "ledgers"}
    return {name: sum(getattr(each, key) for each in found.directories) for key, name in names.items()}


def _plan(found: RebuildSize) -> Plan:
    totals = _totals(found)
    seconds = _START_S + totals["entries"] // _ENTRIES_PER_S
    bookie_id = found.bookie_id
    summary = (
        f"bookie {bookie_id} will read {counted(totals['logs'], 'entry log')} with {size(totals['log_bytes'])} and "
        f"write the locations of about {counted(totals['entries'], 'entry', 'entries')} of "
        f"{counted(totals['ledgers'], 'ledger')}: about {seconds} s on two cores, longer if the disk takes "
        "longer to read the logs",
        "until the end it is read-only and refuses all writes, also those of recovery; it serves reads, and reports "
        "missing entries as 'unknown'; garbage collection is paused",
        "afterwards it returns to its mode, and reports missing entries as 'unknown' until it has compared its ledgers "
        f"with other bookies. {ONE_AT_A_TIME}",
    )
    items = tuple({"action": "rebuild", "path": each.path, "expected_version": None} for each in found.directories)
    return Plan(
        root=found.metadata_root, instance_id=found.instance_id, subject=bookie_id, summary=summary, items=items
    )


async def _follow(context: CommandContext, client: AdminClient, found: RebuildSize, job: RebuildJob) -> RebuildJob:
    """The job, once it has ended. If interrupted, say that it continues."""
    started_ms = job.started_ms
    try:
        with context.console.progress("rebuilding the index") as bar:
            while job.state is JobState.RUNNING:
                _show(bar, job.progress)
                await asyncio.sleep(_POLL_S)
                job = await _look_again(client, found, job.id, started_ms)
    except asyncio.CancelledError:
        context.console.warn(f"the rebuild continues in the bookie. {_advice(found)}")
        raise
    return job


async def _look_again(client: AdminClient, found: RebuildSize, job_id: int, started_ms: int) -> RebuildJob:
    ended = "it ended before its index was rebuilt: it uses the old index, or the new one if that was complete"
    job = None
    try:
        job = await client.get(f"{BKCTL_API}/jobs/{job_id}", RebuildJob)
    except BookieUnavailableError as error:
        raise BookieUnavailableError(found.bookie_id, f"no longer answers; if {ended}. {_advice(found)}") from error
    except BookieTimeoutError as error:
        words = f"no answer in time (--timeout); if it still runs, the rebuild continues. {_advice(found)}"
        raise BookieTimeoutError(found.bookie_id, words) from error
    except AdminError as error:
        if error.problem is not Problem.NOT_FOUND:
            raise
    if job is None or job.started_ms != started_ms:
        raise BookieUnavailableError(found.bookie_id, f"was restarted; {ended}. Run the command again")
    return job


def _show(bar: Progress, progress: StepProgress) -> None:
    done, total, unit = progress.done, progress.total, progress.unit
    if total is None:
        bar.update(0, None, progress.step, "")
        return
    if unit == "bytes":
        bar.update(done / 2**20, total / 2**20, progress.step, f"{done >> 20:,}/{total >> 20:,} MiB")
    else:
        bar.update(done, total, progress.step, f"{done:,}/{total:,} {unit}")


def _advice(found: RebuildSize) -> str:
    words = f"bkctl bookie index rebuild {found.bookie_id}"
    return f"To look: `{words} --online`; to cancel: `{words} --cancel`"


def _report(context: CommandContext, found: RebuildSize, job: RebuildJob) -> Outcome:
    if job.problem == Problem.REFUSED.word:
        raise RefusedError(f"bookie {found.bookie_id}: {job.error}")
    if job.state is JobState.FAILED:
        raise BkctlError(f"bookie {found.bookie_id}: the rebuild failed: {job.error}{_rebuilt(job)}")
    if job.state is JobState.CANCELLED:
        raise BkctlError(f"bookie {found.bookie_id}: {_cancelled(found, job)}")
    damages = _print(context, found, job)
    if damages:
        context.console.warn("entries may be missing: their ledgers are fenced on this bookie and in limbo")
    return Outcome.PARTIAL if damages else Outcome.OK


def _cancelled(found: RebuildSize, job: RebuildJob) -> str:
    rebuilt = _rebuilt(job)
    if not rebuilt:
        return "the rebuild was cancelled; the old index is in use"
    is_whole = len(job.rebuilt) == len(found.directories)
    return f"the rebuild was cancelled{rebuilt}" + ("" if is_whole else "; the other directories use the old one")


def _rebuilt(job: RebuildJob) -> str:
    """The directories that have the new index, as the end of a sentence; empty if none has."""
    names = (f"{each.ledger_directory} ({counted(each.limbo_count, 'ledger')} in limbo)" for each in job.rebuilt)
    return f"; the new index is in use in {', '.join(names)}" if job.rebuilt else ""


def _print(context: CommandContext, found: RebuildSize, job: RebuildJob) -> list[dict[str, str]]:
    """Print the job and its result, if it has one; returns the damages."""
    directories: list[dict[str, Any]] = [
        {
            "ledger_directory": each.ledger_directory,
            "logs": each.log_count,
            "entries": each.entry_count,
            "locations": each.row_count,
            "limbo": each.limbo_count,
        }
        for each in job.rebuilt
    ]
    damages = [{"path": path, "reason": reason} for each in job.rebuilt for path, reason in each.damages]
    body: dict[str, Any] = {"bookie_id": found.bookie_id, "job": job.id, "state": job.state.value}
    is_done = job.state is JobState.DONE
    for name in ("entries", "locations", "limbo"):
        body[name] = sum(each[name] for each in directories) if is_done else None
    body["is_complete"] = not damages if is_done else None
    body["seconds"] = None if job.ended_ms is None else (job.ended_ms - job.started_ms) / 1000
    console = context.console
    console.record(
        "BookieIndexRebuild",
        body,
        name="job",
        details={"directories": directories, "damages": damages},
        lines=Lines(_DIRECTORY_TABLE, directories),
    )
    if directories:
        console.table(_DIRECTORY_TABLE, directories)
        console.table(_DAMAGE_TABLE, damages)
    if body["limbo"]:
        console.say(f"{counted(body['limbo'], 'ledger')} in limbo until compared with other bookies. {ONE_AT_A_TIME}")
    return damages
