"""The bookie's answer to each request. Source: wire section 5, storage section 6.

The handler runs on the event loop. An add needs no thread until its group is committed. A read is answered from the
caches if possible; all misses of one tick form one job in the reads lane, or in the lane for urgent reads.

Differences from the Java bookie, all of them safer: negative ids are rejected (hazard H19); so is an add whose request
has another entry id than its body; a fencing read waits until the fence is durable, whatever the read returns (H10);
READ_LAC returns the real error (H16); a wrong key is always UNAUTHORIZED.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import operator
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.serving.adds import AddPath
from bkctl.runtime.bookie.serving.batch_reads import find_batch, read_batch
from bkctl.runtime.bookie.serving.ledger_handles import FenceMeasures, LedgerHandles, is_explicit_lac_of
from bkctl.runtime.bookie.serving.reads import (
    READS_LANE,
    URGENT_READS_LANE,
    ReadBatcher,
    ReadOutcome,
    cached_bodies,
    cached_poll_answer,
    find_entries,
    join_last,
    known_lac,
    may_lack_entries,
    must_wait,
    new_read,
    no_such_ledger,
    read_answer,
)
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.net.exhaustion import report_exhaustion
from bkctl.runtime.ports import BookieInfo, RequestSource, Responder, Workers
from bkctl.runtime.protocol.messages import (
    AddRun,
    BatchReadRequest,
    BookieAnswer,
    BookieCall,
    BookieInfoAnswer,
    BookieInfoCall,
    EntriesAnswer,
    ForceLedgerCall,
    ListEntriesAnswer,
    ListEntriesCall,
    LongPollAnswer,
    LongPollRead,
    ReadAnswer,
    ReadCall,
    ReadLacAnswer,
    ReadLacCall,
    ReadRun,
    WriteLacCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import MasterKeyMismatchError, MemtableFullError, StorageError
from bkctl.storage.ids import INVALID_ENTRY_ID, LEDGER_ID_MAX, EntryId
from bkctl.storage.journal.format import encode_explicit_lac_record
from bkctl.storage.measures import NowNs, no_clock

logger = logging.getLogger(__name__)


class BookieRequestHandler:
    """Answers the requests of all connections of one bookie."""

    def __init__(
        self,
        storage: LedgerStorage,
        handles: LedgerHandles,
        adds: AddPath,
        workers: Workers,
        disk_space: Callable[[], BookieInfo],
        modes: BookieModes,
        settle: Callable[[], Awaitable[None]],
        now_ns: NowNs = no_clock,
    ) -> None:
        """``settle``: waits for a checkpoint of everything accepted so far."""
        self.fence_measures = FenceMeasures(now_ns)
        self._storage = storage
        self._handles = handles
        self._adds = adds
        self._workers = workers
        self._reads = ReadBatcher(workers, READS_LANE)
        self._urgent_reads = ReadBatcher(workers, URGENT_READS_LANE)
        self._waiting_for_row: dict[int, list[tuple[RequestSource, BookieCall]]] = {}
        """Requests of ledgers whose rows are being read. Those of one ledger keep their order."""
        self._disk_space = disk_space
        self._tasks: set[asyncio.Task[None]] = set()
        self._modes = modes
        self._settle = settle

    def handle(self, connection: RequestSource, call: BookieCall) -> None:
        """Handle a call; the answer is sent now or later."""
        if not self._must_wait_for_row(connection, call):
            self._handle(connection, call)

    def _handle(self, connection: RequestSource, call: BookieCall) -> None:
        """Handle a call of a ledger whose row is in memory, or unknown."""
        if isinstance(call, AddRun):
            self._add(connection, call)
        elif isinstance(call, ReadCall | ReadRun):
            self._read(connection, call)
        elif isinstance(call, LongPollRead):
            engine = self._storage.engine_of(call.ledger_id)
            if not (must_wait(engine, call) and self._handles.polls.wait(connection, call)):
                self._answer_later(connection, call, self._poll(connection, call))
        elif isinstance(call, BatchReadRequest):
            self._batch_read(connection, call)
        elif isinstance(call, ReadLacCall):
            self._read_lac(connection, call)
        elif isinstance(call, WriteLacCall):
            self._write_lac(connection, call)
        elif isinstance(call, ForceLedgerCall):
            self._answer_later(connection, call, self._force_ledger(connection, call))
        elif isinstance(call, ListEntriesCall):
            self._answer_later(connection, call, self._list_entries(connection, call))
        else:
            self._bookie_info(connection, call)

    def _must_wait_for_row(self, connection: RequestSource, call: BookieCall) -> bool:
        """Whether the request is handled later, when the row of its ledger was read, in the reads lane."""
        if isinstance(call, BookieInfoCall):
            return False
        ledger_id = call.ledger_id
        if self._waiting_for_row and ledger_id in self._waiting_for_row:
            self._waiting_for_row[ledger_id].append((connection, call))
            return True
        engine = self._storage.engine_of(ledger_id)
        if not engine.rows.needs_read(ledger_id):
            return False
        self._waiting_for_row[ledger_id] = [(connection, call)]
        self._spawn(self._read_row(engine, ledger_id))
        return True

    async def _read_row(self, engine: LedgerDirectoryEngine, ledger_id: int) -> None:
        generation = engine.read_generation
        is_lost = False
        try:
            row = await self._workers.run(READS_LANE, engine.rows.read, ledger_id)
        except Exception as error:
            # If the ledger was deleted in the meantime, the row may be gone.
            is_lost = generation == engine.read_generation
            if is_lost:
                is_defect = not isinstance(error, (StorageError, OSError))
                logger.error("ledger %d: cannot read its row: %s", ledger_id, error, exc_info=is_defect)
        else:
            if generation == engine.read_generation:
                engine.rows.note_read(ledger_id, row)
        for connection, call in self._waiting_for_row.pop(ledger_id):
            if is_lost:
                connection.answer(call, Status.IO_ERROR)
                continue
            try:
                self._handle(connection, call)
            except Exception as error:  # the others must still be answered
                self._fail(connection, call, error)

    def find_in_memory(
        self, ledger_id: int, entry_ids: Sequence[int], *, wants_lac: bool
    ) -> tuple[list[bytes | None], EntryId | None]:
        """Bodies, and the LAC if it is wanted (``RequestHandler``); no body if the LAC must be read from the disk."""
        return cached_bodies(self._storage.engine_of(ledger_id), ledger_id, entry_ids, wants_lac=wants_lac)

    def poll_memory(self, call: LongPollRead) -> LongPollAnswer | None:
        """The answer to a poll that need not wait, and whose entry is in memory."""
        return cached_poll_answer(self._storage.engine_of(call.ledger_id), call)

    def _add(self, connection: Responder, run: AddRun) -> None:
        """Store entries (wire 5.1)."""
        if self._modes.allows_add(run.ledger_id, is_high_priority=run.is_high_priority):
            self._adds.add(connection, run)
        else:
            connection.answer(run, Status.READ_ONLY)

    def _read(self, connection: RequestSource, call: ReadCall | ReadRun) -> None:
        """Read an entry, or the last one for -1 (wire 5.2); with a key, fence the ledger first (wire 5.3).

        Of a run, the first entry that is left, and those after it that are in memory as well, or not.
        """
        ledger_id, entry_id = call.ledger_id, call.entry_id
        if not 0 <= ledger_id <= LEDGER_ID_MAX or entry_id < INVALID_ENTRY_ID:
            connection.answer(call, Status.BAD_REQUEST)
            return
        if isinstance(call, ReadCall) and call.fence_with is not None:
            self._answer_later(connection, call, self._fencing_read(connection, call, call.fence_with))
            return
        engine = self._storage.engine_of(ledger_id)
        if ledger_id not in engine.rows:
            connection.answer(call, no_such_ledger(engine))
            return
        may_lack = may_lack_entries(engine, ledger_id)
        needs_lac = call.wants_lac and not may_lack
        max_lac = engine.last_add_confirmed(ledger_id) if needs_lac else None
        is_last, lacks_lac = entry_id == INVALID_ENTRY_ID, needs_lac and max_lac is None
        cached = engine.last_cached(ledger_id) if is_last else None
        entry_ids = call.entry_ids if isinstance(call, ReadRun) else [entry_id]
        bodies = [None] if is_last else engine.find_many_cached(ledger_id, entry_ids)
        body = bodies[0]
        if body is not None and not lacks_lac:
            self._answer_read(connection, call, read_answer(call, Status.OK, bodies, max_lac))
            return

        def finish(outcome: ReadOutcome) -> None:
            status, found = (Status.OK, body) if body is not None else join_last(job, cached, outcome, may_lack)
            lac = engine.last_add_confirmed(ledger_id)
            if outcome.is_end_known:
                try:
                    lac = engine.note_last_stored(ledger_id, outcome.last_entry, job.read_generation)
                except StorageError as error:  # the row was dropped since the request came
                    logger.error("ledger %d: cannot read its row: %s", ledger_id, error)
            lac = lac if status is Status.OK and needs_lac else None
            further = outcome.read_ahead[: job.entry_count - 1] if status is Status.OK else ()
            self._answer_read(connection, call, read_answer(call, status, [found, *further], lac))

        count = sum(1 for _ in itertools.takewhile(operator.not_, bodies))
        job = new_read(engine, ledger_id, entry_id, needs_last_entry=is_last or lacks_lac, entry_count=max(1, count))
        (self._urgent_reads if call.is_high_priority else self._reads).submit(job, finish)

    def _answer_read(self, connection: RequestSource, call: ReadCall | ReadRun, answer: BookieAnswer) -> None:
        """Answer a read, or the first ones of a run, and go on."""
        connection.answer(call, answer)
        if isinstance(call, ReadRun) and call.entry_ids:
            try:
                self.handle(connection, call)
            except Exception as error:
                self._fail(connection, call, error)

    async def _poll(self, connection: RequestSource, call: LongPollRead) -> None:
        """Wait for the LAC, or answer a poll that has waited (wire 5.4)."""
        if not 0 <= call.ledger_id <= LEDGER_ID_MAX or call.entry_id < INVALID_ENTRY_ID:
            connection.answer(call, Status.BAD_REQUEST)
            return
        engine = self._storage.engine_of(call.ledger_id)
        reads = self._urgent_reads if call.is_high_priority else self._reads
        lac = await known_lac(engine, call.ledger_id, reads)
        if isinstance(lac, Status):
            connection.answer(call, lac)
        elif call.previous_lac >= lac and self._handles.polls.wait(connection, call):
            return
        elif not call.is_piggyback:
            status, body = await self._find(engine, call.ledger_id, call.entry_id, reads)
            connection.answer(call, ReadAnswer(call.txn_id, status, body, lac if status is Status.OK else None))
        else:
            connection.answer(call, await self._piggyback(engine, call, lac, reads))

    async def _piggyback(
        self, engine: LedgerDirectoryEngine, call: LongPollRead, lac: EntryId, reads: ReadBatcher
    ) -> LongPollAnswer | Status:
        """The LAC, with the entry that the client lacks if the LAC covers it and it is here."""
        entry_id = call.previous_lac + 1
        if lac < entry_id or entry_id < 0:
            if lac == INVALID_ENTRY_ID:  # maybe because nothing is stored
                status, _ = await self._find(engine, call.ledger_id, INVALID_ENTRY_ID, reads)
                if status is not Status.OK:
                    return status
            return LongPollAnswer(call.txn_id, Status.OK, None, lac, INVALID_ENTRY_ID, call.lac_changed_ms)
        status, body = await self._find(engine, call.ledger_id, entry_id, reads)
        if status not in (Status.OK, Status.NO_SUCH_ENTRY):
            return status
        found_id = INVALID_ENTRY_ID if body is None else entry_id
        return LongPollAnswer(call.txn_id, Status.OK, body, lac, found_id, call.lac_changed_ms)

    def _read_lac(self, connection: Responder, call: ReadLacCall) -> None:
        """Explicit LAC and last entry of a ledger (wire 5.6)."""
        ledger_id = call.ledger_id
        engine = self._storage.engine_of(ledger_id)
        if ledger_id not in engine.rows:
            connection.answer(call, no_such_ledger(engine))
            return
        job = new_read(engine, ledger_id, INVALID_ENTRY_ID, needs_last_entry=True)
        cached = engine.last_cached(ledger_id)
        may_lack = may_lack_entries(engine, ledger_id)

        def finish(outcome: ReadOutcome) -> None:
            status, last_body = join_last(job, cached, outcome, may_lack)
            try:
                now = engine.rows.find(ledger_id)
            except StorageError as error:  # the row was dropped since the request came
                logger.error("ledger %d: cannot read its row: %s", ledger_id, error)
                connection.answer(call, Status.IO_ERROR)
                return
            explicit = now.explicit_lac if now is not None else None
            if status is Status.NO_SUCH_ENTRY and explicit is not None:
                status = Status.OK
            elif status is Status.UNKNOWN_LEDGER_STATE:
                explicit = None
            connection.answer(call, ReadLacAnswer(call.txn_id, status, explicit, last_body))

        self._reads.submit(job, finish)

    def _write_lac(self, connection: Responder, call: WriteLacCall) -> None:
        """Store an explicit LAC (wire 5.5); rejected while the bookie is read-only, but not if the ledger is fenced."""
        ledger_id, body = call.ledger_id, call.body
        if not 0 <= ledger_id <= LEDGER_ID_MAX or not is_explicit_lac_of(ledger_id, body):
            connection.answer(call, Status.BAD_REQUEST)
        elif self._modes.mode is BookieMode.READ_ONLY:
            connection.answer(call, Status.READ_ONLY)
        elif not self._handles.group_commit_of(ledger_id).holds_explicit_lacs:
            # Java answers OK but loses the LAC in a crash (storage section 3.6).
            connection.answer(call, Status.BAD_VERSION)
        else:
            self._answer_later(connection, call, self._keep_lac(connection, call))

    def _bookie_info(self, connection: Responder, call: BookieInfoCall) -> None:
        """Disk space of the ledger directories (wire 5.7)."""
        space = self._disk_space()
        connection.answer(call, BookieInfoAnswer(call.txn_id, Status.OK, space.total_bytes, space.free_bytes))

    async def drain(self) -> None:
        """Wait for the requests that need more than one step; the caller submits no new ones."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reads.close()
        self._urgent_reads.close()

    def _batch_read(self, connection: Responder, call: BatchReadRequest) -> None:
        """Read consecutive entries (wire 13); with a key, fence the ledger first."""
        engine = self._storage.engine_of(call.ledger_id)
        if not 0 <= call.ledger_id <= LEDGER_ID_MAX or call.first_entry_id < INVALID_ENTRY_ID:
            connection.answer(call, Status.BAD_REQUEST)
        elif call.fence_with is not None:
            self._answer_later(connection, call, self._fencing_read(connection, call, call.fence_with))
        elif call.ledger_id not in engine.rows:
            connection.answer(call, no_such_ledger(engine))
        elif (block := find_batch(engine, call)) is not None:
            connection.answer(call, EntriesAnswer(call.txn_id, Status.OK, block))
        else:
            self._answer_later(connection, call, self._answer_batch(connection, call, engine))

    async def _answer_batch(self, connection: Responder, call: BatchReadRequest, engine: LedgerDirectoryEngine) -> None:
        connection.answer(call, await self._found(engine, call))

    async def _fencing_read(self, connection: Responder, call: ReadCall | BatchReadRequest, master_key: bytes) -> None:
        measures = self.fence_measures
        began_ns = measures.now_ns()
        try:
            handle = self._handles.open(call.ledger_id, master_key)
            fence_durable = self._handles.fence(call.ledger_id)
        except MasterKeyMismatchError:
            connection.answer(call, Status.UNAUTHORIZED)
            return
        except MemtableFullError:
            self._refuse_for_now(connection, call)
            return
        except StorageError:  # the deleted ledger is still there, or its row cannot be read
            connection.answer(call, Status.IO_ERROR)
            return
        answer = await self._found(handle.engine, call)
        measures.reads.add(measures.now_ns() - began_ns, is_success=answer.status is not Status.IO_ERROR)
        is_durable = True
        try:
            await fence_durable
        except StorageError:
            is_durable = False
        measures.waits.add(measures.now_ns() - began_ns, is_success=is_durable)
        connection.answer(call, answer if is_durable else Status.IO_ERROR)

    async def _found(
        self, engine: LedgerDirectoryEngine, call: ReadCall | BatchReadRequest
    ) -> ReadAnswer | EntriesAnswer:
        """What is stored, with the status of the first entry."""
        if isinstance(call, ReadCall):
            status, body = await self._find(engine, call.ledger_id, call.entry_id, self._urgent_reads)
            return ReadAnswer(call.txn_id, status, body, None)
        is_urgent = call.is_high_priority or call.fence_with is not None
        reads = self._urgent_reads if is_urgent else self._reads
        status, body = await self._find(engine, call.ledger_id, call.first_entry_id, reads)
        block = b"" if body is None else await read_batch(self._workers, reads.lane, engine, call, body)
        return EntriesAnswer(call.txn_id, status, block)

    async def _find(
        self, engine: LedgerDirectoryEngine, ledger_id: int, entry_id: int, reads: ReadBatcher
    ) -> tuple[Status, bytes | None]:
        is_last = entry_id == INVALID_ENTRY_ID
        body = None if is_last else engine.find_cached(ledger_id, entry_id)
        if body is not None:
            return Status.OK, body
        cached = engine.last_cached(ledger_id) if is_last else None
        job = new_read(engine, ledger_id, entry_id, needs_last_entry=is_last)
        may_lack = may_lack_entries(engine, ledger_id)
        return join_last(job, cached, await reads.read(job), may_lack)

    async def _keep_lac(self, connection: Responder, call: WriteLacCall) -> None:
        try:
            handle = self._handles.open(call.ledger_id, call.master_key)
            self._handles.set_explicit_lac(handle, call.body)
            await handle.group_commit.append_and_wait(encode_explicit_lac_record(call.ledger_id, call.body))
        except MasterKeyMismatchError:
            connection.answer(call, Status.UNAUTHORIZED)
        except MemtableFullError:
            self._refuse_for_now(connection, call)
        except StorageError:
            connection.answer(call, Status.IO_ERROR)
        else:
            connection.answer(call, Status.OK)

    def _refuse_for_now(self, connection: Responder, call: BookieCall) -> None:
        """There is no memory for another changed row until the next checkpoint begins."""
        self._adds.request_checkpoint()
        connection.answer(call, Status.TOO_MANY_REQUESTS)

    async def _force_ledger(self, connection: Responder, call: ForceLedgerCall) -> None:
        """Answer when everything stored for the ledger so far is durable (wire 5.8)."""
        try:
            await self._handles.group_commit_of(call.ledger_id).force(self._settle)
        except (StorageError, TimeoutError):
            connection.answer(call, Status.IO_ERROR)
        else:
            connection.answer(call, Status.OK)

    async def _list_entries(self, connection: Responder, call: ListEntriesCall) -> None:
        """Ids of all entries of a ledger (wire 5.9)."""
        engine = self._storage.engine_of(call.ledger_id)
        status, entries = await find_entries(self._workers, engine, call.ledger_id)
        connection.answer(call, ListEntriesAnswer(call.txn_id, status, entries))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answer_later(self, connection: Responder, call: BookieCall, job: Coroutine[Any, Any, None]) -> None:
        """Run a job that answers the call. If it fails by a defect, clients must not wait for their time-outs."""

        async def run() -> None:
            try:
                await job
            except Exception as error:
                self._fail(connection, call, error)

        self._spawn(run())

    @staticmethod
    def _fail(connection: Responder, call: BookieCall, error: Exception) -> None:
        if not report_exhaustion(asyncio.get_running_loop(), error):
            ledger_id = None if isinstance(call, BookieInfoCall) else call.ledger_id
            logger.error("ledger %s: a request failed: %s", ledger_id, type(call).__name__, exc_info=error)
        connection.answer(call, Status.IO_ERROR)
