"""Lists the ledgers in limbo of a stopped bookie, and clears limbo for an operator. Source: storage section 9.2.

Normally the repair clears limbo after comparing with other bookies. If these are in limbo too, it cannot decide: a
rebuild from logs proves which entries exist, never which do not (``rebuild.limbo``). If all bookies of an open ledger
were rebuilt, none knows where it ends. Only the operator can then know that no log was lost.

Evidence on this machine overrides the operator: a log that the index references is missing, ends too early, cannot be
read to its end, or was found damaged by the collector or a reader. Finding the affected ledgers takes a full read of
logs and locations. Their limbo must not be cleared.

This writes rows only. The flag NEEDS_INTEGRITY_CHECK stays set; the repair clears it after comparing the ledgers, so
entries missing from a closed ledger are still restored. After a kill at any point each ledger's limbo is either still
set or cleared, and the repair is still due.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.examination import examine_log
from bkctl.storage.entry_log.log_lists import read_quarantine
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.errors import AdoptionRefusedError
from bkctl.storage.filenames import (
    DATABASES,
    DIRTY,
    LEDGERS_DATABASE,
    LOCATIONS_DATABASE,
    current_directory,
    entry_log_file_name,
)
from bkctl.storage.ids import EntryId, EntryLogId, LedgerId
from bkctl.storage.index.adoption_note import advise_on_lost_index, find_change_under_way
from bkctl.storage.index.ledger_index import LEDGERS_NOTED, NEEDS_INTEGRITY_CHECK, LedgerIndex
from bkctl.storage.index.location_index import LocationIndex
from bkctl.storage.index.opening import IndexCondition, inspect_index, viewing_index
from bkctl.storage.index.seal import advising_repair
from bkctl.storage.offline.log_shortfalls import find_shortfalls, log_sizes_bytes
from bkctl.storage.ports import FileSystem, OpenIndexStore


class LimboLedger(msgspec.Struct, frozen=True):
    """A ledger in limbo, and the range of its entries here."""

    ledger_id: LedgerId
    is_fenced: bool
    first_entry_id: EntryId | None
    """None if no entry is here; ``last_entry_id`` is then None too."""
    last_entry_id: EntryId | None


class LimboDirectory(msgspec.Struct, frozen=True):
    """One ledger directory; paths are those of ``current`` directories."""

    ledger_directory: str
    index_directory: str
    limbo: tuple[LimboLedger, ...]
    """In ascending order of ledger ids."""
    certain: frozenset[LedgerId]
    """Ledgers that have a row and are not in limbo."""

    @property
    def ledgers_path(self) -> str:
        """Directory of the database that contains the rows."""
        return os.path.join(self.index_directory, LEDGERS_DATABASE)


class LimboSurvey(msgspec.Struct, frozen=True):
    """Limbo of a whole bookie. ``directories`` contains only ledger directories that were ever written to."""

    directories: tuple[LimboDirectory, ...]
    is_unnoted: bool
    """An integrity check is due but has not marked its ledgers yet: the next start puts more ledgers in limbo."""
    dirty_path: str | None
    """A DIRTY file, if there is one: the bookie did not shut down cleanly."""


class DoubtfulLog(msgspec.Struct, frozen=True):
    """A log whose damage forbids clearing the limbo of some ledgers."""

    path: str
    reason: str
    ledger_ids: tuple[LedgerId, ...]
    """The requested ledgers that have or may have had entries in this log; ascending, at least one."""


def survey_limbo(fs: FileSystem, open_index: OpenIndexStore, config: StorageConfig) -> LimboSurvey:
    """Find the ledgers in limbo in locked directories. Changes nothing, except that LevelDB opens its files.

    IndexMissingError and IndexDamagedError, both with the fix; AdoptionRefusedError if an adoption or hand-back is
    unfinished; another StorageError, OSError.
    """
    change = find_change_under_way(fs, config)
    if change is not None:
        raise AdoptionRefusedError(change.advice)
    directories: list[LimboDirectory] = []
    flags = 0
    for position, (ledger_directory, index_directory) in enumerate(config.engine_directories):
        if not _is_sound(fs, open_index, config, ledger_directory, index_directory):
            continue
        with viewing_index(fs, open_index, index_directory, LEDGERS_DATABASE) as rows, advising_repair():
            ledgers = LedgerIndex.load(rows)
            flags = ledgers.read_flags() if position == 0 else flags
        with viewing_index(fs, open_index, index_directory, LOCATIONS_DATABASE) as rows, advising_repair():
            limbo = tuple(_limbo_ledgers(ledgers, LocationIndex(rows)))
        certain = frozenset(ledgers).difference(each.ledger_id for each in limbo)
        directories.append(LimboDirectory(ledger_directory, index_directory, limbo, certain))
    dirty_paths = (os.path.join(current_directory(each), DIRTY) for each in config.ledger_directories)
    return LimboSurvey(
        tuple(directories),
        is_unnoted=flags & (NEEDS_INTEGRITY_CHECK | LEDGERS_NOTED) == NEEDS_INTEGRITY_CHECK,
        dirty_path=next(filter(fs.exists, dirty_paths), None),
    )


def find_doubtful_logs(
    fs: FileSystem,
    open_index: OpenIndexStore,
    directory: LimboDirectory,
    ledger_ids: Collection[LedgerId],
    entry_bytes_max: int,
    on_progress: Callable[[int, int], None],
) -> list[DoubtfulLog]:
    """Read all logs and locations of a directory to find lost entries of these ledgers.

    ``on_progress``: finished and total logs. StorageError, OSError.
    """
    ledger_directory = directory.ledger_directory
    wanted = frozenset(ledger_ids)
    log_ids = list_entry_logs(fs, ledger_directory)
    found: list[DoubtfulLog] = []
    for done_count, log_id in enumerate(log_ids):
        show = functools.partial(on_progress, done_count, len(log_ids))
        show()
        damage = examine_log(fs, ledger_directory, log_id, entry_bytes_max, show).damage
        if damage is not None:
            concerned = wanted if damage.ledger_ids is None else wanted.intersection(damage.affected_ids)
            found += _doubtful(ledger_directory, log_id, damage.reason, concerned)
    quarantined = read_quarantine(fs, ledger_directory)
    # Treat quarantined logs as missing: rows that reference them count as shortfalls.
    sizes_bytes = {
        log_id: size for log_id, size in log_sizes_bytes(fs, ledger_directory).items() if log_id not in quarantined
    }
    with viewing_index(fs, open_index, directory.index_directory, LOCATIONS_DATABASE) as rows, advising_repair():
        show = functools.partial(on_progress, len(log_ids), len(log_ids))
        show()
        for log in find_shortfalls(rows, wanted, sizes_bytes, show):
            found += _doubtful(ledger_directory, log.log_id, quarantined.get(log.log_id, log.reason), log.ledger_ids)
    return found


def end_limbo(
    fs: FileSystem, open_index: OpenIndexStore, directory: LimboDirectory, ledger_ids: Iterable[LedgerId]
) -> int:
    """Clear the limbo of ledgers durably; returns how many. Safe to repeat after a kill. StorageError, OSError."""
    with viewing_index(fs, open_index, directory.index_directory, LEDGERS_DATABASE) as rows:
        ledgers = LedgerIndex.load(rows)
        ended_count = sum(ledgers.set_limbo(ledger_id, is_limbo=False) for ledger_id in ledger_ids)
        ledgers.write(ledgers.take_changes())
        ledgers.seal()
    return ended_count


def _is_sound(
    fs: FileSystem, open_index: OpenIndexStore, config: StorageConfig, ledger_directory: str, index_directory: str
) -> bool:
    """Whether both databases exist; False if the directory was never written to."""
    conditions = []
    for database in DATABASES:
        state = inspect_index(fs, open_index, ledger_directory, index_directory, database)
        if state.is_lost:
            raise state.as_error(advise_on_lost_index(fs, config))
        conditions.append(state.condition)
    return IndexCondition.NEW not in conditions


def _limbo_ledgers(ledgers: LedgerIndex, locations: LocationIndex) -> Iterator[LimboLedger]:
    for ledger_id in sorted(ledgers):
        row = ledgers.find(ledger_id)
        if row is not None and row.is_limbo:
            last = locations.find_last(ledger_id)
            first = next(locations.list_entries(ledger_id), None)
            yield LimboLedger(ledger_id, row.is_fenced, first, None if last is None else last[0])


def _doubtful(directory: str, log_id: EntryLogId, reason: str, ledger_ids: Iterable[LedgerId]) -> Iterator[DoubtfulLog]:
    if concerned := tuple(sorted(ledger_ids)):
        yield DoubtfulLog(os.path.join(directory, entry_log_file_name(log_id)), reason, concerned)
