"""Reads that miss the caches: all misses of one tick go to the reads lane together.

Rule (storage section 12): "no such entry" is a statement of fact. It is returned only if neither caches nor index have
the entry; any failure to read is an I/O error.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from bkctl.runtime.net.exhaustion import is_exhaustion, report_exhaustion
from bkctl.runtime.net.limited_log import LimitedLog
from bkctl.runtime.ports import Workers
from bkctl.runtime.protocol.entry_list import EntryList, EntryListBuilder
from bkctl.runtime.protocol.messages import LongPollAnswer, LongPollRead, ReadAnswer, ReadCall, ReadRun, ReadRunAnswer
from bkctl.runtime.protocol.status import Status
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.measures import ReadWatch
from bkctl.storage.engine.memtable import sorted_ids
from bkctl.storage.errors import StorageError
from bkctl.storage.ids import INVALID_ENTRY_ID, EntryId

logger = logging.getLogger(__name__)

READS_LANE = "reads"
URGENT_READS_LANE = "urgent-reads"
"""For reads with high priority or with a fence: they do not wait for ordinary reads."""
LISTS_LANE = "lists"
"""For lists of entries, which look at all rows of a ledger: no read of an entry waits for one."""

_LOG_INTERVAL_S: Final = 10.0

_JOBS_PER_TURN_MAX = 64
"""Reads per turn of the lane. Limits how many bodies are in memory before they are answered, however many reads a tick
brings. A peer that does not read its responses gets no more."""

_RUN_BYTES_MAX = 256 * 1024
"""Bytes of consecutive entries that one read returns. Limits the memory of a turn, as the number of its reads does."""

_TURN_ENTRY_COUNT_MAX = 10_000
"""Rows that one turn of the lane looks at; other lists wait for it."""

GROUP_COUNT_MAX = 500_000
"""Groups in an entry list; a longer one would not fit into an answer, so the listing is abandoned."""


class ReadOutcome(NamedTuple):
    """Result of a read from disk: the body if the status is OK, and the last stored entry if it was requested."""

    status: Status
    body: bytes | None
    last_entry: tuple[int, bytes] | None
    watch: ReadWatch
    is_end_known: bool = False
    """Whether ``last_entry`` was requested and read. If so, None means that no entry is stored."""
    read_ahead: tuple[bytes, ...] = ()
    """Bodies of the entries after this one: the further ones requested, and those of a ledger read sequentially."""
    errors: tuple[tuple[str, str], ...] = ()
    """What could not be read, and why."""


class EntryRead(NamedTuple):
    """One read from an engine, or one of several consecutive entries. Entry id -1 asks for the last entry only."""

    engine: LedgerDirectoryEngine
    ledger_id: int
    entry_id: int
    needs_last_entry: bool
    read_generation: int
    """``engine.read_generation`` at the time of the request. Results from before a checkpoint are not cached."""
    is_sequential: bool
    """Whether to read ahead."""
    entry_count: int
    """Entries requested. The outcome is that of the first one; the others may be missing from it."""


def new_read(
    engine: LedgerDirectoryEngine, ledger_id: int, entry_id: int, *, needs_last_entry: bool, entry_count: int = 1
) -> EntryRead:
    """A read with the current state of the engine."""
    is_sequential = engine.is_sequential_read(ledger_id, entry_id)
    return EntryRead(engine, ledger_id, entry_id, needs_last_entry, engine.read_generation, is_sequential, entry_count)


ReadDone: TypeAlias = Callable[[ReadOutcome], None]


class ReadBatcher:
    """Collects the reads of one tick and runs them in one lane, a limited number at a time."""

    def __init__(self, workers: Workers, lane: str) -> None:
        self._workers = workers
        self.lane = lane
        self._log = LimitedLog(logger, _LOG_INTERVAL_S, "errors", logging.ERROR)
        self._jobs: list[EntryRead] = []
        self._callbacks: list[ReadDone] = []
        self._batches: set[asyncio.Task[None]] = set()

    def submit(self, job: EntryRead, done: ReadDone) -> None:
        """Queue a read; ``done`` is always called with the outcome, on the loop."""
        if not self._jobs:
            asyncio.get_running_loop().call_soon(self._start_batch)
        self._jobs.append(job)
        self._callbacks.append(done)

    def read(self, job: EntryRead) -> asyncio.Future[ReadOutcome]:
        """Like ``submit``, for a caller that awaits."""
        future: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()

        def finish(outcome: ReadOutcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.submit(job, finish)
        return future

    def close(self) -> None:
        """Log the errors that were only counted so far."""
        self._log.close()

    def _start_batch(self) -> None:
        batch = asyncio.get_running_loop().create_task(self._run_batch(self._jobs, self._callbacks))
        self._jobs, self._callbacks = [], []
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)

    async def _run_batch(self, jobs: list[EntryRead], callbacks: list[ReadDone]) -> None:
        for start in range(0, len(jobs), _JOBS_PER_TURN_MAX):
            turn = slice(start, start + _JOBS_PER_TURN_MAX)
            try:
                outcomes = await self._workers.run(self.lane, read_all, jobs[turn])
            except Exception as error:
                # No memory, or a defect of bkctl. Clients must not wait for ever, and the other turns must go on.
                if not is_exhaustion(error):
                    logger.exception("reads failed")
                outcomes = [_failed(job) for job in jobs[turn]]
            for job, done, outcome in zip(jobs[turn], callbacks[turn], outcomes, strict=True):
                if not self._finish(job, done, outcome):
                    self._finish(job, done, _failed(job))

    def _finish(self, job: EntryRead, done: ReadDone, outcome: ReadOutcome) -> bool:
        """Keep and pass on the outcome of a read. False if that failed: the others of the turn still get theirs."""
        try:
            for what, sentence in outcome.errors:
                # Limited per file: a missing log may affect a million entries. Messages begin with the path.
                self._log.report(what, sentence, sentence.partition(": ")[0])
            if outcome.body is not None:
                bodies = (outcome.body, *outcome.read_ahead)
                job.engine.remember_read(job.ledger_id, job.entry_id, bodies, job.read_generation)
            _note(job, outcome)
            done(outcome)
        except Exception as error:
            if not report_exhaustion(asyncio.get_running_loop(), error):
                logger.exception("ledger %d entry %d: a read was not answered", job.ledger_id, job.entry_id)
            return False
        return True


def _failed(job: EntryRead) -> ReadOutcome:
    return ReadOutcome(Status.IO_ERROR, None, None, ReadWatch(job.engine.measures.now_ns))


def _note(job: EntryRead, outcome: ReadOutcome) -> None:
    """Count a read in the measures of its ledger directory. On the loop, because two lanes read."""
    measures, watch = job.engine.measures, outcome.watch
    if job.needs_last_entry:
        measures.last_entry_reads.add(watch.last_entry_ns, is_success=outcome.is_end_known)
    if job.entry_id == INVALID_ENTRY_ID:
        return
    elapsed_ns, is_success = watch.index_ns + watch.log_ns, outcome.status is not Status.IO_ERROR
    count = min(job.entry_count, 1 + len(outcome.read_ahead))  # each of them took its share
    measures.disk_reads.add(elapsed_ns // count, count, is_success=is_success)
    measures.lookups.add(watch.index_ns // count, count, is_success=is_success)
    measures.log_reads_ns += watch.log_ns
    ahead = outcome.read_ahead[count - 1 :]
    if ahead:
        measures.read_ahead_entries.succeeded.add(len(ahead))
        measures.read_ahead_bytes.succeeded.add(sum(map(len, ahead)))
        measures.read_ahead_ns += elapsed_ns


def read_all(jobs: list[EntryRead]) -> list[ReadOutcome]:
    """Answer a batch of reads from index and entry logs; runs in a lane. Errors are part of the outcomes."""
    turn = _Turn(jobs[0].engine.read_ahead_bytes_max)
    return [turn.answer(job) for job in jobs]


class _Turn:
    """One turn of the reads lane: entries read ahead answer later reads of the same turn."""

    def __init__(self, ahead_bytes_max: int) -> None:
        self._ahead: dict[tuple[int, int], bytes] = {}
        self._ahead_bytes_left = ahead_bytes_max
        self._former = (INVALID_ENTRY_ID, INVALID_ENTRY_ID)

    def answer(self, job: EntryRead) -> ReadOutcome:
        """Execute one read."""
        watch = ReadWatch(job.engine.measures.now_ns)
        last_entry = None
        is_end_known = False
        errors: tuple[tuple[str, str], ...] = ()
        if job.needs_last_entry:
            try:
                last_entry = job.engine.stored.find_last(job.ledger_id)
                is_end_known = True
            except (StorageError, OSError) as error:
                # The entry itself may still be readable; its answer then has no LAC.
                errors += ((f"ledger {job.ledger_id}: cannot read the last entry", str(error)),)
            watch.end_last_entry()
        if job.entry_id == INVALID_ENTRY_ID:
            status = Status.OK if is_end_known else Status.IO_ERROR
            return ReadOutcome(status, None, last_entry, watch, is_end_known, errors=errors)
        try:
            bodies = self._read(job, watch)
        except (StorageError, OSError) as error:
            errors += ((f"cannot read ledger {job.ledger_id} entry {job.entry_id}", str(error)),)
            return ReadOutcome(Status.IO_ERROR, None, last_entry, watch, is_end_known, errors=errors)
        if not bodies:
            return ReadOutcome(Status.NO_SUCH_ENTRY, None, last_entry, watch, is_end_known, errors=errors)
        return ReadOutcome(Status.OK, bodies[0], last_entry, watch, is_end_known, tuple(bodies[1:]), errors)

    def _read(self, job: EntryRead, watch: ReadWatch) -> list[bytes]:
        """The body and those read ahead; empty if the entry certainly does not exist."""
        engine, ledger_id, entry_id = job.engine, job.ledger_id, job.entry_id
        is_sequential = job.is_sequential or self._former == (ledger_id, entry_id - 1)
        self._former = (ledger_id, entry_id)
        body = self._ahead.pop(self._former, None)
        if body is not None:
            return [body]
        count, bytes_max = job.entry_count, _RUN_BYTES_MAX
        if is_sequential and self._ahead_bytes_left > 0 and engine.read_ahead_count_max >= count:
            count, bytes_max = 1 + engine.read_ahead_count_max, max(self._ahead_bytes_left, bytes_max * (count > 1))
        if count == 1:
            body = engine.stored.read(ledger_id, entry_id, watch)
            return [] if body is None else [body]
        bodies = engine.stored.read_run(ledger_id, entry_id, count, bytes_max, watch)
        if count > job.entry_count:
            self._ahead_bytes_left -= sum(map(len, bodies[1:]))
            self._ahead.update(
                ((ledger_id, entry_id + place), bodies[place]) for place in range(job.entry_count, len(bodies))
            )
        return bodies


async def list_entries(
    workers: Workers,
    engine: LedgerDirectoryEngine,
    ledger_id: int,
    *,
    turn_entry_count_max: int = _TURN_ENTRY_COUNT_MAX,
) -> EntryList | None:
    """Ids of all entries that were stored at the time of the call; None if the list has too many gaps to be sent.

    If the ledger is deleted in the meantime the list may be incomplete; the caller must check. Index errors are raised,
    because an incomplete list would deny entries.
    """
    while True:
        deleted_count = engine.delete_count
        # The caches first: a checkpoint may move entries from there to the disk, but never back.
        cached = await workers.run(LISTS_LANE, _sorted_once, engine.list_cached_entries(ledger_id))
        builder = EntryListBuilder()
        first_entry_id: int | None = 0
        while first_entry_id is not None and builder.group_count <= GROUP_COUNT_MAX:
            first_entry_id = await workers.run(
                LISTS_LANE, _take_part, builder, engine, ledger_id, first_entry_id, cached, turn_entry_count_max
            )
        if builder.group_count > GROUP_COUNT_MAX:
            return None
        if deleted_count == engine.delete_count:
            return builder.finish()


def _sorted_once(entry_ids: list[int]) -> list[int]:
    return list(dict.fromkeys(sorted_ids(entry_ids)))


def _take_part(
    builder: EntryListBuilder,
    engine: LedgerDirectoryEngine,
    ledger_id: int,
    first_entry_id: int,
    cached: list[int],
    count_max: int,
) -> int | None:
    """Add the next ids from disk and caches; returns the id to continue at, None at the end."""
    stored = engine.stored.list_entries(ledger_id, first_entry_id, count_max)
    next_cached = bisect.bisect_left(cached, first_entry_id)
    part = cached[next_cached : next_cached + count_max]
    ids = sorted({*stored, *part})
    # Ids after the end of either part are left to the next call.
    ends = [side[-1] for side in (stored, part) if len(side) == count_max]
    if not ends:
        builder.extend(ids)
        return None
    builder.extend(ids[: bisect.bisect_right(ids, min(ends))])
    return min(ends) + 1


async def known_lac(engine: LedgerDirectoryEngine, ledger_id: int, reads: ReadBatcher) -> EntryId | Status:
    """The highest LAC known, -1 if there is none; or the reason why it is not known."""
    if ledger_id not in engine.rows:
        return no_such_ledger(engine)
    if may_lack_entries(engine, ledger_id):
        return Status.UNKNOWN_LEDGER_STATE
    if (lac := engine.last_add_confirmed(ledger_id)) is not None:
        return lac
    job = new_read(engine, ledger_id, INVALID_ENTRY_ID, needs_last_entry=True)
    outcome = await reads.read(job)
    if not outcome.is_end_known:
        return Status.IO_ERROR
    try:
        lac = engine.note_last_stored(ledger_id, outcome.last_entry, job.read_generation)
    except StorageError as error:  # the row was dropped since the request came
        logger.error("ledger %d: cannot read its row: %s", ledger_id, error)
        return Status.IO_ERROR
    return lac if ledger_id in engine.rows else no_such_ledger(engine)  # it may have been deleted in the meantime


def join_last(
    job: EntryRead, cached: tuple[int, bytes] | None, outcome: ReadOutcome, is_lacking: bool
) -> tuple[Status, bytes | None]:
    """Combine the result from the disk with ``cached``, the last entry that was in the cache.

    Take ``cached`` before reading the disk, because a checkpoint may move entries from the cache to the disk in the
    meantime. The last entry is the greater of the two (hazard H8). If entries may be missing, neither "no such entry"
    nor a last entry is reported (storage section 9.2). ``is_lacking`` is that state at the time of the request;
    it is read again here, because the repair may have ended or the index may have been exchanged since.
    """
    status, body = outcome.status, outcome.body
    if job.entry_id == INVALID_ENTRY_ID and status is Status.OK:
        known = [last for last in (cached, outcome.last_entry) if last is not None]
        body = max(known, key=operator.itemgetter(0))[1] if known else None
        status = Status.OK if known else Status.NO_SUCH_ENTRY
    is_statement = status is Status.NO_SUCH_ENTRY or (status is Status.OK and job.entry_id == INVALID_ENTRY_ID)
    is_lacking = is_lacking or may_lack_entries(job.engine, job.ledger_id)
    return (Status.UNKNOWN_LEDGER_STATE, None) if is_statement and is_lacking else (status, body)


def cached_bodies(
    engine: LedgerDirectoryEngine, ledger_id: int, entry_ids: Sequence[int], *, wants_lac: bool
) -> tuple[list[bytes | None], EntryId | None]:
    """What ``RequestHandler.find_in_memory`` returns."""
    needs_lac = wants_lac and not may_lack_entries(engine, ledger_id)
    lac = engine.last_add_confirmed(ledger_id) if needs_lac else None
    if ledger_id < 0 or ledger_id not in engine.rows or (needs_lac and lac is None):
        return [None] * len(entry_ids), None
    return engine.find_many_cached(ledger_id, entry_ids), lac


def cached_poll_answer(engine: LedgerDirectoryEngine, call: LongPollRead) -> LongPollAnswer | None:
    """What ``RequestHandler.poll_memory`` returns."""
    ledger_id, entry_id = call.ledger_id, call.previous_lac + 1
    if not call.is_piggyback or entry_id < 0 or ledger_id not in engine.rows or may_lack_entries(engine, ledger_id):
        return None
    lac = engine.last_add_confirmed(ledger_id)
    if lac is None or lac < entry_id or (body := engine.find_cached(ledger_id, entry_id)) is None:
        return None
    return LongPollAnswer(call.txn_id, Status.OK, body, lac, entry_id, call.lac_changed_ms)


def must_wait(engine: LedgerDirectoryEngine, call: LongPollRead) -> bool:
    """Whether a poll waits for a LAC, as far as memory shows: it knows the present one."""
    if call.entry_id < INVALID_ENTRY_ID or call.ledger_id not in engine.rows:
        return False
    lac = None if may_lack_entries(engine, call.ledger_id) else engine.last_add_confirmed(call.ledger_id)
    return lac is not None and call.previous_lac >= lac


def read_answer(
    call: ReadCall | ReadRun, status: Status, bodies: Sequence[bytes | None], lac: EntryId | None
) -> ReadAnswer | ReadRunAnswer:
    """The answer to a read, or to the first reads of a run: up to the first of ``bodies`` that is None."""
    if isinstance(call, ReadCall):
        return ReadAnswer(call.txn_id, status, bodies[0], lac)
    found = bodies[: bodies.index(None)] if None in bodies else bodies
    return ReadRunAnswer(status, cast("list[bytes]", found), lac)


def may_lack_entries(engine: LedgerDirectoryEngine, ledger_id: int) -> bool:
    """Whether entries may be missing here: the ledger is in limbo, or the whole index may be incomplete."""
    return engine.negatives_are_unknown or ledger_id in engine.rows.limbo_ids


def no_such_ledger(engine: LedgerDirectoryEngine) -> Status:
    """Status for a ledger without a row: NO_SUCH_LEDGER, unless rows may be missing."""
    return Status.UNKNOWN_LEDGER_STATE if engine.negatives_are_unknown else Status.NO_SUCH_LEDGER


async def find_entries(
    workers: Workers, engine: LedgerDirectoryEngine, ledger_id: int
) -> tuple[Status, EntryList | None]:
    """The entries of a ledger, or why they are not known."""
    entries = None
    may_lack = may_lack_entries(engine, ledger_id)
    if ledger_id in engine.rows and not may_lack:
        try:
            entries = await list_entries(workers, engine, ledger_id)
        except (StorageError, OSError) as error:
            logger.error("ledger %d: cannot list its entries: %s", ledger_id, error)
    if ledger_id not in engine.rows:
        return no_such_ledger(engine), None
    if may_lack or may_lack_entries(engine, ledger_id):  # a list denies all other entries
        return Status.UNKNOWN_LEDGER_STATE, None
    return Status.IO_ERROR if entries is None else Status.OK, entries
