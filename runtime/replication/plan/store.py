"""The ledgers of a plan, in the order of work, and the file of a job: its plan, what is done, how far long copies are.

Both are SQLite databases, so a plan of millions takes little memory (bkctl-files, section "Job file"). A killed job
continues from its file. The metadata stays the truth: every ledger is read again before it is touched, and every
recorded range is verified again on its target.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, overload

import msgspec

from bkctl.runtime.errors import ConfigurationError, ConflictError
from bkctl.runtime.ports import Workers
from bkctl.runtime.replication.config import CopyPace, OpenLedgers, PlacementMode, VerifyMode
from bkctl.runtime.replication.judge.ledger_result import LedgerResult
from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, PlanTotals

LEDGER_TABLE: Final = (
    "CREATE TABLE ledger (surviving_copies INTEGER, ledger_id INTEGER, plan BLOB, "
    "PRIMARY KEY (surviving_copies DESC, ledger_id)) WITHOUT ROWID"
)
"""A scan adds ledgers by ascending id; this key keeps them in the order of work, which is its reverse."""
_ORDER_OF_WORK: Final = "ORDER BY surviving_copies, ledger_id DESC"
"""Fewest surviving copies first, then the newest."""
_PLANS: Final = f"SELECT plan FROM ledger {_ORDER_OF_WORK}"  # noqa: S608  constants
VERSION: Final = 2
"""1 were JSON lines."""
_APPLICATION_ID: Final = int.from_bytes(b"bkjo", "big")
_TABLES: Final = (
    LEDGER_TABLE,
    "CREATE TABLE start (record TEXT)",
    "CREATE TABLE range (ledger_id INTEGER, first_entry_id INTEGER, ensemble_index INTEGER, target TEXT, "
    "last_entry_id INTEGER, PRIMARY KEY (ledger_id, first_entry_id, ensemble_index)) WITHOUT ROWID",
    "CREATE TABLE done (ledger_id INTEGER PRIMARY KEY, outcome TEXT, fragments INTEGER, entries INTEGER, "
    "bytes INTEGER, was_closed INTEGER)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_NOT_DONE: Final = (
    f"SELECT ledger_id, plan FROM ledger WHERE ledger_id NOT IN (SELECT ledger_id FROM done) {_ORDER_OF_WORK}"  # noqa: S608  constants
)
_DONE_PLANS: Final = "SELECT plan FROM ledger JOIN done USING (ledger_id) WHERE plan IS NOT NULL"
# These take an array of rows as JSON. A statement for each row would take the interpreter from the event loop each
# time, and a job of tiny ledgers has thousands of rows in a second.
_VALUES: Final = [f"json_extract(value, '$[{index}]')" for index in range(6)]
_ADD_RANGES: Final = (  # a continued job verifies again what its target has, and reports how far it has come with that
    f"INSERT INTO range SELECT {', '.join(_VALUES[:5])} FROM json_each(?) WHERE true "  # noqa: S608  constants
    "ON CONFLICT DO UPDATE SET target = excluded.target, last_entry_id = "
    "iif(target = excluded.target, max(last_entry_id, excluded.last_entry_id), excluded.last_entry_id)"
)
_ADD_DONE: Final = (  # a drain may move a ledger twice
    f"INSERT INTO done SELECT {', '.join(_VALUES)} FROM json_each(?) WHERE true "  # noqa: S608  constants
    "ON CONFLICT DO UPDATE SET outcome = excluded.outcome, fragments = fragments + excluded.fragments, "
    "entries = entries + excluded.entries, bytes = bytes + excluded.bytes, "
    "was_closed = max(was_closed, excluded.was_closed)"
)
_DROP_RANGES: Final = f"DELETE FROM range WHERE ledger_id IN (SELECT {_VALUES[0]} FROM json_each(?))"  # noqa: S608  constants


JOB_FILE_LANE = "job-file"


class Database(Protocol):
    """An SQLite database; the adapter is ``SqliteDatabase`` in ``bkctl.storage.adapters.sqlite``. Errors are OSError.

    Outside of a transaction (BEGIN), each statement is durable when it returns. Threads may use it one after another.
    """

    @property
    def path(self) -> str:
        """Its file, for messages."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Run a statement of SQL. Its rows are read when the caller takes them."""

    def close(self) -> None:
        """Close; safe to repeat. What is not committed is lost."""


OpenDatabase: TypeAlias = Callable[[], Database]
"""A new private database, which is gone when it is closed, and may be larger than the memory."""


class PlanStore(Sequence[LedgerPlan]):
    """Ledgers in the order of work, whatever the order in which they are added."""

    def __init__(self, database: Database) -> None:
        self.totals = PlanTotals()
        self._database = database
        self._encoder = msgspec.json.Encoder()  # MessagePack has no numbers of more than 64 bits
        self._decoder = msgspec.json.Decoder(LedgerPlan)
        database.execute(LEDGER_TABLE)
        database.execute("BEGIN")

    def add(self, ledger: LedgerPlan) -> None:
        """Add a ledger."""
        self.totals.add(ledger)
        values = (ledger.surviving_copies, ledger.ledger_id, self._encoder.encode(ledger))
        self._database.execute("INSERT INTO ledger VALUES (?, ?, ?)", values)

    def __len__(self) -> int:
        return self.totals.ledgers

    def __iter__(self) -> Iterator[LedgerPlan]:
        return (self._decoder.decode(plan) for (plan,) in self._database.execute(_PLANS))

    @overload
    def __getitem__(self, index: int) -> LedgerPlan: ...
    @overload
    def __getitem__(self, index: slice) -> list[LedgerPlan]: ...
    def __getitem__(self, index: int | slice) -> LedgerPlan | list[LedgerPlan]:
        if isinstance(index, slice):
            return list(islice(self, *index.indices(len(self))))
        position = range(len(self))[index]
        return next(islice(self, position, None))


class JobStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is for. A continued job keeps its choices. ``only_targets``: copy only to these; empty: to all.

    ``is_of_ledgers``: the operator chose the ledgers, so the job does not move all of them.
    """

    job_id: str
    command: str
    root: str
    instance_id: str | None
    bookie_ids: tuple[str, ...] = ()
    only_targets: tuple[str, ...] = ()
    is_of_ledgers: bool = False
    open_ledgers: OpenLedgers
    placement: PlacementMode
    verify: VerifyMode
    started_ms: int


class JobRange(msgspec.Struct, frozen=True, kw_only=True):
    """The stripe of a segment is on ``target``, verified up to ``last_entry_id``; the metadata does not name it yet."""

    ledger_id: int
    first_entry_id: int
    """First entry of the segment."""
    ensemble_index: int
    target: str
    last_entry_id: int


class UnfinishedJob(NamedTuple):
    """What an interrupted job has left to do, in the order of work.

    ``plans`` of these ledgers and ``done_plans`` of the others: for jobs that recorded plans.
    """

    start: JobStart
    ledger_ids: tuple[int, ...]
    plans: tuple[bytes | None, ...] = ()
    done_plans: tuple[bytes, ...] = ()


class JobWork(NamedTuple):
    """A ledger of a new job. ``plan``: for a job whose plan is worth more than its metadata."""

    surviving_copies: int
    ledger_id: int
    plan: bytes | None = None


class JobFile:
    """A job in its database. ``append`` only collects; ``write`` makes it durable, and may run in another thread."""

    def __init__(self, database: Database) -> None:
        """A job that was begun before; ConfigurationError, ConflictError if it cannot be continued; OSError."""
        self._database = database
        self._pending: list[JobRange | LedgerResult] = []
        self.start = _read_start(database)
        self._ranges: dict[int, list[JobRange]] = {}
        for values in database.execute("SELECT * FROM range"):
            found = JobRange(**dict(zip(JobRange.__struct_fields__, values, strict=True)))
            self._ranges.setdefault(found.ledger_id, []).append(found)

    @classmethod
    def create(cls, database: Database, start: JobStart, work: Iterable[JobWork]) -> JobFile:
        """Put a new job into an empty database, complete or not at all; OSError. ``work`` may have any order."""
        database.execute("BEGIN")
        for statement in _TABLES:
            database.execute(statement)
        database.execute("INSERT INTO start VALUES (?)", (msgspec.json.encode(start).decode(),))
        for values in work:
            database.execute("INSERT INTO ledger VALUES (?, ?, ?)", values)
        database.execute("COMMIT")
        return cls(database)

    @property
    def unfinished(self) -> UnfinishedJob:
        """What is left to do."""
        rows = list(self._database.execute(_NOT_DONE))
        done = tuple(plan for (plan,) in self._database.execute(_DONE_PLANS))
        return UnfinishedJob(
            self.start, tuple(ledger_id for ledger_id, _ in rows), tuple(plan for _, plan in rows), done
        )

    @property
    def has_ledgers(self) -> bool:
        """Whether the job was begun with any ledger."""
        return any(self._database.execute("SELECT 1 FROM ledger LIMIT 1"))

    @property
    def ledger_ids(self) -> frozenset[int]:
        """All ledgers of the job, done or not."""
        return frozenset(ledger_id for (ledger_id,) in self._database.execute("SELECT ledger_id FROM ledger"))

    @property
    def done_before(self) -> tuple[int, int]:
        """The ledgers that are done, as far as it is durable, and the bytes that were copied."""
        ledgers, bytes_copied = next(self._database.execute("SELECT count(*), ifnull(sum(bytes), 0) FROM done"))
        return ledgers, bytes_copied

    def ranges_of(self, ledger_id: int) -> tuple[JobRange, ...]:
        """How far earlier runs have copied the stripes of a ledger that is not done."""
        return tuple(self._ranges.get(ledger_id, ()))

    def append(self, record: JobRange | LedgerResult) -> None:
        """Add a record to the next write. With a result, which has no failures, nothing is left to do for a ledger."""
        self._pending.append(record)

    def write(self) -> None:
        """Make all collected records durable; OSError, after which they are collected still."""
        pending = tuple(self._pending)
        if not pending:
            return
        range_rows = _json_rows(msgspec.structs.astuple(each) for each in pending if isinstance(each, JobRange))
        done = (each for each in pending if isinstance(each, LedgerResult))
        done_rows = _json_rows(
            (each.ledger_id, each.outcome.name, each.fragments, each.entries, each.bytes_copied, each.was_closed)
            for each in done
        )
        try:
            self._database.execute("BEGIN")
            self._database.execute(_ADD_RANGES, (range_rows,))
            self._database.execute(_ADD_DONE, (done_rows,))
            self._database.execute(_DROP_RANGES, (done_rows,))
            self._database.execute("COMMIT")
        except OSError:
            with contextlib.suppress(OSError):  # SQLite may have done that
                self._database.execute("ROLLBACK")
            raise
        del self._pending[: len(pending)]

    def close(self) -> None:
        """Close the database, without a write."""
        self._database.close()


@dataclasses.dataclass
class RecoveryJob:
    """How a run is recorded and slowed down. ``read_pace`` is called once a second; None: the rates are unchanged.

    ``warn`` receives sentences for the operator. ``hold`` is called under the lock of each ledger, before any change:
    after a lost session it takes again what shows others that the job runs. Its errors end the run.
    """

    file: JobFile
    workers: Workers
    read_pace: Callable[[], CopyPace | None]
    warn: Callable[[str], None]
    hold: Callable[[], Awaitable[None]] | None = None
    is_unrecorded: bool = dataclasses.field(default=False, init=False)
    """Whether the file can no longer be written."""

    def append(self, record: JobRange | LedgerResult) -> None:
        """Note what is done, or how far a long copy is."""
        if not self.is_unrecorded:
            self.file.append(record)

    async def write(self) -> None:
        """Record what was noted. Without disk space the run goes on: the metadata shows what is done, too."""
        if self.is_unrecorded:
            return
        try:
            await self.workers.run(JOB_FILE_LANE, self.file.write)
        except OSError as error:
            self.is_unrecorded = True
            self.warn(f"cannot write the job file, so --resume cannot continue this run: {error.strerror}")


def no_job_file(path: str) -> ConfigurationError:
    """The error for another file."""
    return ConfigurationError(f"{path} is not a job file of bkctl")


def _json_rows(rows: Iterable[tuple[Any, ...]]) -> str:
    return msgspec.json.encode(list(rows)).decode()


def _read_start(database: Database) -> JobStart:
    if not next(database.execute("SELECT count(*) FROM sqlite_master"))[0]:
        raise ConflictError(
            f"nothing was changed: {database.path} has no complete plan, so the job had copied nothing: start it again "
            "without --resume"
        )
    application_id, version = (
        next(database.execute(f"PRAGMA {each}"))[0] for each in ("application_id", "user_version")
    )
    if application_id != _APPLICATION_ID:
        raise no_job_file(database.path)
    if version != VERSION:
        raise ConfigurationError(
            f"{database.path}: version {version} of the job file is unknown; this bkctl reads version {VERSION}: "
            "continue it with the bkctl that began it, or start a new job"
        )
    (record,) = next(database.execute("SELECT record FROM start"), ("",))
    try:
        return msgspec.json.decode(record, type=JobStart)
    except msgspec.DecodeError as error:
        raise no_job_file(database.path) from error
