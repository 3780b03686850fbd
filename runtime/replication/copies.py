"""Reading single stored copies and saying what each is worth.

Source: replication section 3, the classification rule: OK and a good digest is present; OK and a bad one is corrupt;
"no such entry" and "no such ledger" are missing; everything else is unknown and never counts as missing (bk#1197: one
time-out marked thousands of healthy ledgers). A registered bookie that does not answer is asked again. An answer with
an error, as for a damaged record in an entry log, is a state of its own: that bookie is up.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence

import msgspec

from runtime.client.metadata_update import back_off_s
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

SILENCE = (BookieTimeoutError, BookieUnavailableError)
"""No answer at all: it says nothing about the copy, and is worth another attempt."""

UNAVAILABLE_MAX_NS = 10 * 10**9
"""A bookie that accepts no connection is not asked again after this time; one attempt to connect may take as long."""


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

    When a registered bookie gives no answer, one read asks it again for all reads that wait for it. If it stays silent,
    its copies are unreachable without a request until ``silence_pause_s`` has passed; then one read asks once more. A
    frozen bookie thus costs two time-outs, whatever the number of entries.
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
        self._silent_until_ns: dict[str, int] = {}
        """Silent bookies, and when each may be asked again."""
        self._asking_again: dict[str, asyncio.Future[None]] = {}
        """Bookies that did not answer and are being asked again; the future ends when the outcome is known."""

    def note_outage(self) -> None:
        """The metadata store was away, and with it the addresses of bookies: their silence then says nothing."""
        self._silent_until_ns.clear()

    async def read_all(self, bookie_ids: Sequence[str], credentials: LedgerCredentials, entry_id: int) -> list[Copy]:
        """The copies of one entry on these bookies, asked all at once, in the order of ``bookie_ids``."""
        return await asyncio.gather(*(self.read(bookie_id, credentials, entry_id) for bookie_id in bookie_ids))

    async def read(
        self, bookie_id: str, credentials: LedgerCredentials, entry_id: int, *, attempts_max: int | None = None
    ) -> Copy:
        """The copy of one entry on one bookie. A bookie that is not registered is not asked (replication section 3).

        ``attempts_max`` below the configured one is for a caller that has other bookies to ask: with 1 it never waits
        for a bookie that did not answer another read.
        """
        attempts = self._config.attempts_max if attempts_max is None else attempts_max
        if not self._is_registered(bookie_id):
            return Copy(bookie_id, CopyState.UNREACHABLE, "not registered")
        if bookie_id in self._asking_again and attempts > 1:
            await self._wait_for_outcome(bookie_id)
        if bookie_id in self._asking_again or self._is_silent(bookie_id):
            return Copy(bookie_id, CopyState.UNREACHABLE, "it does not respond")
        return await self._ask(bookie_id, credentials, entry_id, attempts)

    async def _ask(self, bookie_id: str, credentials: LedgerCredentials, entry_id: int, attempts: int) -> Copy:
        attempt = 0
        while True:
            attempt += 1
            try:
                reply = await self._bookies.read(bookie_id, credentials.ledger_id, entry_id)
            except SILENCE as error:
                is_last = attempt >= attempts or bookie_id in self._silent_until_ns
                if is_last or not await self._answers_again(bookie_id, credentials.ledger_id, entry_id):
                    return Copy(bookie_id, CopyState.UNREACHABLE, _reason(error))
                continue
            except BookieError as error:
                self._silent_until_ns.pop(bookie_id, None)
                if isinstance(error, (NoSuchEntryError, NoSuchLedgerError)):
                    return Copy(bookie_id, CopyState.MISSING, _reason(error))
                if not isinstance(error, TooManyRequestsError):
                    return Copy(bookie_id, CopyState.FAILED, f"it answered: {_reason(error)}")
                self._window.shrink()
                if attempt >= attempts:
                    return Copy(bookie_id, CopyState.UNREACHABLE, _reason(error))
            else:
                self._silent_until_ns.pop(bookie_id, None)
                self._window.grow()
                return _verified(bookie_id, credentials, entry_id, reply)
            await self._clock.sleep(pause_s(attempt, self._config, self._clock))

    def _is_silent(self, bookie_id: str) -> bool:
        """Whether the bookie must not be asked now; after the pause this is False for one read, which asks it."""
        until_ns = self._silent_until_ns.get(bookie_id)
        if until_ns is None:
            return False
        if self._clock.monotonic_ns() >= until_ns:
            self._note_silence(bookie_id)
            return False
        return True

    def _note_silence(self, bookie_id: str) -> None:
        self._silent_until_ns[bookie_id] = self._clock.monotonic_ns() + int(self._config.silence_pause_s * 1e9)

    async def _answers_again(self, bookie_id: str, ledger_id: int, entry_id: int) -> bool:
        """Whether a bookie that did not answer does so now: the first caller asks, the others wait for the outcome."""
        if bookie_id in self._asking_again:
            await self._wait_for_outcome(bookie_id)
            return bookie_id not in self._silent_until_ns
        outcome = self._asking_again[bookie_id] = asyncio.get_running_loop().create_future()
        try:
            answers = await self._ask_again(bookie_id, ledger_id, entry_id)
            if not answers:
                self._note_silence(bookie_id)
            return answers
        finally:
            del self._asking_again[bookie_id]
            outcome.set_result(None)

    async def _ask_again(self, bookie_id: str, ledger_id: int, entry_id: int) -> bool:
        """Ask until there is an answer of any kind. The second time-out is enough to give up. A refused connection gets
        more attempts, because the bookie may be starting."""
        began_ns = self._clock.monotonic_ns()
        for attempt in range(1, self._config.attempts_max):
            await self._clock.sleep(pause_s(attempt, self._config, self._clock))
            try:
                await self._bookies.read(bookie_id, ledger_id, entry_id)
            except BookieUnavailableError:
                if self._clock.monotonic_ns() - began_ns >= UNAVAILABLE_MAX_NS:
                    return False
            except BookieTimeoutError:
                return False
            except BookieError:
                return True
            else:
                return True
        return False

    async def _wait_for_outcome(self, bookie_id: str) -> None:
        # Not the future itself: to cancel one of several that await it would cancel it for all.
        await asyncio.wait([self._asking_again[bookie_id]])


def _verified(bookie_id: str, credentials: LedgerCredentials, entry_id: int, reply: ReadReply) -> Copy:
    try:
        entry = credentials.codec.decode(entry_id, reply.body)
    except EntryDigestError as error:
        return Copy(bookie_id, CopyState.CORRUPT, str(error))
    return Copy(bookie_id, CopyState.PRESENT, body=reply.body, entry=entry)


def _reason(error: BookieError) -> str:
    return str(error).removeprefix(f"bookie {error.bookie_id}: ")


def pause_s(attempt: int, config: ReplicationConfig, clock: Clock) -> float:
    """Seconds to wait after the ``attempt``-th failure (from 1)."""
    return back_off_s(attempt - 1, config.backoff_first_s, config.backoff_max_s, clock)
