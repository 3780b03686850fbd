"""Reading single stored copies and saying what each is worth.

Source: replication section 3, the classification rule: OK and a good digest is present; OK and a bad one is corrupt;
"no such entry" and "no such ledger" are missing; everything else is unknown and never counts as missing (bk#1197: one
time-out marked thousands of healthy ledgers). Of the unknown, silence is asked again with growing pauses while the
bookie is registered; an error in answer, as for a damaged record in an entry log, is told apart: that bookie is up.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence

import msgspec

from runtime.client.ports import LedgerCredentials
from runtime.errors import (
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
    EntryDigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
    TooManyRequestsError,
)
from runtime.ledger.metadata import LedgerMetadata
from runtime.ports import Bookies, Clock, ReadReply
from runtime.protocol.entry_body import DecodedEntry
from runtime.replication.byte_window import ByteWindow
from runtime.replication.config import ReplicationConfig

ENTRY_BYTES_ASSUMED = 64 * 1024
"""Size of an entry as long as nothing is known of the ledger; the true size takes its place when the entry arrives."""

NO_SERVICE = (BookieTimeoutError, BookieUnavailableError, TooManyRequestsError)
"""Says something about the bookie at this moment and nothing about its copy: worth another attempt."""


class CopyState(enum.Enum):
    """What one bookie holds of one entry."""

    PRESENT = "present"
    MISSING = "missing"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"
    """No answer: no connection, none in time, too busy. The copy may be all right; it is the bookie that is not."""
    FAILED = "failed"
    """The bookie answers, but with an error instead of the entry: damaged on its disk, possibly lost, refused."""
    DIFFERENT = "different"
    """Its digest holds, but payload or length are not those of the other copies."""


class Copy(msgspec.Struct, frozen=True):
    """One bookie's copy of one entry. ``body`` and ``entry`` are set when it is present, ``reason`` when it is not."""

    bookie_id: str
    state: CopyState
    reason: str = ""
    body: bytes = b""
    entry: DecodedEntry | None = None


def entry_bytes_estimate(metadata: LedgerMetadata) -> int:
    """Average body size of the ledger's entries, as far as the metadata tells; never negative, whatever that says."""
    if metadata.is_closed and metadata.last_entry_id >= 0:
        return max(0, metadata.length) // (metadata.last_entry_id + 1) + 64
    return ENTRY_BYTES_ASSUMED


class CopyReader:
    """Reads copies for all ledgers of a run.

    A bookie that stayed silent through all attempts is from then on asked for one entry at a time, once, until it
    answers again; meanwhile its other copies are unreachable without a request. So a dead bookie that is still
    registered costs its back-off once, and neither that nor a time-out per entry.
    """

    def __init__(
        self,
        bookies: Bookies,
        clock: Clock,
        window: ByteWindow,
        config: ReplicationConfig,
        is_registered: Callable[[str], bool],
    ) -> None:
        self._bookies = bookies
        self._clock = clock
        self._window = window
        self._config = config
        self._is_registered = is_registered
        self._silent: set[str] = set()
        self._probed: set[str] = set()
        """Silent bookies that a request is under way to, to see whether they answer again."""

    async def read_all(self, bookie_ids: Sequence[str], credentials: LedgerCredentials, entry_id: int) -> list[Copy]:
        """The copies of one entry on these bookies, asked all at once, in the order of ``bookie_ids``."""
        return await asyncio.gather(*(self.read(bookie_id, credentials, entry_id) for bookie_id in bookie_ids))

    async def read(
        self, bookie_id: str, credentials: LedgerCredentials, entry_id: int, *, attempts_max: int | None = None
    ) -> Copy:
        """The copy of one entry on one bookie. A bookie that is not registered is not asked (replication section 3).

        ``attempts_max`` below the configured one is for a caller that has other bookies to ask.
        """
        attempts = self._config.attempts_max if attempts_max is None else attempts_max
        if not self._is_registered(bookie_id):
            return Copy(bookie_id, CopyState.UNREACHABLE, "not registered")
        if bookie_id not in self._silent:
            return await self._ask(bookie_id, credentials, entry_id, attempts)
        if bookie_id in self._probed:
            return Copy(bookie_id, CopyState.UNREACHABLE, "it does not answer")
        self._probed.add(bookie_id)
        try:
            return await self._ask(bookie_id, credentials, entry_id, attempts)
        finally:
            self._probed.discard(bookie_id)

    async def _ask(self, bookie_id: str, credentials: LedgerCredentials, entry_id: int, attempts: int) -> Copy:
        attempt = 0
        while True:
            attempt += 1
            try:
                reply = await self._bookies.read(bookie_id, credentials.ledger_id, entry_id)
            except (NoSuchEntryError, NoSuchLedgerError) as error:
                self._silent.discard(bookie_id)
                return Copy(bookie_id, CopyState.MISSING, _reason(error))
            except BookieError as error:
                if not isinstance(error, NO_SERVICE):
                    self._silent.discard(bookie_id)
                    return Copy(bookie_id, CopyState.FAILED, f"it answered: {_reason(error)}")
                if not self._is_worth_another(error, attempt, attempts):
                    return Copy(bookie_id, CopyState.UNREACHABLE, _reason(error))
            else:
                self._silent.discard(bookie_id)
                self._window.grow()
                return _verified(bookie_id, credentials, entry_id, reply)
            await self._clock.sleep(pause_s(attempt, self._config, self._clock))

    def _is_worth_another(self, error: BookieError, attempt: int, attempts_max: int) -> bool:
        if isinstance(error, TooManyRequestsError):
            self._window.shrink()
            return attempt < attempts_max
        if attempt >= self._config.attempts_max:
            self._silent.add(error.bookie_id)
        return attempt < attempts_max and error.bookie_id not in self._silent


def _verified(bookie_id: str, credentials: LedgerCredentials, entry_id: int, reply: ReadReply) -> Copy:
    try:
        entry = credentials.codec.decode(entry_id, reply.body)
    except EntryDigestError as error:
        return Copy(bookie_id, CopyState.CORRUPT, str(error))
    return Copy(bookie_id, CopyState.PRESENT, body=reply.body, entry=entry)


def _reason(error: BookieError) -> str:
    return str(error).removeprefix(f"bookie {error.bookie_id}: ")


def pause_s(attempt: int, config: ReplicationConfig, clock: Clock) -> float:
    """Seconds to wait after the ``attempt``-th failure (from 1): growing, and never the same for two callers."""
    longest_s = min(config.backoff_max_s, config.backoff_first_s * 2.0 ** (attempt - 1))
    return longest_s * (0.5 + clock.random.random() / 2)
