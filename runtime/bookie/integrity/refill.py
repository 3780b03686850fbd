"""Fetching the missing entries of a ledger from other bookies. Source: storage section 9.3, full check step 2.

The entries that the write sets place here are compared with the index and the write caches, a window at a time. A
missing entry is requested from the other bookies of its write set, recently failed ones last; the first copy with a
valid digest is stored unchanged. Fetched entries are not journaled: they are safe once a checkpoint has settled, and
until then the ledger stays in limbo and the repair is due.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from bkctl.runtime.bookie.integrity.rules import Miss, OwnStripe, miss_of, own_stripes
from bkctl.runtime.bookie.serving.checkpoints import CheckpointService
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials, credentials_of
from bkctl.runtime.errors import BookieError, EntryDigestError, NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ports import Workers
from bkctl.runtime.rate_limit import RateLimit
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import BkctlError, EntryTooLargeError, MemtableFullError

INTEGRITY_LANE: Final = "integrity"
WINDOW_ENTRY_COUNT: Final = 2048
"""Entry ids compared in one job of the lane, which takes a few milliseconds."""
FETCHES_IN_FLIGHT: Final = 16
FAILURES_MAX: Final = 32
"""Failed entries per ledger; at this number the ledger is left to the next round."""


class RefillOutcome(msgspec.Struct, frozen=True):
    """Result for one ledger: numbers of entries fetched and still missing, and why, a refusal first."""

    entries_fetched: int = 0
    entries_lacking: int = 0
    miss: Miss = Miss("")

    @property
    def is_complete(self) -> bool:
        """Whether no entry is missing on this bookie."""
        return self.entries_lacking == 0


class IntegrityProgress(msgspec.Struct):
    """Counters of the repair since the start of the process, for the metrics."""

    is_due: bool = False
    rounds: int = 0
    ledgers_in_limbo: int = 0
    ledgers_checked: int = 0
    ledgers_failed: int = 0
    """Ledgers that the last round could not repair."""
    problem: str = ""
    """Why the last round did not restore all entries."""
    entries_fetched: int = 0
    bytes_fetched: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntegrityTools:
    """What the repair of a bookie needs. ``allows_add``: whether there is space for entries of a ledger."""

    bookie_id: str
    storage: LedgerStorage
    ports: ClientPorts
    workers: Workers
    checkpoints: CheckpointService
    progress: IntegrityProgress
    allows_add: Callable[[int], bool]


class LedgerRefill:
    """Restores ledgers of one bookie, one call for each."""

    def __init__(self, tools: IntegrityTools, rate: RateLimit) -> None:
        self._tools = tools
        self._ports = tools.ports
        self._rate = rate

    async def run(self, ledger_id: int, metadata: LedgerMetadata) -> RefillOutcome:
        """Fetch the entries that are missing by this metadata. Exceptions are failures of this bookie."""
        engine = self._tools.storage.engine_of(ledger_id)
        job = _LedgerRefill(ledger_id, engine, credentials_of(ledger_id, metadata))
        for stripe in own_stripes(metadata, self._tools.bookie_id):
            for first in range(stripe.first_entry_id, stripe.last_entry_id + 1, WINDOW_ENTRY_COUNT):
                missing = await self._missing(job, stripe, first, first + WINDOW_ENTRY_COUNT - 1)
                if missing:
                    await self._fetch_all(job, stripe, missing)
                if job.entries_lacking >= FAILURES_MAX:
                    return job.outcome()
        return job.outcome()

    async def _missing(self, job: _LedgerRefill, stripe: OwnStripe, first: int, last: int) -> list[int]:
        """Entries of the stripe within these bounds that are neither on disk nor in a write cache."""
        while True:
            generation = job.engine.read_generation
            on_disk = await self._tools.workers.run(
                INTEGRITY_LANE, job.engine.stored.list_entries, job.ledger_id, first, WINDOW_ENTRY_COUNT
            )
            present = set(on_disk)
            missing = [
                entry_id
                for entry_id in stripe.entry_ids(first, last)
                if entry_id not in present and job.engine.find_cached(job.ledger_id, entry_id) is None
            ]
            if job.engine.read_generation == generation:
                return missing
            # A checkpoint ended in the meantime and may have moved entries from the cache to the disk: compare again.

    async def _fetch_all(self, job: _LedgerRefill, stripe: OwnStripe, missing: list[int]) -> None:
        entry_ids = iter(missing)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(FETCHES_IN_FLIGHT, len(missing))):
                group.create_task(self._fetch_some(job, stripe, entry_ids))

    async def _fetch_some(self, job: _LedgerRefill, stripe: OwnStripe, entry_ids: Iterator[int]) -> None:
        for entry_id in entry_ids:
            if job.entries_lacking >= FAILURES_MAX:
                return
            await self._rate.take()
            body = await self._fetch(job, stripe, entry_id)
            miss = body if isinstance(body, Miss) else await self._store(job, entry_id, body)
            if miss is not None:
                job.fail(miss._replace(entry_id=entry_id))
            else:
                job.entries_fetched += 1

    async def _fetch(self, job: _LedgerRefill, stripe: OwnStripe, entry_id: int) -> bytes | Miss:
        """A copy with a valid digest, or why there is none."""
        errors: list[BkctlError] = []
        for bookie_id in self._ports.suspects.last(stripe.peers(entry_id)):
            try:
                reply = await self._ports.bookies.read(bookie_id, job.ledger_id, entry_id)
                self._rate.spend(len(reply.body))
                job.credentials.codec.decode(entry_id, reply.body)
            except BookieError as error:
                if not isinstance(error, NoSuchEntryError | NoSuchLedgerError):
                    self._ports.suspects.add(bookie_id)
                errors.append(error)
            except EntryDigestError as error:
                errors.append(BookieError(bookie_id, f"the copy is damaged ({error})"))
            else:
                return reply.body
        return miss_of(errors) if errors else Miss("the metadata gives no other bookie with a copy")

    async def _store(self, job: _LedgerRefill, entry_id: int, body: bytes) -> Miss | None:
        """Put a copy into the write cache; returns why, if that is impossible."""
        while True:
            if not self._tools.allows_add(job.ledger_id):
                return Miss("no disk space for it on this bookie")
            # Storing needs a row: there may never have been one, or the collector may have dropped it.
            job.engine.rows.create_row(job.ledger_id, is_fenced=False, is_limbo=False)
            try:
                job.engine.add(job.ledger_id, entry_id, body)
            except MemtableFullError:
                await self._tools.checkpoints.settle()
            except EntryTooLargeError as error:
                return Miss(str(error))
            else:
                self._tools.progress.entries_fetched += 1
                self._tools.progress.bytes_fetched += len(body)
                return None


class _LedgerRefill:
    """One ledger under repair."""

    def __init__(self, ledger_id: int, engine: LedgerDirectoryEngine, credentials: LedgerCredentials) -> None:
        self.ledger_id = ledger_id
        self.engine = engine
        self.credentials = credentials
        self.entries_fetched = 0
        self.entries_lacking = 0
        self._miss: Miss | None = None

    def fail(self, miss: Miss) -> None:
        self.entries_lacking += 1
        # Fetches end in any order: the same one in each round keeps the sentence the same.
        known = filter(None, (self._miss, miss))
        self._miss = min(known, key=lambda each: (not each.is_refused, each.entry_id))

    def outcome(self) -> RefillOutcome:
        return RefillOutcome(self.entries_fetched, self.entries_lacking, self._miss or Miss(""))
