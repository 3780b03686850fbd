"""``bkctl storage index check``: whether a stopped bookie's indexes are whole, and every location true."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from commands.command import command
from commands.context import BookieFlags, CommandContext
from commands.outcome import Outcome
from commands.rendering import Column, Lines, Table
from commands.shared_options import takes_bookie_options
from commands.storage.folder_lists import WAY_OUT, Contradiction, find_contradictions
from commands.storage.index_watch import StageWatch
from commands.storage.own_storage import OwnStorage, open_own_storage
from commands.storage.working import work_beside_loop

if TYPE_CHECKING:
    from commands.progress import Progress
    from storage.offline.index_check import DirectoryCheck

_DIRECTORY_TABLE = Table(
    "Directories",
    Column("ledger_directory", "LEDGER FOLDER"),
    Column("ledger_index", "LEDGER ROWS", priority=1),
    Column("location_index", "LOCATIONS", priority=1),
    Column("ledgers", "LEDGERS", is_right=True, priority=3),
    Column("locations", "ENTRIES", is_right=True, priority=3),
    Column("unowned", "OF DELETED LEDGERS", is_right=True, priority=4),
    Column("problems", "PROBLEMS", is_right=True),
)
_FINDING_TABLE = Table(
    "Findings",
    Column("path", "FILE"),
    Column("ledger_id", "LEDGER", is_right=True),
    Column("entry_id", "ENTRY", is_right=True),
    Column("offset", "OFFSET", is_right=True),
    Column("reason", "FINDING"),
)


@command("check", example="storage index check", is_cut=True, is_local=True, is_configured_by_files=True)
@takes_bookie_options
async def check(context: CommandContext, flags: BookieFlags) -> Outcome:
    """Check the indexes of a stopped bookie: seals, every row, and every location in its entry log.

    20 bytes of each entry are read, not its body; bkctl ledger verify compares bodies with their digests. Problems are
    listed, and the exit code is then 10. bkctl storage index rebuild repairs a missing or damaged index, unless the
    index is that of a Java bookie. It does not remove locations without an entry, because they keep the bookie from
    answering "no such entry" (docs/runbooks/corrupt-log.md).
    """
    from storage.index.advice import advise_on_lost_index

    with (
        open_own_storage(context, flags, is_locked=True) as own,
        context.console.progress("checking the index") as progress,
    ):
        contradictions = list(find_contradictions(own))
        found = await work_beside_loop(lambda require_wanted: _check(own, progress, require_wanted))
        is_lost = any(state.is_lost for directory in found for state in directory.states.values())
        lost_advice = advise_on_lost_index(own.file_system, own.config) if is_lost else None
    _tell(context, found, contradictions, WAY_OUT if contradictions else lost_advice)
    is_sound = not contradictions and all(directory.is_sound for directory in found)
    return Outcome.OK if is_sound else Outcome.FINDINGS


def _check(own: OwnStorage, progress: Progress, require_wanted: Callable[[], None]) -> list[DirectoryCheck]:
    from storage.adapters.index_store import open_plyvel
    from storage.offline.index_check import IndexCheck

    return IndexCheck(
        own.file_system, open_plyvel, own.children, own.config, StageWatch(progress, require_wanted)
    ).run()


def _tell(
    context: CommandContext,
    found: Sequence[DirectoryCheck],
    contradictions: Sequence[Contradiction],
    advice: str | None,
) -> None:
    """``advice``: what to do about the contradictions, or about indexes that are lost, if there are any."""
    directories = [_directory_row(directory) for directory in found]
    findings = [_finding(path, reason) for path, reason in contradictions]
    findings += [finding for directory in found for finding in _findings(directory)]
    body = {
        "is_sound": not contradictions and all(directory.is_sound for directory in found),
        "ledgers": sum(directory.ledger_count for directory in found),
        "locations": sum(directory.location_count for directory in found),
        "problems": len(contradictions) + sum(row["problems"] for row in directories),
    }
    context.console.record(
        "StorageIndexCheck",
        body,
        name="is_sound",
        details=context.console.cut({"directories": directories, "findings": findings}),
        lines=Lines(_FINDING_TABLE, findings),
    )
    context.console.table(_DIRECTORY_TABLE, directories)
    context.console.table(_FINDING_TABLE, findings)
    if advice is not None:
        context.console.say(advice)
        return
    missing_count = sum(len(directory.missing_logs) for directory in found)
    if missing_count:
        context.console.say("what to do about logs that are not there is in docs/runbooks/missing-log.md")
    if len(findings) > missing_count:
        # A new index knows nothing of an entry whose ids in the log are damaged, and would deny it.
        context.console.say(
            "leave the index as it is: while it names these entries, readers are told of an error and ask other "
            "bookies; what to do is in docs/runbooks/corrupt-log.md"
        )


def _directory_row(directory: DirectoryCheck) -> dict[str, Any]:
    from storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE

    lost = sum(state.is_lost for state in directory.states.values())
    return {
        "ledger_directory": os.path.dirname(directory.ledger_directory),
        "ledger_index": directory.states[LEDGERS_DATABASE].condition.value,
        "location_index": directory.states[LOCATIONS_DATABASE].condition.value,
        "ledgers": directory.ledger_count,
        "locations": directory.location_count,
        "unowned": directory.unowned_count,
        "problems": directory.problem_count + lost,
    }


def _findings(directory: DirectoryCheck) -> Iterator[dict[str, Any]]:
    from storage.filenames import entry_log_file_name

    for name, state in directory.states.items():
        if state.is_lost:
            yield _finding(os.path.join(directory.index_directory, name), state.detail)
    for log in directory.missing_logs:
        yield _finding(os.path.join(directory.ledger_directory, entry_log_file_name(log.log_id)), log.reason)
    for damage in directory.row_damages:
        yield _finding(directory.index_directory, damage)
    for problem in directory.problems:
        yield {
            "path": os.path.join(directory.ledger_directory, problem.log),
            "ledger_id": str(problem.ledger_id),
            "entry_id": str(problem.entry_id),
            "offset": problem.offset,
            "reason": problem.reason,
        }


def _finding(path: str, reason: str) -> dict[str, Any]:
    return {"path": path, "ledger_id": None, "entry_id": None, "offset": None, "reason": reason}
