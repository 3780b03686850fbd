"""Ledgers in limbo of a stopped bookie, and the end of a limbo on an operator's word. Source: storage section 9.2.

The repair ends a limbo by comparison with other bookies. Where these are in doubt, too, it has nothing to go by: a
rebuild from logs proves what is there and never what is not (``rebuild.limbo``), and if all bookies of an open ledger
were rebuilt, none can say where it ends. That no log was lost is then known to the operator alone.

What this machine can tell stands against that word: a log that the index names and that is not there, one that ends too
early, one that cannot be read whole, one that the collector or a reader found damaged. The ledgers concerned are found
by reading everything, and their limbo must not be ended.

Nothing but rows is written. The flag NEEDS_INTEGRITY_CHECK stays for the repair: it ends by clearing that itself, once
it has compared the ledgers, so that a closed ledger which does lack entries is filled all the same. Hence a kill at any
point leaves limbo that is still there or has ended, and a repair that is due.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from storage.config import StorageConfig
from storage.entry_log.examination import examine_log
from storage.entry_log.log_lists import read_quarantine
from storage.entry_log.reader import list_entry_logs
from storage.errors import AdoptionRefusedError
from storage.filenames import (
    DIRTY,
    LEDGERS_DATABASE,
    LOCATIONS_DATABASE,
    current_directory,
    entry_log_file_name,
)
from storage.ids import EntryId, EntryLogId, LedgerId
from storage.index.adoption_note import advise_on_lost_index, find_change_under_way
from storage.index.ledger_index import LEDGERS_NOTED, NEEDS_INTEGRITY_CHECK, LedgerIndex
from storage.index.location_index import LocationIndex
from storage.index.opening import DATABASES, IndexCondition, inspect_index, viewing_index
from storage.index.seal import advising_repair
from storage.offline.log_shortfalls import find_shortfalls, log_sizes_bytes
from storage.ports import FileSystem, OpenIndexStore


class LimboLedger(msgspec.Struct, frozen=True):
    """One ledger in limbo, and between which entries there is anything of it here."""

    ledger_id: LedgerId
    is_fenced: bool
    first_entry_id: EntryId | None
    """None: nothing of it is here, and so the last one."""
    last_entry_id: EntryId | None


class LimboDirectory(msgspec.Struct, frozen=True):
    """One ledger directory; folders are ``current`` ones."""

    ledger_directory: str
    index_directory: str
    limbo: tuple[LimboLedger, ...]
    """By ledger id, ascending."""
    certain: frozenset[LedgerId]
    """Ledgers that have a row and are not in limbo."""

    @property
    def ledgers_path(self) -> str:
        """Folder of the database that holds the rows."""
        return os.path.join(self.index_directory, LEDGERS_DATABASE)


class LimboSurvey(msgspec.Struct, frozen=True):
    """Of a whole bookie, one for each ledger directory in which anything was stored."""

    directories: tuple[LimboDirectory, ...]
    is_unnoted: bool
    """A check is due that has not noted yet which ledgers it concerns: the next start puts more of them in limbo."""
    dirty_path: str | None
    """A file that says that the bookie did not stop in order, if there is one."""


class DoubtfulLog(msgspec.Struct, frozen=True):
    """A log that speaks against the end of a limbo."""

    path: str
    reason: str
    ledger_ids: tuple[LedgerId, ...]
    """Those in question of which it held something, or may have; ascending, at least one."""


def survey_limbo(fs: FileSystem, open_index: OpenIndexStore, config: StorageConfig) -> LimboSurvey:
    """What is in limbo in folders that are locked; nothing is changed, but that LevelDB opens what is there.

    IndexMissingError, IndexDamagedError, both with the way out; AdoptionRefusedError while a change between Java's
    index and ours is cut off; another StorageError, OSError.
    """
    change = find_change_under_way(fs, config)
    if change is not None:
        raise AdoptionRefusedError(change.advice)
    directories: list[LimboDirectory] = []
    flags = 0
    for position, (ledger_folder, index_folder) in enumerate(config.engine_folders):
        if not _is_sound(fs, open_index, config, ledger_folder, index_folder):
            continue
        with viewing_index(fs, open_index, index_folder, LEDGERS_DATABASE) as rows, advising_repair():
            ledgers = LedgerIndex.load(rows)
            flags = ledgers.read_flags() if position == 0 else flags
        with viewing_index(fs, open_index, index_folder, LOCATIONS_DATABASE) as rows, advising_repair():
            limbo = tuple(_limbo_ledgers(ledgers, LocationIndex(rows)))
        certain = frozenset(ledgers).difference(each.ledger_id for each in limbo)
        directories.append(LimboDirectory(ledger_folder, index_folder, limbo, certain))
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
    """Read all logs of a directory, and all of its locations, for what is lost of these ledgers.

    ``on_progress``: logs done, and all of them. StorageError, OSError.
    """
    folder = directory.ledger_directory
    wanted = frozenset(ledger_ids)
    log_ids = list_entry_logs(fs, folder)
    found: list[DoubtfulLog] = []
    for done_count, log_id in enumerate(log_ids):
        show = functools.partial(on_progress, done_count, len(log_ids))
        show()
        damage = examine_log(fs, folder, log_id, entry_bytes_max, show).damage
        if damage is not None:
            concerned = wanted if damage.ledger_ids is None else wanted.intersection(damage.affected_ids)
            found += _doubtful(folder, log_id, damage.reason, concerned)
    quarantined = read_quarantine(fs, folder)
    # The rows of ledgers in question that name a log in quarantine are counted like those that name none.
    sizes_bytes = {log_id: size for log_id, size in log_sizes_bytes(fs, folder).items() if log_id not in quarantined}
    with viewing_index(fs, open_index, directory.index_directory, LOCATIONS_DATABASE) as rows, advising_repair():
        show = functools.partial(on_progress, len(log_ids), len(log_ids))
        show()
        for log in find_shortfalls(rows, wanted, sizes_bytes, show):
            found += _doubtful(folder, log.log_id, quarantined.get(log.log_id, log.reason), log.ledger_ids)
    return found


def end_limbo(
    fs: FileSystem, open_index: OpenIndexStore, directory: LimboDirectory, ledger_ids: Iterable[LedgerId]
) -> int:
    """End the limbo of ledgers, durably; returns of how many. May be repeated after a kill. StorageError, OSError."""
    with viewing_index(fs, open_index, directory.index_directory, LEDGERS_DATABASE) as rows:
        ledgers = LedgerIndex.load(rows)
        ended_count = sum(ledgers.set_limbo(ledger_id, is_limbo=False) for ledger_id in ledger_ids)
        ledgers.write(ledgers.take_changes())
        ledgers.seal()
    return ended_count


def _is_sound(
    fs: FileSystem, open_index: OpenIndexStore, config: StorageConfig, ledger_folder: str, index_folder: str
) -> bool:
    """Whether both databases are there; False where nothing was ever stored."""
    conditions = []
    for database in DATABASES:
        state = inspect_index(fs, open_index, ledger_folder, index_folder, database)
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


def _doubtful(folder: str, log_id: EntryLogId, reason: str, ledger_ids: Iterable[LedgerId]) -> Iterator[DoubtfulLog]:
    if concerned := tuple(sorted(ledger_ids)):
        yield DoubtfulLog(os.path.join(folder, entry_log_file_name(log_id)), reason, concerned)
