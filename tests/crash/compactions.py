"""Compaction of one entry log, normal or transactional, in the steps of the collector and without its lanes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.relocation import EntryMove
from bkctl.storage.entry_log.compaction_log import CompactedLogWriter
from bkctl.storage.entry_log.reader import EntryLogScan, ScannedEntry
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.ids import EntryLocation, EntryLogId

FS = OsFileSystem()


def compact(
    engine: LedgerDirectoryEngine, directory: str, source: EntryLogId, *, is_transactional: bool, copied_max: int
) -> None:
    """Move what is alive in a log to another, and remove it. The transactional way copies at most so many at once."""
    found = list(EntryLogScan(FS, directory, source))
    current = engine.relocation.current_locations([(entry.ledger_id, entry.entry_id) for entry in found])
    alive = [entry for entry, location in zip(found, current, strict=True) if location == entry.location]
    if is_transactional and alive:
        _to_a_log_of_its_own(engine, directory, source, alive, copied_max)
    else:
        _to_the_active_log(engine, directory, alive)
    engine.relocation.remove_log(source)


def _to_the_active_log(engine: LedgerDirectoryEngine, directory: str, alive: Sequence[ScannedEntry]) -> None:
    copies = (
        engine.relocation.append_survivors([(entry.ledger_id, _body(directory, entry)) for entry in alive])
        if alive
        else []
    )
    engine.relocation.sync_logs()
    engine.relocation.relocate(_moves(alive, copies))


def _to_a_log_of_its_own(
    engine: LedgerDirectoryEngine, directory: str, source: EntryLogId, alive: Sequence[ScannedEntry], copied_max: int
) -> None:
    log_id = engine.relocation.claim_log_id()
    writer = CompactedLogWriter(FS, directory, log_id, source)
    for first in range(0, len(alive), copied_max):
        writer.append([(entry.ledger_id, _body(directory, entry)) for entry in alive[first : first + copied_max]])
    compacted = writer.finish()
    compacted.publish(FS)
    engine.relocation.relocate(_moves(alive, [entry.location for entry in EntryLogScan(FS, directory, log_id)]))
    compacted.forget(FS)


def _moves(originals: Sequence[ScannedEntry], copies: Sequence[EntryLocation]) -> list[EntryMove]:
    return [
        EntryMove(entry.ledger_id, entry.entry_id, entry.location, copy)
        for entry, copy in zip(originals, copies, strict=True)
    ]


def _body(directory: str, entry: ScannedEntry) -> bytes:
    with open(os.path.join(directory, entry_log_file_name(entry.location.log_id)), "rb") as file:
        return os.pread(file.fileno(), entry.size_bytes, entry.location.offset)
