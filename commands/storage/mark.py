"""``bkctl storage mark``: position up to which each journal is in the ledger storage, from every file that has it."""

from __future__ import annotations

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.rendering import Column, Table
from bkctl.commands.shared_options import takes_storage_options
from bkctl.commands.storage.own_storage import OwnStorage, open_own_storage
from bkctl.storage.errors import StorageError
from bkctl.storage.filenames import current_directory, journal_file_name
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.log_mark import JournalMarks, survey_marks
from bkctl.storage.journal.reader import journals_to_replay

_TABLE = Table(
    "StorageMarkList",
    Column("journal", "JOURNAL", is_right=True, priority=1),
    Column("source", "SOURCE"),
    Column("file", "JOURNAL FILE"),
    Column("journal_id", "JOURNAL ID", is_right=True, priority=2),
    Column("offset", "OFFSET", is_right=True),
    Column("state", "STATE"),
    Column("is_used", "USED"),
    Column("path", "PATH", priority=3),
    name="path",
)


@command("mark", example="storage mark", is_listing=True, is_local=True, is_configured_by_files=True)
@takes_storage_options
def mark(context: CommandContext, flags: BookieFlags) -> None:
    """Show the marks of the bookie's journals: records before a mark are safe in ledger storage.

    There is one line for each file with a mark: lastMark, which Java reads, and bkctl.mark, the same with a checksum,
    which a bkctl bookie uses. The last line of a journal is where replay would start; "used" shows the files that this
    follows from; it is "missing" if its journal file, or a later one, is. A journal id is the decimal form of the
    hexadecimal name of a .txn file.
    """
    with (
        open_own_storage(context, flags, is_locked=False) as own,
        context.console.listing(_TABLE) as listing,
    ):
        for journal in survey_marks(own.file_system, own.config):
            trouble = _missing_journal(own, journal)
            for row in _rows(journal, is_whole=trouble is None):
                listing.add(row)
            if trouble := trouble or journal.trouble:
                context.console.warn(trouble)


def _missing_journal(own: OwnStorage, journal: JournalMarks) -> str | None:
    """Why a start could not replay the journal; None: all its files are there, or it has no start."""
    if journal.replay_start is None:
        return None
    directory = current_directory(journal.directory)
    try:
        journals_to_replay(own.file_system, directory, journal.replay_start, read_catalog(own.file_system, directory))
    except (StorageError, OSError) as error:
        return str(error)
    return None


def _rows(journal: JournalMarks, *, is_whole: bool) -> list[dict[str, object]]:
    start = journal.replay_start
    # Once bkctl has written a record, Java's mark is ignored.
    counts = any(file.is_record and file.mark is not None for file in journal.files)
    rows: list[dict[str, object]] = []
    for file in journal.files:
        is_used = file.mark is not None and file.mark == start and file.is_record == counts
        source = "bkctl.mark" if file.is_record else "lastMark"
        rows.append(_row(journal.journal_index, source, file.mark, file.state.value, file.path) | {"is_used": is_used})
    if start is None:
        state = "unknown"
    elif not is_whole:
        state = "missing"
    else:
        state = "everything" if start == (0, 0) else "intact"
    rows.append(_row(journal.journal_index, "replay", start, state, journal.directory) | {"is_used": None})
    return rows


def _row(journal_index: int, source: str, mark: LogMark | None, state: str, path: str) -> dict[str, object]:
    is_named = mark is not None and mark.journal_id >= 0 and mark != (0, 0)
    return {
        "journal": journal_index,
        "source": source,
        "file": journal_file_name(mark.journal_id) if mark is not None and is_named else None,
        "journal_id": None if mark is None else str(mark.journal_id),
        "offset": None if mark is None else mark.offset,
        "state": state,
        "is_used": None,
        "path": path,
    }
