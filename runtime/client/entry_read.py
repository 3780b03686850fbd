"""Reads one entry from its replicas. Source: protocol section 7.4."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import (
    BookieError,
    BookieUnavailableError,
    DigestMismatchError,
    EntryDigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.ports import Clock, ReadReply
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import INVALID_ENTRY_ID

K = TypeVar("K")
R = TypeVar("R")


class Replies(Generic[K, R]):
    """Collects the answers to requests; ``outstanding`` counts those not yet returned by ``next``.

    Late answers are dropped silently, so asyncio does not report their errors as unhandled.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrived: deque[tuple[K, R | BaseException]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.outstanding = 0

    def expect(self, key: K, future: asyncio.Future[Any]) -> None:
        """Wait for one more answer, identified by ``key``. The future returns an R; its type is Any because futures are
        invariant and a caller may mix several kinds of answers."""
        self.outstanding += 1
        future.add_done_callback(partial(self._on_arrival, key))

    async def next(self, timeout_s: float | None = None) -> tuple[K, R | BookieError] | None:
        """The next answer, or None after ``timeout_s``. Without ``timeout_s`` the port's own timeout applies."""
        if not self._arrived:
            assert self.outstanding > 0, "there is at least one bookie to ask"
            await self._wait(timeout_s)
            if not self._arrived:
                return None
        key, outcome = self._arrived.popleft()
        self.outstanding -= 1
        if isinstance(outcome, BaseException) and not isinstance(outcome, BookieError):
            raise outcome
        return key, outcome

    async def _wait(self, timeout_s: float | None) -> None:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        timer = None if timeout_s is None else self._clock.call_later(timeout_s, self._wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _on_arrival(self, key: K, future: asyncio.Future[Any]) -> None:
        error = future.exception()  # marks the exception as retrieved
        self._arrived.append((key, future.result() if error is None else error))
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def prevailing_error(first: BkctlError | None, later: BkctlError) -> BkctlError:
    """The more meaningful of two replicas' errors; ``first`` is the earlier one.

    "No such entry" prevails only if all replicas report it; any other error overrides "no connection".
    """
    if first is None or isinstance(first, NoSuchEntryError | NoSuchLedgerError):
        return later
    if isinstance(first, BookieUnavailableError) and not isinstance(later, NoSuchEntryError | NoSuchLedgerError):
        return later
    return first


class EntryReader:
    """Reads single entries of one ledger, trying the replicas in turn.

    Asks the next replica if one failed and no request is outstanding, or after the timeout for speculative requests.
    The first copy with a correct digest wins. ``last_add_confirmed`` is the highest that any answer reported.
    """

    def __init__(
        self,
        ports: ClientPorts,
        credentials: LedgerCredentials,
        decode: Callable[[int, bytes], DecodedEntry] | None = None,
    ) -> None:
        """``decode``: verifies a copy; None: checks only the digest."""
        self._ports = ports
        self._credentials = credentials
        self._decode = decode or credentials.codec.decode
        self.last_add_confirmed = INVALID_ENTRY_ID

    async def read(self, metadata: LedgerMetadata, entry_id: int) -> DecodedEntry:
        """Read the entry from its write set according to ``metadata``.

        If every replica failed, raises the BookieError or DigestMismatchError that prevails.
        """
        ensemble = metadata.segment_of(entry_id).ensemble
        replicas = [ensemble[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]
        not_asked = deque(self._ports.suspects.last(replicas))
        replies = Replies[str, ReadReply](self._ports.clock)
        failures: list[BkctlError] = []
        asked = self._ask(replies, not_asked, entry_id)
        while replies.outstanding:
            answer = await replies.next(self._ports.config.speculative_read_timeout_s if not_asked else None)
            if answer is None:
                self._ports.suspects.add(asked)
                asked = self._ask(replies, not_asked, entry_id)
                continue
            bookie_id, outcome = answer
            result = self._judge(bookie_id, entry_id, outcome)
            if isinstance(result, DecodedEntry):
                return result
            failures.append(result)
            if not replies.outstanding and not_asked:
                asked = self._ask(replies, not_asked, entry_id)
        raise self._summary(entry_id, failures)

    def _ask(self, replies: Replies[str, ReadReply], not_asked: deque[str], entry_id: int) -> str:
        bookie_id = not_asked.popleft()
        replies.expect(bookie_id, self._ports.bookies.read(bookie_id, self._credentials.ledger_id, entry_id))
        return bookie_id

    def _summary(self, entry_id: int, failures: list[BkctlError]) -> BkctlError:
        """The error that prevails. For damage, adds the other replicas' errors: one may just be unreachable."""
        error: BkctlError | None = None
        for failure in failures:
            error = prevailing_error(error, failure)
        assert error is not None, "a write set has at least one member"
        if not isinstance(error, DigestMismatchError) or len(failures) == 1:
            return error
        sentences = [str(failure).removeprefix(f"ledger {error.ledger_id}: ") for failure in failures]
        each = "; ".join(sentence.removeprefix(f"entry {entry_id}: ") for sentence in sentences)
        return DigestMismatchError(error.ledger_id, f"entry {entry_id}: no bookie has a good copy: {each}")

    def _judge(self, bookie_id: str, entry_id: int, outcome: ReadReply | BkctlError) -> DecodedEntry | BkctlError:
        if not isinstance(outcome, ReadReply):
            if not isinstance(outcome, NoSuchEntryError | NoSuchLedgerError):
                self._ports.suspects.add(bookie_id)
            return outcome
        try:
            entry = self._decode(entry_id, outcome.body)
        except EntryDigestError as damage:
            return damaged_copy(self._credentials.ledger_id, entry_id, bookie_id, damage)
        told = entry.credible_last_add_confirmed
        if outcome.max_last_add_confirmed is not None:
            told = max(told, outcome.max_last_add_confirmed)
        self.last_add_confirmed = max(self.last_add_confirmed, told)
        return entry


def damaged_copy(ledger_id: int, entry_id: int, bookie_id: str, damage: Exception) -> DigestMismatchError:
    """The error for a copy with a wrong digest: it proves nothing, unlike "no such entry"."""
    name = "last entry" if entry_id == INVALID_ENTRY_ID else f"entry {entry_id}"
    return DigestMismatchError(ledger_id, f"{name}: the copy on bookie {bookie_id} is damaged ({damage})")
