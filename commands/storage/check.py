"""``bkctl storage check``: read everything that a stopped bookie has on its disks once, and check it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.progress import Progress
from bkctl.commands.rendering import Column, Table
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.files import file_rows
from bkctl.commands.storage.own_storage import FIX, OwnStorage, find_contradictions, open_own_storage
from bkctl.commands.storage.working import work_beside_loop
from bkctl.runtime.bookie.cookies.directories import read_directory, version_path
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.offline.storage_check import CheckedCounts, StorageCheck, StorageFinding
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted

_TABLE = Table(
    "StorageFindingList",
    Column("severity", "SEVERITY"),
    Column("check", "CHECK"),
    Column("path", "PATH"),
    Column("ledger_id", "LEDGER", is_right=True, priority=2),
    Column("entry_id", "ENTRY", is_right=True, priority=2),
    Column("offset", "OFFSET", is_right=True, priority=1),
    Column("finding", "FINDING"),
    Column("fix", "FIX"),
    name="path",
)


@command(
    "check",
    example="storage check --conf conf/bk_server.conf",
    is_listing=True,
    is_local=True,
    is_configured_by_files=True,
)
@takes_storage_options
async def check(
    context: CommandContext,
    flags: BookieFlags,
    deep: Annotated[bool, typer.Option("--deep", help="Also look up every entry of the index in its log")] = False,
) -> Outcome:
    """Check a stopped bookie's files: VERSION files, marks, journals, entry logs, index seals, .idx files of Java.

    Journals and entry logs are read to their ends. Each finding is listed with its file, its offset if known, and
    the fix. One that is critical stops the next start or means that data may be missing, and makes the exit code
    10; information is what a crash leaves, or what has no effect. --deep also reads the 20 bytes in the log where
    each entry begins, which alone finds an entry whose ID was changed in place; it lists up to 1,000 per ledger
    directory.

    Nothing is changed, except by LevelDB when it opens a database. bkctl ledger verify checks the contents of
    entries, which needs the ledger's password.
    """
    with (
        open_own_storage(context, flags, is_locked=True) as own,
        context.console.listing(_TABLE) as listing,
    ):
        rows = [*_version_rows(own), *_stray_rows(own)]
        with context.console.progress("checking") as progress:
            found, counts = await work_beside_loop(lambda require: _check(own, progress, require, is_deep=deep))
        rows += [_row(finding) for finding in found]
        for row in rows:
            listing.add(row)
    context.console.say(
        f"read {counted(counts.journal_count, 'journal')} with {counted(counts.record_count, 'record')} and "
        f"{counted(counts.log_count, 'entry log')} with {counted(counts.entry_count, 'entry', 'entries')}; the indexes "
        f"have {counted(counts.location_count, 'location')} of {counted(counts.ledger_count, 'ledger')}"
    )
    return Outcome.FINDINGS if any(row["severity"] == Severity.CRITICAL.value for row in rows) else Outcome.OK


def _check(
    own: OwnStorage, progress: Progress, require_wanted: Callable[[], None], *, is_deep: bool
) -> tuple[list[StorageFinding], CheckedCounts]:
    def on_progress(path: str) -> None:
        require_wanted()
        progress.update(whole.counts.journal_count + whole.counts.log_count, None, path)

    whole = StorageCheck(own.file_system, open_plyvel, own.config, on_progress, own.children if is_deep else None)
    return list(whole.findings()), whole.counts


def _version_rows(own: OwnStorage) -> Iterator[dict[str, Any]]:
    """Problems that would make a start fail early; ``bkctl cookie verify`` checks the stored cookie."""
    for contradiction in find_contradictions(own):
        yield _problem("VERSION", contradiction.path, contradiction.reason, FIX)
    for directory in own.config.all_directories:
        state = read_directory(own.file_system, directory)
        reason = state.damage or state.trouble
        if reason is None and state.cookie is None and state.has_files:
            reason = "it is missing, but the directory contains a bookie's files"
        if reason is not None:
            yield _problem("VERSION", version_path(directory), reason, "bkctl cookie verify, with the same settings")


def _stray_rows(own: OwnStorage) -> Iterator[dict[str, Any]]:
    """Files that cause problems, but only for Java: they are only information."""
    for row in file_rows(own):
        if row["trouble"] is not None:
            yield _row(
                StorageFinding(
                    "names", row["path"], f"{row['meaning']}: {row['trouble']}", severity=Severity.INFORMATION
                )
            )


def _row(finding: StorageFinding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value,
        "check": finding.check,
        "path": finding.path,
        "ledger_id": None if finding.ledger_id is None else str(finding.ledger_id),
        "entry_id": None if finding.entry_id is None else str(finding.entry_id),
        "offset": finding.offset,
        "finding": finding.reason,
        "fix": finding.fix,
    }


def _problem(check: str, path: str, reason: str, fix: str) -> dict[str, Any]:
    return _row(StorageFinding(check, path, reason, fix=fix))
