"""The repair of a bookie that lost entries; runs while it serves. Source: storage section 9.3, full check.

Due while the flag NEEDS_INTEGRITY_CHECK is set. If the process ends, the next one starts again and skips what was
fetched. A round:

    ledgers in limbo    recover the ledger, unless it is closed; fetch missing entries; checkpoint; end the limbo
    all others          fetch missing entries
    at the end          checkpoint, and if nothing failed, clear the flag

Limbo ends only when no entry is missing: until then "no such entry" would not be a fact. (Java ends it before anything
is copied.) The next round retries only the ledgers that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from bkctl.runtime.bookie.integrity.preboot_check import set_integrity_flag
from bkctl.runtime.bookie.integrity.refill import IntegrityTools, LedgerRefill
from bkctl.runtime.bookie.integrity.rules import Miss, is_end_in_doubt, misses_text, needs_recovery
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.client.recovery import LedgerRecovery
from bkctl.runtime.config import IntegrityConfig
from bkctl.runtime.errors import (
    AnswersMissingError,
    BookieError,
    LedgerNotFoundError,
    LedgerRecoveryError,
    UnknownLedgerStateError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.rate_limit import RateLimit
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

LIMBO_BATCH: Final = 64
"""Ledgers in limbo that share one checkpoint."""
LIMBO_AT_ONCE: Final = 8
ROWS_PER_TURN: Final = 4096
"""Rows to look at before other tasks get a turn on the loop."""
RETRY_DELAY_FACTOR_MAX: Final = 100


class IntegrityService:
    """Repairs one bookie whenever a repair is due, until no entry is missing. The progress can be read at any time."""

    def __init__(self, tools: IntegrityTools, config: IntegrityConfig) -> None:
        self._bookie_id = tools.bookie_id
        self._storage = tools.storage
        self._ports = tools.ports
        self._workers = tools.workers
        self._checkpoints = tools.checkpoints
        self._config = config
        self._rate = RateLimit(tools.ports.clock, config.bytes_per_s_max)
        self._refill = LedgerRefill(tools, self._rate)
        self._progress = tools.progress
        self._failures: dict[int, Miss] = {}
        self._due = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._repairing: asyncio.Task[None] | None = None

    def set_bytes_per_s_max(self, bytes_per_s_max: int) -> None:
        """Limit the rate of fetching from other bookies from now on."""
        self._rate.change(bytes_per_s_max)

    def request(self) -> None:
        """Start a repair; the flag must be set and the ledgers recorded. Call on the loop."""
        self._due.set()

    async def run(self) -> None:
        """Repair whenever a repair is due, until cancelled. StorageError, OSError."""
        while True:
            await self._due.wait()
            await self._free.wait()
            self._repairing = asyncio.get_running_loop().create_task(self._repair_all())
            try:
                await asyncio.wait([self._repairing])
            except asyncio.CancelledError:
                await self._break_off()
                raise
            if not self._repairing.cancelled():  # if it was cancelled by ``held``, start again
                self._repairing.result()
                self._due.clear()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Pause the repair while the block changes what the repair relies on, for example the index."""
        self._free.clear()
        await self._break_off()
        try:
            yield
        finally:
            self._free.set()

    async def _break_off(self) -> None:
        if self._repairing is not None and not self._repairing.done():
            self._repairing.cancel()
            await asyncio.wait([self._repairing])

    async def _repair_all(self) -> None:
        """Run rounds until nothing is missing; then clear the flag durably."""
        progress = self._progress
        progress.is_due = True
        pending: list[int] | None = None
        delay_s = self._config.retry_delay_s
        while True:
            progress.rounds += 1
            try:
                pending = await self._round(pending)
            except BkctlError as error:
                reason = str(error)
            else:
                if not pending:
                    break
                reason = misses_text(self._failures)
            progress.ledgers_failed, progress.problem = len(pending or ()), reason
            logger.warning("integrity check: %s; next attempt in %.0f s", reason, delay_s)
            await self._ports.clock.sleep(delay_s)
            delay_s = min(delay_s * 2, self._config.retry_delay_s * RETRY_DELAY_FACTOR_MAX)
        await self._checkpoints.settle()
        await self._workers.run(CHECKPOINT_LANE, set_integrity_flag, self._storage.engines[0], is_needed=False)
        progress.is_due = False
        progress.ledgers_failed, progress.problem = 0, ""
        logger.warning(
            "integrity check complete: restored %d entries (%d bytes) from other bookies",
            progress.entries_fetched,
            progress.bytes_fetched,
        )

    async def _round(self, pending: list[int] | None) -> list[int]:
        """Repair ``pending``, or all ledgers; returns the ledgers that could not be repaired, ascending."""
        self._failures = {}
        limbo_ids = [each for engine in self._storage.engines for each in engine.rows.limbo_ids]
        self._progress.ledgers_in_limbo = len(limbo_ids)
        # The newest first, because clients most likely wait for these.
        for batch in in_batches(sorted(limbo_ids, reverse=True), LIMBO_BATCH):
            await self._end_limbo(batch)
        seen = set(limbo_ids)
        if pending is None:
            await self._check_all(seen)
        else:
            for ledger_id in pending:
                if ledger_id not in seen:
                    await self._repair(ledger_id)
        return sorted(self._failures)

    async def _end_limbo(self, ledger_ids: list[int]) -> None:
        at_once = asyncio.Semaphore(LIMBO_AT_ONCE)
        complete: list[int] = []

        async def repair(ledger_id: int) -> None:
            async with at_once:
                if await self._repair(ledger_id):
                    complete.append(ledger_id)

        async with asyncio.TaskGroup() as group:
            for ledger_id in ledger_ids:
                group.create_task(repair(ledger_id))
        if complete:
            # Fetched entries must be durable before the bookie may answer "no such entry" again.
            await self._checkpoints.settle()
            for ledger_id in complete:
                self._progress.ledgers_in_limbo -= self._storage.engine_of(ledger_id).clear_limbo(ledger_id)

    async def _check_all(self, seen: set[int]) -> None:
        """Check every ledger in the metadata that is not in ``seen``."""
        ledgers = self._ports.ledgers.read_all()
        async with contextlib.aclosing(ledgers):
            async for ledger_id, found in ledgers:
                if ledger_id in seen:
                    continue
                if not isinstance(found, Versioned):
                    self._failures[ledger_id] = Miss(str(found))
                elif self._bookie_id in found.value.bookies():
                    await self._fill(ledger_id, found.value)

    async def _repair(self, ledger_id: int) -> bool:
        """Recover a ledger if its end is open, and fetch missing entries; returns whether its limbo may end.

        A deleted ledger is left to the collector.
        """
        try:
            found = await self._ports.ledgers.read(ledger_id)
            if needs_recovery(found.value, self._bookie_id):
                found = await LedgerRecovery(self._ports, credentials_of(ledger_id, found.value), found).run()
        except LedgerNotFoundError:
            return False
        except LedgerRecoveryError as error:
            doubting = await self._doubting(ledger_id, found.value.last_segment.ensemble)
            advice = f"; {_advice(doubting)}" if is_end_in_doubt(found.value, doubting) else ""
            is_refused = isinstance(error, AnswersMissingError) and error.is_refused
            text = str(error).removeprefix(f"ledger {ledger_id}: ")
            self._failures[ledger_id] = Miss(f"{text}{advice}", is_refused)
            return False
        except BkctlError as error:
            self._failures[ledger_id] = Miss(str(error))
            return False
        return await self._fill(ledger_id, found.value)

    async def _doubting(self, ledger_id: int, bookie_ids: Sequence[str]) -> list[str]:
        """Which of these bookies have the ledger in limbo; bookies that do not answer are not included."""

        async def doubts(bookie_id: str) -> bool:
            try:
                await self._ports.bookies.read_lac(bookie_id, ledger_id)
            except UnknownLedgerStateError:
                return True
            except BookieError:
                return False
            return False

        answers = await asyncio.gather(*map(doubts, bookie_ids))
        return sorted(bookie_id for bookie_id, is_doubting in zip(bookie_ids, answers, strict=True) if is_doubting)

    async def _fill(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        try:
            outcome = await self._refill.run(ledger_id, metadata)
        except BkctlError as error:
            self._failures[ledger_id] = Miss(str(error))
            return False
        self._progress.ledgers_checked += 1
        if not outcome.is_complete:
            self._failures[ledger_id] = outcome.miss
        return outcome.is_complete


def _advice(doubting: Sequence[str]) -> str:
    return (
        "no further round can complete it, because each of these bookies may have lost its copies: "
        f"{', '.join(doubting)}; if you are certain that one of them has lost nothing, see `bkctl storage limbo "
        "end` for that one (bkctl help lost-index)"
    )


def in_batches(ledger_ids: Iterable[int], size: int) -> Iterable[list[int]]:
    """The ids in lists of at most ``size``."""
    remaining = iter(ledger_ids)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
