"""Writes a test ledger and reads it back, for ``bkctl ledger write-test``."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.errors import LedgerReadError
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ports import Clock
from bkctl.storage.words import counted

CUSTOM_METADATA = {"application": b"bkctl write-test"}
"""Identifies test ledgers."""

_LATENCIES_MAX = 1_000_000
_PROGRESS_INTERVAL_NS = 100_000_000
_PATTERN = b"the quick brown bookie jumps over the lazy ledger "


class WriteTestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one test ledger. ``entries_per_second`` None: limited only by ``in_flight_max`` outstanding adds."""

    entry_count: int = 1000
    entry_bytes: int = 1024
    ensemble_size: int = 3
    write_quorum_size: int = 2
    ack_quorum_size: int = 2
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""
    in_flight_max: int = 500
    entries_per_second: float | None = None
    is_read_back: bool = True


class WriteTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledged entries and, unless disabled, entries read back correctly. Latencies are those of acknowledgements.

    ``write_s``: time from the first add to the last acknowledgement. ``segments`` above 1: bookies were replaced.
    """

    ledger_id: int
    entries: int
    payload_bytes: int
    last_entry_id: int
    segments: int
    entries_read_back: int | None
    write_s: float
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    latency_max_ms: float | None

    @property
    def entries_per_second(self) -> float:
        """Acknowledged entries per second of ``write_s``."""
        return self.entries / self.write_s if self.write_s > 0 else 0.0


def payload_of(entry_id: int, size_bytes: int) -> bytes:
    """Payload of a test entry: readable text of exactly this size, different for each id if the size allows."""
    head = b"bkctl write-test, entry %d " % entry_id
    return (head + _PATTERN * (size_bytes // len(_PATTERN) + 1))[:size_bytes]


async def run_write_test(
    client: LedgerClient,
    config: WriteTestConfig,
    on_progress: Callable[[int], None] | None = None,
    on_created: Callable[[int], None] = lambda _: None,
) -> WriteTestResult:
    """Create a ledger, write it, close it and read it back.

    ``on_progress`` receives the number of acknowledged entries, at most ten times per second; ``on_created`` the id.
    Raises the errors of the writer, and LedgerReadError for an entry that was read back changed. Keeps the ledger after
    a failure, for analysis.
    """
    writer = await client.create(
        ensemble_size=config.ensemble_size,
        write_quorum_size=config.write_quorum_size,
        ack_quorum_size=config.ack_quorum_size,
        digest_type=config.digest_type,
        password=config.password,
        custom_metadata=CUSTOM_METADATA,
    )
    on_created(writer.ledger_id)
    run = _Writing(writer, config, client.ports.clock, on_progress)
    async with writer:
        await run.write_all()
    entries_read_back = await _read_back(client, writer, config) if config.is_read_back else None
    return run.result(entries_read_back)


class _Writing:
    """Writes the entries of one ledger with a bounded number of adds in flight."""

    def __init__(
        self, writer: LedgerWriter, config: WriteTestConfig, clock: Clock, on_progress: Callable[[int], None] | None
    ) -> None:
        self._writer = writer
        self._config = config
        self._clock = clock
        self._on_progress = on_progress
        self._pending: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._latencies_ns = array("q")
        self._acknowledged = 0
        self._write_ns = 0
        self._progress_at_ns = 0

    async def write_all(self) -> None:
        started_ns = self._clock.monotonic_ns()
        try:
            for entry_id in range(self._config.entry_count):
                await self._keep_rate(entry_id, started_ns)
                while len(self._pending) >= self._config.in_flight_max:
                    await self._take_oldest()
                payload = payload_of(entry_id, self._config.entry_bytes)
                self._pending.append((self._clock.monotonic_ns(), self._writer.append_nowait(payload)))
            while self._pending:
                await self._take_oldest()
        finally:
            for _, future in self._pending:
                future.cancel()
        self._write_ns = self._clock.monotonic_ns() - started_ns

    async def _keep_rate(self, entry_id: int, started_ns: int) -> None:
        """A schedule, and no RateLimit: after a delay it writes faster for a while, so the test keeps its rate."""
        if self._config.entries_per_second is None:
            return
        due_ns = started_ns + int(entry_id / self._config.entries_per_second * 1e9)
        while (ahead_ns := due_ns - self._clock.monotonic_ns()) > 0:
            await self._clock.sleep(ahead_ns / 1e9)
            while self._pending and self._pending[0][1].done():
                await self._take_oldest()

    async def _take_oldest(self) -> None:
        sent_ns, future = self._pending[0]
        await future
        self._pending.popleft()
        now_ns = self._clock.monotonic_ns()
        self._acknowledged += 1
        if len(self._latencies_ns) < _LATENCIES_MAX:
            self._latencies_ns.append(now_ns - sent_ns)
        if self._on_progress is not None and now_ns - self._progress_at_ns >= _PROGRESS_INTERVAL_NS:
            self._progress_at_ns = now_ns
            self._on_progress(self._acknowledged)

    def result(self, entries_read_back: int | None) -> WriteTestResult:
        latencies_ns = sorted(self._latencies_ns)
        return WriteTestResult(
            ledger_id=self._writer.ledger_id,
            entries=self._acknowledged,
            payload_bytes=self._acknowledged * self._config.entry_bytes,
            last_entry_id=self._writer.last_add_confirmed,
            segments=len(self._writer.metadata.segments),
            entries_read_back=entries_read_back,
            write_s=self._write_ns / 1e9,
            latency_p50_ms=_percentile_ms(latencies_ns, 0.5),
            latency_p99_ms=_percentile_ms(latencies_ns, 0.99),
            latency_max_ms=_percentile_ms(latencies_ns, 1.0),
        )


async def _read_back(client: LedgerClient, writer: LedgerWriter, config: WriteTestConfig) -> int:
    reader = await client.open(writer.ledger_id, password=config.password)
    expected_id = 0
    async for entry in reader:
        if entry.entry_id != expected_id or entry.payload != payload_of(expected_id, config.entry_bytes):
            raise LedgerReadError(writer.ledger_id, f"entry {expected_id} differs from what was written")
        expected_id += 1
    if expected_id != config.entry_count:
        raise LedgerReadError(
            writer.ledger_id,
            f"{counted(config.entry_count, 'entry was', 'entries were')} acknowledged, but {expected_id:,} were read "
            "back",
        )
    return expected_id


def _percentile_ms(sorted_ns: list[int], fraction: float) -> float | None:
    if not sorted_ns:
        return None
    index = min(len(sorted_ns) - 1, int(fraction * len(sorted_ns)))
    return round(sorted_ns[index] / 1e6, 3)
