"""Child of a running bookie that builds the locations of one directory anew, with children of its own.

The bookie itself reads no log and holds no row: it waits for this process, then puts the new database in place. The
working folder is the new database's, and nothing is written under any other name: when the bookie is killed and
somebody else rebuilds, the folder is deleted, and a child that goes on for a moment writes nowhere.
"""

from __future__ import annotations

from storage.entry_log.reader import list_entry_logs
from storage.entry_log.scan_order import LogFolder, from_oldest
from storage.filenames import parse_claimed_entry_log_id
from storage.ports import ChildContext, ChildHandlers, OnProgress
from storage.rebuild.directory import LocationRebuild
from storage.rebuild.online_tasks import BuildLocations, BuiltLocations
from storage.rebuild.rebuild import CHILD_MODULE


class _UnstagedProgress:
    """Hands on what is done, whatever the stage."""

    def __init__(self, report: OnProgress) -> None:
        self.advance = report

    def begin(self, stage: str, total: int) -> None:
        """The stages are not told apart."""


def build_locations(task: BuildLocations, context: ChildContext) -> BuiltLocations:
    """Scan the logs that are there and make the database."""
    filesystem, children, here = context.file_system, context.children, context.directory
    names = filesystem.list_directory(task.ledger_directory)
    claimed = {log_id for name in names if (log_id := parse_claimed_entry_log_id(name)) is not None}
    # What a compaction left is the collector's affair: of two logs with one entry the newer one counts.
    log_ids = from_oldest(list_entry_logs(filesystem, task.ledger_directory), claimed)
    folder = LogFolder(tuple(log_ids), (), (), ())
    with children.pool(CHILD_MODULE, here, children.core_count) as pool:
        rebuild = LocationRebuild(
            filesystem, task.config, task.position, task.ledger_directory, here, pool, _UnstagedProgress(context.report)
        )
        scanned = rebuild.scan(folder, keeps_rows=True)
        row_count = rebuild.load(context.open_index, scanned.runs, task.known_ledgers)
    damaged_ledgers = sorted(scanned.affected(task.known_ledgers))
    damages = tuple((log.path, log.damage.reason) for log in scanned.damaged)
    return BuiltLocations(len(log_ids), scanned.entry_count, row_count, damages, damaged_ledgers)


HANDLERS: ChildHandlers = {BuildLocations: build_locations}
