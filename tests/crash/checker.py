"""What must be there, and what may be there, after a crash; and the look at the reopened storage."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import StorageConfig
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import StorageError
from tests.crash.workload import LEDGER_IDS, NOW_MS, body_of, explicit_lac_of

ENTRY_ID_LIMIT = 4096


class _Promises:
    """What was said about one ledger since its last deletion was asked for."""

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}
        """Entry id to the newest generation that was acknowledged."""
        self.is_fenced = False
        self.lac_generation = 0


class Expectation:
    """The notes of a workload up to a cut."""

    def __init__(self, notes: Iterable[str]) -> None:
        self.generations: dict[int, dict[int, int]] = defaultdict(dict)
        """Ledger and entry id to the newest generation that was submitted: it and older ones may appear."""
        self.may_be_fenced: set[int] = set()
        self.lac_generations: dict[int, int] = defaultdict(int)
        self.promises: dict[int, _Promises] = defaultdict(_Promises)
        for note in notes:
            verb, request, *numbers = note.split()
            self._take(verb == "acknowledged", request, *map(int, numbers))

    def _take(self, is_promise: bool, request: str, ledger_id: int, *numbers: int) -> None:
        promises = self.promises[ledger_id]
        match request, is_promise:
            case "add", False:
                self.generations[ledger_id][numbers[0]] = numbers[1]
            case "add", True:
                promises.entries[numbers[0]] = numbers[1]
            case "fence", False:
                self.may_be_fenced.add(ledger_id)
            case "fence", True:
                promises.is_fenced = True
            case "lac", False:
                self.lac_generations[ledger_id] = numbers[0]
            case "lac", True:
                promises.lac_generation = numbers[0]
            case "delete", False:
                # Requests of the same ledger that were submitted before and are acknowledged later do not exist: the
                # workload deletes between groups.
                self.promises[ledger_id] = _Promises()
            case _:
                raise AssertionError(f"no note: {request}")


def find_losses(config: StorageConfig, expected: Expectation) -> list[str]:
    """Boot the storage of ``config`` and say what is lost, wrong or never written; also what kept it from booting."""
    try:
        storage = LedgerStorage.open(OsFileSystem(), open_plyvel, config, NOW_MS)
        try:
            storage.replay()
            return list(_losses(storage, expected))
        finally:
            storage.close()
    except (StorageError, OSError) as error:
        return [f"does not boot: {type(error).__name__}: {error}"]


def _losses(storage: LedgerStorage, expected: Expectation) -> Iterator[str]:
    strangers = set(itertools.chain(*(engine.ledger_ids() for engine in storage.engines))) - set(LEDGER_IDS)
    if strangers:
        yield f"ledgers {sorted(strangers)} were never written"
    for ledger_id in LEDGER_IDS:
        engine = storage.engine_of(ledger_id)
        yield from _row_losses(engine, ledger_id, expected)
        yield from _entry_losses(engine, ledger_id, expected)


def _row_losses(engine: LedgerDirectoryEngine, ledger_id: int, expected: Expectation) -> Iterator[str]:
    promises = expected.promises[ledger_id]
    row = engine.rows.find(ledger_id)
    is_fenced = row is not None and row.is_fenced
    if promises.is_fenced and not is_fenced:
        yield f"the fence of ledger {ledger_id} is lost"
    if is_fenced and ledger_id not in expected.may_be_fenced:
        yield f"ledger {ledger_id} was never fenced"
    lac = None if row is None else row.explicit_lac
    newest = expected.lac_generations[ledger_id]
    allowed = [explicit_lac_of(ledger_id, number) for number in range(max(1, promises.lac_generation), newest + 1)]
    if lac not in allowed and (lac is not None or promises.lac_generation):
        yield f"the explicit LAC of ledger {ledger_id} is {lac!r}; acknowledged: {promises.lac_generation}"


def _entry_losses(engine: LedgerDirectoryEngine, ledger_id: int, expected: Expectation) -> Iterator[str]:
    promised = expected.promises[ledger_id].entries
    submitted = expected.generations[ledger_id]
    present = {*engine.stored.list_entries(ledger_id), *engine.list_cached_entries(ledger_id)}
    if strangers := present - set(submitted):
        yield f"entries {sorted(strangers)} of ledger {ledger_id} were never written"
    for entry_id in sorted({*promised, *present} & set(submitted)):
        body = engine.find_cached(ledger_id, entry_id) or engine.stored.read(ledger_id, entry_id)
        if body is None:
            yield f"entry {ledger_id}:{entry_id} is lost"
            continue
        copies = [body_of(ledger_id, entry_id, number) for number in range(1, submitted[entry_id] + 1)]
        if body not in copies:
            yield f"entry {ledger_id}:{entry_id} holds bytes that were never written"
        elif body not in copies[promised.get(entry_id, 1) - 1 :]:
            yield f"entry {ledger_id}:{entry_id} is an older copy than the acknowledged one"
    if promised and present:
        last = engine.stored.find_last(ledger_id) or engine.last_cached(ledger_id)
        if last is None or last[0] < max(promised):
            yield f"the last entry of ledger {ledger_id} is {last and last[0]}, acknowledged {max(promised)}"
