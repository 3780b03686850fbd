"""Whether the indexes of a stopped bookie are whole and say the truth: seals, rows, and every location.

Java checks the rows of its ledgers index alone, and no location at all (storage sections 11.3 and 11.4). Here the
databases are opened as a boot opens them, every row is read with its checksum and parsed, and each location is looked
up in its log by the 20 bytes that begin an entry.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from storage.config import StorageConfig
from storage.entry_log.reader import list_entry_logs
from storage.errors import IndexDamagedError
from storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, seal_file_name
from storage.ids import LedgerId
from storage.index.ledger_index import LedgerIndex
from storage.index.location_index import KEY_BYTES, KEY_END, LOCATION_BYTES
from storage.index.opening import open_or_view_index
from storage.index.seal import SealedIndex
from storage.index.state import DATABASES, IndexCondition, IndexState, inspect_index
from storage.offline.log_shortfalls import PIECE_ROW_COUNT, UNMEASURED, LogShortfall, LogShortfalls
from storage.offline.probe_child import PROBLEM_COUNT_MAX, LocationProblem, Probed, ProbeRows
from storage.ports import Children, FileSystem, OpenIndexStore
from storage.rebuild.directory import RebuildWatch

CHILD_MODULE: Final = "storage.offline.probe_child"
_LEDGER_ID = struct.Struct(">q")


class DirectoryCheck(msgspec.Struct):
    """What was found in one ledger directory."""

    ledger_directory: str
    index_directory: str
    states: dict[str, IndexState]
    ledger_count: int = 0
    location_count: int = 0
    unowned_count: int = 0
    """Locations of ledgers that have no row: of deleted ones, which a crash left; harmless."""
    missing_logs: list[LogShortfall] = []
    """Logs that rows name and that are not there, each one problem."""
    problems: list[LocationProblem] = []
    problem_count: int = 0
    """Of logs, of locations and of rows; those of locations beyond the first thousand are counted and not kept."""
    row_damages: list[str] = []

    @property
    def is_sound(self) -> bool:
        """Whether there is nothing to complain of."""
        are_sound = all(state.condition in {IndexCondition.SOUND, IndexCondition.NEW} for state in self.states.values())
        return are_sound and not self.problem_count


class IndexCheck:
    """Checks the directories of a bookie one after the other; their folders must be locked."""

    def __init__(
        self,
        filesystem: FileSystem,
        open_index: OpenIndexStore,
        children: Children,
        config: StorageConfig,
        watch: RebuildWatch,
    ) -> None:
        self._filesystem = filesystem
        self._children = children
        self._open_index = open_index
        self._config = config
        self._watch = watch

    def run(self) -> list[DirectoryCheck]:
        """Damage is a finding; StorageError and OSError for what stops the check itself."""
        return [self._check(*folders) for folders in self._config.engine_folders]

    def _check(self, ledger_directory: str, index_directory: str) -> DirectoryCheck:
        states = {
            name: inspect_index(self._filesystem, self._open_index, ledger_directory, index_directory, name)
            for name in DATABASES
        }
        found = DirectoryCheck(ledger_directory, index_directory, states)
        ledger_ids: set[LedgerId] | None = None
        if states[LEDGERS_DATABASE].condition is IndexCondition.SOUND:
            rows = self._open(index_directory, LEDGERS_DATABASE)
            try:
                ledger_ids = set(LedgerIndex.load(rows))
            finally:
                rows.close()
            found.ledger_count = len(ledger_ids)
        if states[LOCATIONS_DATABASE].condition is IndexCondition.SOUND:
            rows = self._open(index_directory, LOCATIONS_DATABASE)
            try:
                self._check_locations(found, rows, ledger_ids)
            finally:
                rows.close()
        return found

    def _open(self, index_directory: str, name: str) -> SealedIndex:
        path = os.path.join(index_directory, name)
        return open_or_view_index(self._filesystem, self._open_index, path, seal_file_name(path))

    def _check_locations(self, found: DirectoryCheck, rows: SealedIndex, ledger_ids: set[LedgerId] | None) -> None:
        self._watch.begin(f"probing the locations of {os.path.dirname(found.ledger_directory)}", 0)
        shortfalls = LogShortfalls(dict.fromkeys(list_entry_logs(self._filesystem, found.ledger_directory), UNMEASURED))
        with self._children.pool(CHILD_MODULE, found.index_directory, self._children.core_count) as pool:
            for _, probed in pool.run(self._tasks(found, rows, ledger_ids, shortfalls), Probed, self._watch.advance):
                found.problem_count += probed.problem_count
                found.problems += probed.problems[: PROBLEM_COUNT_MAX - len(found.problems)]
        found.missing_logs = shortfalls.found()
        found.problem_count += len(found.missing_logs)

    def _tasks(
        self, found: DirectoryCheck, rows: SealedIndex, ledger_ids: set[LedgerId] | None, shortfalls: LogShortfalls
    ) -> Iterator[ProbeRows]:
        """All rows in bounded pieces but those that name a missing log; what is no location row is noted."""
        directory = os.path.abspath(found.ledger_directory)
        entry_bytes_max = self._config.engine.entry_log.entry_bytes_max
        parts: list[bytes] = []
        owner, is_owned = b"", True
        try:
            for key, value in rows.scan(b"", KEY_END):
                if len(key) != KEY_BYTES or len(value) != LOCATION_BYTES:
                    found.problem_count += 1
                    if len(found.row_damages) < PROBLEM_COUNT_MAX:
                        found.row_damages.append(f"{rows.path}: {key.hex()} -> {value.hex()} is no location")
                    continue
                if key[:8] != owner:
                    owner = key[:8]
                    is_owned = ledger_ids is None or _LEDGER_ID.unpack(owner)[0] in ledger_ids
                found.location_count += 1
                found.unowned_count += not is_owned
                if not is_owned:
                    continue
                parts += (key, value)
                if len(parts) >= 2 * PIECE_ROW_COUNT:
                    yield ProbeRows(
                        directory=directory, rows=shortfalls.take(b"".join(parts)), entry_bytes_max=entry_bytes_max
                    )
                    parts = []
        except IndexDamagedError as error:
            found.problem_count += 1
            found.row_damages.append(str(error))
        if parts:
            yield ProbeRows(directory=directory, rows=shortfalls.take(b"".join(parts)), entry_bytes_max=entry_bytes_max)
