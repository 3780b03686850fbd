"""The file of a recovery job: its plan, the ledgers that are done, and how far long copies are.

JSON lines, only appended (bkctl-files, section "Job file"). A killed job continues from it. The metadata stays the
truth: every ledger is read again before it is touched, and every recorded range is verified again on its target.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from runtime.errors import ConfigurationError
from runtime.replication.config import OpenLedgers, PlacementMode, VerifyMode
from storage.ports import File, FileSystem

VERSION: Final = 1
_READ_BYTES: Final = 1 << 20


class JobStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="start"):
    """First line. A continued job keeps its choices. ``only_targets``: copy only to these; empty: to all.

    ``is_of_ledgers``: the operator chose the ledgers, so the job does not move all of them.
    """

    version: int = VERSION
    job_id: str
    command: str
    root: str
    instance_id: str | None
    bookie_ids: tuple[str, ...]
    only_targets: tuple[str, ...] = ()
    is_of_ledgers: bool = False
    open_ledgers: OpenLedgers
    placement: PlacementMode
    verify: VerifyMode
    started_ms: int


class JobLedger(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="ledger"):
    """A planned ledger."""

    ledger_id: int
    surviving_copies: int


class JobPlanned(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="planned"):
    """The plan is complete."""

    ledgers: int
    ledgers_scanned: int


class JobRange(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="range"):
    """The stripe of a segment is on ``target``, verified up to ``last_entry_id``; the metadata does not name it yet."""

    ledger_id: int
    first_entry_id: int
    """First entry of the segment."""
    ensemble_index: int
    target: str
    last_entry_id: int


class JobDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="done"):
    """Nothing is left to do for a ledger. ``outcome``: name of a ``LedgerOutcome``, never FAILED."""

    ledger_id: int
    outcome: str
    fragments: int
    entries: int
    bytes: int
    was_closed: bool


JobRecord: TypeAlias = JobStart | JobLedger | JobPlanned | JobRange | JobDone


class WorkOrder:
    """Ledgers in the order of work: fewest surviving copies first, then the newest. Uses 8 bytes per ledger."""

    def __init__(self) -> None:
        self._ids: dict[int, array[int]] = {}

    def add(self, ledger_id: int, surviving_copies: int) -> None:
        """Add a ledger."""
        self._ids.setdefault(surviving_copies, array("q")).append(ledger_id)

    def __len__(self) -> int:
        return sum(map(len, self._ids.values()))

    def __iter__(self) -> Iterator[int]:
        for surviving_copies in sorted(self._ids):
            # The scan adds them almost in order.
            yield from sorted(self._ids[surviving_copies], reverse=True)


class RecordedJob:
    """What a job file says."""

    def __init__(self, start: JobStart) -> None:
        self.start = start
        self.is_planned = False
        """Whether the plan is complete. If not, it must be made again."""
        self.order = WorkOrder()
        self.bytes_copied = 0
        """Of ledgers that are done."""
        self.ranges: dict[int, dict[tuple[int, int], JobRange]] = {}
        """The last range of each stripe, by first entry and ensemble index, of ledgers that are not done."""
        self._done = array("q")
        self._is_sorted = True

    @property
    def ledgers_done(self) -> int:
        """Ledgers for which nothing is left to do."""
        return len(self._done)

    def is_done(self, ledger_id: int) -> bool:
        """Whether nothing is left to do for the ledger."""
        if not self._is_sorted:
            self._done = array("q", sorted(self._done))
            self._is_sorted = True
        place = bisect_left(self._done, ledger_id)
        return place < len(self._done) and self._done[place] == ledger_id

    def apply(self, record: JobRecord) -> None:
        """Take over one more record."""
        match record:
            case JobLedger():
                self.order.add(record.ledger_id, record.surviving_copies)
            case JobPlanned():
                self.is_planned = True
            case JobRange():
                stripe = (record.first_entry_id, record.ensemble_index)
                known = self.ranges.setdefault(record.ledger_id, {}).get(stripe)
                # A continued job verifies again what its target has, and reports how far it has come with that.
                if known is None or known.target != record.target or known.last_entry_id < record.last_entry_id:
                    self.ranges[record.ledger_id][stripe] = record
            case JobDone():
                self.ranges.pop(record.ledger_id, None)
                self._done.append(record.ledger_id)
                self._is_sorted = False
                self.bytes_copied += record.bytes


class JobFile:
    """Appends to a job file. ``append`` only collects; ``write`` makes it durable, and may run in another thread."""

    def __init__(self, file: File, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self._pending = bytearray()
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def create(cls, file_system: FileSystem, path: str, start: JobStart) -> JobFile:
        """A new private file; OSError, FileExistsError."""
        job_file = cls(file_system.create(path), 0)
        job_file.append(start)
        job_file.write()
        return job_file

    @classmethod
    def reopen(cls, file_system: FileSystem, path: str) -> tuple[JobFile, RecordedJob]:
        """An existing file, to continue its job; ConfigurationError if it is not a job file; OSError."""
        file = file_system.open(path, writable=True)
        try:
            state, size_bytes = _read(file)
            file.truncate(size_bytes)  # a kill can leave a part of the last line
        except BaseException:
            file.close()
            raise
        return cls(file, size_bytes), state

    def append(self, record: JobRecord) -> None:
        """Add a record to the next write."""
        self._pending += self._encoder.encode(record) + b"\n"

    def write(self) -> None:
        """Write all collected records and sync them; OSError, after which they are collected still."""
        pending = bytes(self._pending)
        if pending:
            self._file.pwrite(pending, self._size_bytes)
            self._file.sync_data()
            self._size_bytes += len(pending)
            del self._pending[: len(pending)]

    def close(self) -> None:
        """Close the file, without a write."""
        self._file.close()


def read_job(file_system: FileSystem, path: str) -> RecordedJob:
    """What a job file says, without changing it; ConfigurationError if it is not a job file; OSError."""
    file = file_system.open(path)
    try:
        return _read(file)[0]
    finally:
        file.close()


def read_start(file_system: FileSystem, path: str) -> JobStart:
    """The first line of a job file; ConfigurationError if it is not a job file; OSError."""
    file = file_system.open(path)
    try:
        line = next(_lines(file), None)
        if line is None:
            raise _no_complete_line(file)
        return _require_start(file, _decoded(file, 1, line, msgspec.json.Decoder(JobRecord)))
    finally:
        file.close()


def _read(file: File) -> tuple[RecordedJob, int]:
    """The state, and the size without an unfinished last line."""
    decoder = msgspec.json.Decoder(JobRecord)
    state: RecordedJob | None = None
    size_bytes = 0
    for number, line in enumerate(_lines(file), 1):
        record = _decoded(file, number, line, decoder)
        if state is None:
            state = RecordedJob(_require_start(file, record))
        else:
            state.apply(record)
        size_bytes += len(line) + 1
    if state is None:
        raise _no_complete_line(file)
    return state, size_bytes


def _decoded(file: File, number: int, line: bytes, decoder: msgspec.json.Decoder[JobRecord]) -> JobRecord:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file.path}, line {number}: not a line of a job file of bkctl: {error}") from error


def _no_complete_line(file: File) -> ConfigurationError:
    return ConfigurationError(f"{file.path} is not a job file of bkctl: it has no complete line")


def _require_start(file: File, record: JobRecord) -> JobStart:
    if not isinstance(record, JobStart):
        raise ConfigurationError(f"{file.path} is not a job file of bkctl: its first line is a {type(record).__name__}")
    if record.version != VERSION:
        raise ConfigurationError(
            f"{file.path}: version {record.version} of the job file is unknown; this bkctl reads version {VERSION}: "
            "continue it with the bkctl that began it, or start a new job"
        )
    return record


def _lines(file: File) -> Iterator[bytes]:
    """All complete lines, without their ends."""
    offset, rest = 0, b""
    while piece := file.pread(_READ_BYTES, offset):
        offset += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
