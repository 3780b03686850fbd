"""Whether the next start could replay the journals: the replay itself, into ledger rows in memory. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bkctl.storage.config import StorageConfig
from bkctl.storage.engine.memtable import body_bytes_max, too_large
from bkctl.storage.engine.replay import JournalReplay, ReplayReport
from bkctl.storage.errors import StorageError
from bkctl.storage.filenames import LEDGERS_DATABASE, current_directory, seal_file_name
from bkctl.storage.ids import EntryId, LedgerId
from bkctl.storage.index.ledger_index import LedgerIndex
from bkctl.storage.index.seal import is_sealed_index_present, view_sealed_index
from bkctl.storage.index.swap import rebuilt_path
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.log_mark import find_replay_start
from bkctl.storage.journal.reader import list_journals
from bkctl.storage.ports import FileSystem, OpenIndexStore
from bkctl.storage.step_sizes import USUAL_STEPS, StepSizes


class RehearsalImpossibleError(StorageError):
    """The start first creates, repairs or replaces an index, so the rows that replay will find are not known."""


class _Rehearsal:
    """The ledgers of one directory. Their rows change in memory only; entries are measured and not kept."""

    def __init__(self, rows: LedgerIndex, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.rows = rows
        self.set_explicit_lac = rows.set_explicit_lac

    def add(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        if len(body) > self._limit_bytes:
            raise too_large(ledger_id, entry_id, body, self._limit_bytes)

    def add_many(
        self, _ledger_id: LedgerId, _entry_ids: Sequence[EntryId], bodies: Sequence[bytes], _last_add_confirmed: EntryId
    ) -> bool:
        return max(map(len, bodies)) <= self._limit_bytes


def rehearse_replay(
    fs: FileSystem,
    open_index: OpenIndexStore,
    config: StorageConfig,
    require_going: Callable[[], None],
    *,
    are_marks_forgotten: bool,
    steps: StepSizes = USUAL_STEPS,
) -> ReplayReport:
    """Replay all journals without keeping anything. Raises what the replay of a start would raise; the caller has the
    locks of the directories. RehearsalImpossibleError if there are journals and no usable index.

    ``require_going``: called between batches; an exception from it ends the rehearsal. ``are_marks_forgotten``: whether
    the start drops the marks of journals without files.
    """
    current_directories = [current_directory(directory) for directory in config.journal_directories]
    journals = [index for index, current in enumerate(current_directories) if fs.exists(current)]
    if are_marks_forgotten:
        journals = [index for index in journals if list_journals(fs, current_directories[index])]
    ledger_directories, index_directories = zip(*config.engine_directories, strict=True)
    limit_bytes = body_bytes_max(config.engine)
    engines: list[_Rehearsal] = []

    def engine_of(ledger_id: LedgerId) -> _Rehearsal:
        if not engines:
            engines.extend(_Rehearsal(_rows(fs, open_index, each), limit_bytes) for each in index_directories)
        return engines[ledger_id % len(engines)]

    replay = JournalReplay(
        fs,
        engine_of,
        len(current_directories),
        config.engine.entry_log.entry_bytes_max,
        lambda _engine, _body: True,
        lambda _engine: None,
        require_going,
        steps.replay_batch_bytes,
    )
    for index in journals:
        catalog = read_catalog(fs, current_directories[index])
        start = find_replay_start(
            fs, ledger_directories, index, len(current_directories), is_cataloged=bool(catalog.journals)
        )
        replay.replay(current_directories[index], index, start, catalog)
    return replay.report


def _rows(fs: FileSystem, open_index: OpenIndexStore, index_directory: str) -> LedgerIndex:
    path = os.path.join(index_directory, LEDGERS_DATABASE)
    if fs.exists(seal_file_name(rebuilt_path(path))) or not is_sealed_index_present(fs, path):
        raise RehearsalImpossibleError(f"the start first creates {path}")
    try:
        rows = view_sealed_index(fs, open_index, path)
    except ValueError as error:
        raise RehearsalImpossibleError(f"the start first repairs {path} ({error})") from error
    try:
        return LedgerIndex.load(rows)
    finally:
        rows.close()
