"""Child process of a running bookie that rebuilds the locations of one directory, with child processes of its own.

The bookie itself reads no logs and keeps no rows in memory. It waits for this process, then swaps in the new database.
The child writes only in the working directory, which is that of the new database. If the bookie is killed, the next
rebuild deletes this directory, so a child that outlives its bookie for a moment cannot write anywhere.
"""

from __future__ import annotations

from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.entry_log.scan_order import LogDirectory, from_oldest
from bkctl.storage.filenames import parse_claimed_entry_log_id
from bkctl.storage.ports import ChildContext, ChildHandlers
from bkctl.storage.rebuild.directory import LocationRebuild
from bkctl.storage.rebuild.online_tasks import BuildLocations, BuiltLocations
from bkctl.storage.rebuild.rebuild import CHILD_MODULE


class _Reports:
    """Passes the progress to the bookie."""

    def __init__(self, context: ChildContext) -> None:
        self.begin = context.begin
        self.advance = context.report


def build_locations(task: BuildLocations, context: ChildContext) -> BuiltLocations:
    """Scan the existing logs and build the database."""
    filesystem, children, here = context.file_system, context.children, context.directory
    names = filesystem.list_directory(task.ledger_directory)
    claimed = {log_id for name in names if (log_id := parse_claimed_entry_log_id(name)) is not None}
    # The collector handles leftovers of a compaction. If two logs have the same entry, the newer log wins.
    log_ids = from_oldest(list_entry_logs(filesystem, task.ledger_directory), claimed)
    directory = LogDirectory(tuple(log_ids), (), (), ())
    with children.pool(CHILD_MODULE, here, children.core_count) as pool:
        rebuild = LocationRebuild(
            filesystem, task.config, task.position, task.ledger_directory, here, pool, _Reports(context)
        )
        scanned = rebuild.scan(directory, keeps_rows=True)
        row_count = rebuild.load(context.open_index, scanned.runs, task.known_ledgers)
    damaged_ledgers = sorted(scanned.affected(task.known_ledgers))
    damages = tuple((log.path, log.damage.reason) for log in scanned.damaged)
    return BuiltLocations(len(log_ids), scanned.entry_count, row_count, damages, damaged_ledgers)


HANDLERS: ChildHandlers = {BuildLocations: build_locations}
