"""Ledgers of a soak run: what was acknowledged, and an independent check that it is all there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import BookieError, EntryDigestError, LedgerFencedError, SessionExpiredError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.store import children_of, find_node
from bkctl.storage.errors import BkctlError

CLOSED_MIN, CLOSED_MAX = 3, 10
OPEN_MAX = 3
ENTRIES_MAX = 60
ENTRY_BYTES_MAX = 4096
BATCH_MAX = 6
BATCH_PAUSE_S = 0.1
PEER_TIMEOUT_S = 2.0
CONFIG = ClientConfig(add_timeout_s=PEER_TIMEOUT_S, read_timeout_s=PEER_TIMEOUT_S)

_Result = TypeVar("_Result")


@dataclasses.dataclass(eq=False)
class Ledger:
    """Entries below ``acknowledged`` must be there; those below ``sent`` may be."""

    id: int
    acknowledged: int = 0
    sent: int = 0
    writer: LedgerWriter | None = None
    """None: the ledger is closed."""
    is_whole: bool = False
    """Whether it was closed before the first fault, with every copy of every entry."""
    error: BkctlError | None = None
    """Why the writer ended."""


class Book:
    """All ledgers that were written and not deleted. Use as a context manager: it writes in a thread of its own."""

    def __init__(self, metadata_uri: str, counts: Counter[str]) -> None:
        """``counts``: what happens to open ledgers."""
        self._metadata_uri = metadata_uri
        self._counts = counts
        self._ledgers: dict[int, Ledger] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writing: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._client = self._run(LedgerClient.connect(self._metadata_uri, config=CONFIG))
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            await self._client.close()
            await asyncio.gather(*self._writing)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def writable(self) -> set[str]:
        """The bookies that are registered as writable."""
        return set(self._run(self._client.ports.registrations.writable()))

    def reconnect(self) -> None:
        """Wait until ZooKeeper answers; the session may expire meanwhile."""
        with contextlib.suppress(SessionExpiredError):
            self.writable()
        self.writable()

    def count_referencing(self, bookie_id: str) -> int:
        """Ledgers whose metadata has the bookie in any segment."""

        async def count() -> int:
            found = await asyncio.gather(*(self._client.ports.ledgers.read(each) for each in self._ledgers))
            return sum(bookie_id in each.value.bookies() for each in found)

        return self._run(count())

    def nodes_below(self, path: str) -> dict[str, bytes]:
        """All nodes below a path, with their data; those that vanish meanwhile are left out."""
        store = self._client.store

        async def walk(directory: str) -> dict[str, bytes]:
            found: dict[str, bytes] = {}
            for name in await children_of(store, directory):
                child = f"{directory}/{name}"
                if (node := await find_node(store, child)) is not None:
                    found |= {child: node.data, **await walk(child)}
            return found

        return self._run(walk(path))

    def is_written_on(self, bookie_id: str) -> bool:
        """Whether a living writer still has the bookie in its ensemble."""
        writers = [each.writer for each in self._ledgers.values() if each.writer is not None and each.writer.is_open]
        return any(bookie_id in each.metadata.last_segment.ensemble for each in writers)

    @property
    def has_dead_writers(self) -> bool:
        """Whether a ledger may stay open until it is recovered."""
        return any(each.writer is not None and not each.writer.is_open for each in self._ledgers.values())

    def write(self, source: random.Random) -> None:
        """Some closed ledgers, and some open ones: a writer goes on until ``end_writers``, or dies at once."""

        async def write_all() -> None:
            for _ in range(source.randint(CLOSED_MIN, CLOSED_MAX)):
                size, quorum = source.randint(0, ENTRIES_MAX), source.choice((2, 3))
                async with await self._client.create(write_quorum_size=quorum, ack_quorum_size=quorum) as writer:
                    await asyncio.gather(*(writer.append_nowait(_payload(writer.ledger_id, i)) for i in range(size)))
                self._ledgers[writer.ledger_id] = Ledger(writer.ledger_id, size, size, is_whole=True)
            for _ in range(source.randint(0, OPEN_MAX)):
                dies = source.random() < 0.4
                writer = await self._client.create(write_quorum_size=source.choice((2, 3)))
                ledger = self._ledgers[writer.ledger_id] = Ledger(writer.ledger_id, writer=writer)
                await _append(ledger, writer, BATCH_MAX)
                self._counts[f"open ledger whose writer {'dies' if dies else 'goes on'}"] += 1
                task = asyncio.create_task(_append(ledger, writer, BATCH_MAX) if dies else _write_on(ledger, writer))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)
                if dies:
                    await asyncio.sleep(0)  # some adds are on their way
                    writer.abandon()

        self._run(write_all())

    def end_writers(self, keep_max: int) -> None:
        """Close all ledgers, as writers do, or as readers do after a writer has died; keep only the newest."""

        async def end_all() -> None:
            for ledger in self._ledgers.values():
                if ledger.writer is None:
                    continue
                self._counts["fenced writer"] += isinstance(ledger.error, LedgerFencedError)
                if ledger.writer.is_open:
                    await ledger.writer.close()
                reader = await self._client.open(ledger.id, recover=True)
                problem = _end_problem(ledger, reader.last_add_confirmed)
                assert problem is None, problem
                ledger.acknowledged = ledger.sent = reader.last_add_confirmed + 1
                ledger.writer = ledger.error = None
            for ledger_id in sorted(self._ledgers)[: max(0, len(self._ledgers) - keep_max)]:
                await self._client.delete(ledger_id)
                del self._ledgers[ledger_id]

        self._run(end_all())

    def problems(self, gone: str, *, may_fence: bool, may_stay_open: bool) -> list[str]:
        """What is wrong: a ledger that references ``gone``, or copies that are not where the metadata says.

        ``may_fence``: writers may find their ledgers fenced. ``may_stay_open``: open last segments may reference it.
        """

        async def check_all() -> list[str]:
            found = await asyncio.gather(*(self._check(each, gone, may_stay_open) for each in self._ledgers.values()))
            fenced = [each.id for each in self._ledgers.values() if isinstance(each.error, LedgerFencedError)]
            problems = [] if may_fence else [f"ledger {each} was fenced" for each in fenced]
            return problems + [each for part in found for each in part]

        return self._run(check_all())

    async def _check(self, ledger: Ledger, gone: str, may_stay_open: bool) -> list[str]:
        count = ledger.acknowledged  # before the metadata: these entries are in its segments
        metadata = (await self._client.ports.ledgers.read(ledger.id)).value
        problems = []
        if metadata.is_closed:
            count = metadata.last_entry_id + 1
            if (problem := _end_problem(ledger, metadata.last_entry_id)) is not None:
                return [problem]
        elif ledger.writer is None:
            return [f"ledger {ledger.id} was closed, and is {metadata.state.name}"]
        segments = metadata.segments
        if may_stay_open and metadata.state is LedgerState.OPEN:
            segments = segments[:-1]
        if any(gone in each.ensemble for each in segments):
            problems.append(f"ledger {ledger.id} ({metadata.state.name}) references {gone}")
        for entry_id in range(count):
            problems += await self._check_entry(ledger, metadata, entry_id, gone)
        return problems

    async def _check_entry(self, ledger: Ledger, metadata: LedgerMetadata, entry_id: int, gone: str) -> list[str]:
        """No copy may differ. A ledger that was written in a disturbed cluster has an ack quorum of copies at least."""
        codec, bookies = credentials_of(ledger.id, metadata).codec, self._client.ports.bookies
        ensemble = metadata.segment_of(entry_id).ensemble
        members = [ensemble[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]
        left = len(members) if ledger.is_whole else metadata.ack_quorum_size
        missing, problems = [], []
        for bookie_id in members:
            where = f"ledger {ledger.id} entry {entry_id} on bookie {bookie_id}"
            try:
                if bookie_id != gone:
                    body = (await bookies.read(bookie_id, ledger.id, entry_id)).body
                    if codec.decode(entry_id, body).payload != _payload(ledger.id, entry_id):
                        problems.append(f"{where}: other bytes than were written")
                left -= 1
            except EntryDigestError as error:
                problems.append(f"{where}: {error}")
            except BookieError as error:
                missing.append(f"{where}: {error}")
        return problems if left <= 0 else problems + missing


async def _append(ledger: Ledger, writer: LedgerWriter, count: int) -> None:
    """Send some entries at once; BkctlError is noted."""
    first = ledger.sent
    try:
        adds = []
        for entry_id in range(first, first + count):
            adds.append(writer.append_nowait(_payload(ledger.id, entry_id)))
            ledger.sent = entry_id + 1
        for answer in await asyncio.gather(*adds, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            ledger.acknowledged = answer + 1
    except BkctlError as error:
        ledger.error = error


async def _write_on(ledger: Ledger, writer: LedgerWriter) -> None:
    while writer.is_open:
        await _append(ledger, writer, random.randint(1, BATCH_MAX))
        await asyncio.sleep(BATCH_PAUSE_S)


def _end_problem(ledger: Ledger, last_entry_id: int) -> str | None:
    if ledger.acknowledged - 1 <= last_entry_id < ledger.sent:
        return None
    return f"ledger {ledger.id} ends at {last_entry_id}; {ledger.acknowledged} acknowledged, {ledger.sent} sent"


def _payload(ledger_id: int, entry_id: int) -> bytes:
    source = random.Random(ledger_id * 1_000_003 + entry_id)
    return source.randbytes(source.randint(0, ENTRY_BYTES_MAX))
