"""Measures of the requests of all connections: how long they took, what they failed with, how large the entries are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from bkctl.runtime.protocol.messages import (
    AddRun,
    BatchReadRequest,
    BookieAnswer,
    BookieCall,
    BookieInfoCall,
    ForceLedgerCall,
    ListEntriesCall,
    LongPollRead,
    QueuedRead,
    ReadAnswer,
    ReadCall,
    ReadLacCall,
    ReadRun,
    WriteLacCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.storage.ids import INVALID_ENTRY_ID
from bkctl.storage.measures import Measures, NowNs, Outcomes, Timing

_SAMPLES_MAX: Final = 8


class RequestMeasures(Measures):
    """Durations begin with the socket read that completed the request, and end when its answer is queued for sending.

    Adds are counted by run: one addition for all adds of a run. Only the loop changes this.
    """

    def __init__(self, now_ns: NowNs) -> None:
        super().__init__(now_ns)
        self.adds = Outcomes()
        self.recovery_adds = Outcomes()
        """Also counted in ``adds``."""
        self.added_bytes = Outcomes()
        """Sizes of entries. If those of a run differ, a few of them stand for all; their sum is exact."""
        self.reads = Outcomes()
        """Reads of entries without a fence."""
        self.fencing_reads = Outcomes()
        self.read_waits = Outcomes()
        """Time until the turn of a read that is not answered from memory."""
        self.begun_reads = Outcomes()
        """All reads of entries, without that time."""
        self.read_bytes = Outcomes()
        """Sizes of entries; of failed reads, only how many there were."""
        self.batch_reads = Outcomes()
        """Of several entries each, with or without a fence."""
        self.long_polls = Outcomes()
        """With the time that they waited for a LAC."""
        self.lac_reads = Outcomes()
        self.lac_writes = Outcomes()
        self.forced_ledgers = Outcomes()
        self.bookie_infos = Outcomes()
        self.entry_lists = Outcomes()
        self.failures: Counter[tuple[str, Status]] = Counter()
        """Requests that were not answered with OK, by operation and status."""
        self.absent_last_entries_count = 0
        """Reads of a ledger's last entry that found none."""
        self._of: Final[dict[type, tuple[str, Outcomes]]] = {
            ReadCall: ("READ_ENTRY", self.reads),
            BatchReadRequest: ("BATCH_READ_ENTRY", self.batch_reads),
            LongPollRead: ("READ_ENTRY_LONG_POLL", self.long_polls),
            ReadLacCall: ("READ_LAC", self.lac_reads),
            WriteLacCall: ("WRITE_LAC", self.lac_writes),
            ForceLedgerCall: ("FORCE_LEDGER", self.forced_ledgers),
            BookieInfoCall: ("GET_BOOKIE_INFO", self.bookie_infos),
            ListEntriesCall: ("GET_LIST_OF_ENTRIES_OF_LEDGER", self.entry_lists),
        }

    def note_adds(self, run: AddRun, status: Status, size_bytes: int) -> None:
        """Count adds that are answered, with their ``AddRun.size_bytes``."""
        count, elapsed_ns = len(run.bodies), self.now_ns() - run.received_ns
        if status is Status.OK:
            self.adds.succeeded.note((elapsed_ns, count))
            _add_sizes(self.added_bytes.succeeded, run.bodies, size_bytes)
        else:
            self.adds.failed.add(elapsed_ns, count)
            _add_sizes(self.added_bytes.failed, run.bodies, size_bytes)
            self.failures["ADD_ENTRY", status] += count
        if run.is_recovery_add:
            self.recovery_adds.add(elapsed_ns, count, is_success=status is Status.OK)

    def begin_read(self, call: QueuedRead | ReadRun) -> None:
        """Count the time that a read, or each of a run, waited for its turn, which begins now."""
        if call.begun_ns:  # a poll that waited for a LAC begins twice
            return
        call.begun_ns = self.now_ns()
        if isinstance(call, ReadRun):
            self.read_waits.succeeded.add(call.begun_ns - call.received_ns, len(call.entry_ids))
            return
        self.read_waits.succeeded.add(call.begun_ns - call.received_ns)

    def note_answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        """Count a request that is answered, other than adds."""
        if isinstance(call, ReadCall) and isinstance(answer, ReadAnswer) and self._note_body(call, answer):
            return
        operation, outcomes = self._of[type(call)]
        status = answer if isinstance(answer, Status) else answer.status
        is_ok, now_ns = status is Status.OK, self.now_ns()
        if isinstance(call, ReadCall):
            body = answer.body if isinstance(answer, ReadAnswer) else None
            self.begun_reads.add(now_ns - (call.begun_ns or call.received_ns), is_success=is_ok)
            self.read_bytes.add(0 if body is None else len(body), is_success=is_ok)
            if call.fence_with is not None:
                operation, outcomes = "READ_ENTRY_FENCE", self.fencing_reads
            self.absent_last_entries_count += call.entry_id == INVALID_ENTRY_ID and status is Status.NO_SUCH_ENTRY
        outcomes.add(now_ns - call.received_ns, is_success=is_ok)
        if not is_ok:
            self.failures[operation, status] += 1

    def note_bodies(self, run: ReadRun, bodies: Sequence[bytes], size_bytes: int) -> None:
        """Count reads that are answered with bodies: from memory, or whose turn began together."""
        now_ns, count = self.now_ns(), len(bodies)
        self.begun_reads.succeeded.note((now_ns - (run.begun_ns or run.received_ns), count))
        self.reads.succeeded.note((now_ns - run.received_ns, count))
        _add_sizes(self.read_bytes.succeeded, bodies, size_bytes)

    def _note_body(self, call: ReadCall, answer: ReadAnswer) -> bool:
        """Count a read that is answered with an entry, for a third of the cost; False if it is another one."""
        if answer.status is not Status.OK or answer.body is None or call.fence_with is not None:
            return False
        now_ns = self.now_ns()
        self.begun_reads.succeeded.note((now_ns - (call.begun_ns or call.received_ns), 1))
        self.read_bytes.succeeded.note((len(answer.body), 1))
        self.reads.succeeded.note((now_ns - call.received_ns, 1))
        return True


def _add_sizes(timing: Timing, bodies: Sequence[bytes], size_bytes: int) -> None:
    count, first_bytes = len(bodies), len(bodies[0])
    if first_bytes * count == size_bytes:  # looking at each of them costs a hundredth of an add
        timing.note((first_bytes, count))
    else:
        timing.add_sampled(list(map(len, bodies[:: 1 + count // _SAMPLES_MAX])), count, size_bytes)
