"""Waits for the next entry of a ledger that is written: long polls and a metadata watch. Source: protocol section 7.3.

A bookie has at most one request of a tail. If every bookie has every entry, one is polled, and another only if that has
not answered for a while or fails. If entries are striped, all are polled, because the add that confirms an entry may go
to any of them. Followers begin with different bookies.
"""

from __future__ import annotations

import asyncio
import dataclasses
from types import TracebackType
from typing import Self

from bkctl.runtime.client.entry_read import Replies
from bkctl.runtime.client.last_entry import reported_lac
from bkctl.runtime.client.metadata_update import LocalCopy
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import (
    ClientClosedError,
    EntryDigestError,
    LedgerNotFoundError,
    LedgerReadError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.store import Versioned, Watch
from bkctl.runtime.ports import LacReply, PollReply
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.storage.errors import BkctlError

OUTAGE_S = 60.0
"""How long all bookies of the last ensemble may fail before following fails."""

_POLL_SHARE = 0.8
"""Time of a long poll, as a share of the time-out of reads, which applies to it too."""
_AT_ONCE_SHARE = 0.5
"""A bookie that answers without progress in less than this share of that time does not wait."""
_NEXT_BOOKIE_S = 1.5
"""When the next bookie is polled if the first has not answered."""
_PAUSE_FIRST_S = 0.01
_PAUSE_MAX_S = 0.5
_METADATA = ""
"""Key of the reply that stands for a change of the metadata."""


@dataclasses.dataclass
class _Polled:
    """What is known about one bookie of the ensemble."""

    previous_lac: int = -1
    is_asked: bool = False
    asked_ns: int = 0
    is_refusing: bool = False
    """It does not wait: its last add confirmed is read instead, with a growing pause."""
    due_ns: int = 0
    pause_s: float = _PAUSE_FIRST_S
    failing_since_ns: int | None = None


class LedgerTail:
    """The end of one open ledger. A context manager: it has a watch on the metadata.

    Requests that are outstanding at its end are answered or expire; no task waits for them.
    """

    def __init__(
        self,
        ports: ClientPorts,
        credentials: LedgerCredentials,
        copy: LocalCopy[LedgerMetadata],
        last_add_confirmed: int,
    ) -> None:
        self.last_add_confirmed = last_add_confirmed
        self._ports = ports
        self._credentials = credentials
        self._copy = copy
        self._replies = Replies[str, PollReply | LacReply](ports.clock)
        self._poll_s = _POLL_SHARE * ports.config.read_timeout_s
        self._polled: dict[str, _Polled] = {}
        self._order: list[str] = []
        self._failure: BkctlError | None = None
        self._changed: asyncio.Future[None] | None = None
        self._watch: Watch | None = None

    def __enter__(self) -> Self:
        self._expect_change()
        self._watch = self._ports.ledgers.watch(self._credentials.ledger_id, self._on_metadata)
        return self

    def __exit__(
        self, _class: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        assert self._watch is not None
        self._watch.cancel()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def progress(self, next_id: int) -> DecodedEntry | None:
        """Wait until entry ``next_id`` is confirmed or the ledger is closed; returns the entry if an answer had it.

        LedgerNotFoundError, MetadataError, LedgerReadError.
        """
        began_ns = self._ports.clock.monotonic_ns()
        while True:
            if self._failure is not None:
                raise self._failure
            if self._copy.value.is_closed or self.last_add_confirmed >= next_id:
                return None
            pause_s = self._ask_due(next_id, began_ns)
            answer = await self._replies.next(pause_s)
            if answer is None:
                continue
            bookie_id, outcome = answer
            if bookie_id == _METADATA:
                self._expect_change()
                continue
            entry = self._judge(bookie_id, outcome)
            if entry is not None and entry.entry_id == next_id <= self.last_add_confirmed:
                return entry

    # ---- metadata --------------------------------------------------------------------------------------------------

    def _expect_change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        self._replies.expect(_METADATA, self._changed)

    def _on_metadata(self, found: Versioned[LedgerMetadata] | MetadataError | LedgerNotFoundError) -> None:
        if isinstance(found, Versioned):
            if not self._copy.install(found):
                return
        else:
            self._failure = found
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # ---- bookies ---------------------------------------------------------------------------------------------------

    def _ask_due(self, next_id: int, began_ns: int) -> float | None:
        """Send the requests that are due; returns the seconds until the next one is, None if all wait for answers."""
        metadata = self._copy.value
        self._note_ensemble(metadata.last_segment.ensemble)
        is_striped = metadata.ensemble_size > metadata.write_quorum_size
        now_ns = self._ports.clock.monotonic_ns()
        start_ns = 0
        next_ns: int | None = None
        for bookie_id in self._order:
            polled = self._polled[bookie_id]
            due_ns = max(polled.due_ns, start_ns)
            if not polled.is_asked and due_ns <= now_ns:
                self._ask(bookie_id, polled, next_id - 1)
            elif not polled.is_asked:
                next_ns = due_ns if next_ns is None else min(next_ns, due_ns)
            if not is_striped and polled.failing_since_ns is None:
                start_ns = max(start_ns, began_ns) + int(_NEXT_BOOKIE_S * 1e9)
        return None if next_ns is None else max(0.0, (next_ns - now_ns) / 1e9)

    def _note_ensemble(self, ensemble: tuple[str, ...]) -> None:
        if self._order and set(self._order) == set(ensemble):
            return
        order = [bookie_id for bookie_id in self._order if bookie_id in ensemble]
        added = [bookie_id for bookie_id in ensemble if bookie_id not in order]
        self._ports.clock.random.shuffle(added)
        self._order = self._ports.suspects.last([*order, *added])
        self._polled = {bookie_id: self._polled.get(bookie_id) or _Polled() for bookie_id in self._order}

    def _ask(self, bookie_id: str, polled: _Polled, previous_lac: int) -> None:
        polled.is_asked, polled.previous_lac = True, previous_lac
        polled.asked_ns = self._ports.clock.monotonic_ns()
        ledger_id, bookies = self._credentials.ledger_id, self._ports.bookies
        if polled.is_refusing:
            self._replies.expect(bookie_id, bookies.read_lac(bookie_id, ledger_id))
        else:
            self._replies.expect(bookie_id, bookies.poll(bookie_id, ledger_id, previous_lac, self._poll_s))

    def _judge(self, bookie_id: str, outcome: PollReply | LacReply | BkctlError) -> DecodedEntry | None:
        """Learn from an answer, and decide when this bookie is asked again; returns the entry in it, if any."""
        polled = self._polled.get(bookie_id, _Polled())  # a former member's answer counts, and nothing follows from it
        polled.is_asked = False
        was_refusing = polled.is_refusing
        lac, entry, error = self._told(outcome)
        self.last_add_confirmed = max(self.last_add_confirmed, lac)
        now_ns = self._ports.clock.monotonic_ns()
        if error is None:
            polled.failing_since_ns = None
        elif polled.failing_since_ns is None:
            polled.failing_since_ns = now_ns
        if lac > polled.previous_lac:
            polled.is_refusing, polled.due_ns, polled.pause_s = False, 0, _PAUSE_FIRST_S
            return entry
        took_s = (now_ns - polled.asked_ns) / 1e9
        if error is None and not was_refusing and took_s >= _AT_ONCE_SHARE * self._poll_s:
            polled.due_ns, polled.pause_s = 0, _PAUSE_FIRST_S
            return None
        # It answered at once: a look at its last add confirmed and a long poll in turn, with a growing pause.
        polled.is_refusing = not was_refusing
        polled.due_ns = now_ns + int(polled.pause_s * 1e9)
        polled.pause_s = min(2 * polled.pause_s, _PAUSE_MAX_S)
        if error is not None:
            self._ports.suspects.add(bookie_id)
            self._require_one(now_ns, error)
        return None

    def _told(self, outcome: PollReply | LacReply | BkctlError) -> tuple[int, DecodedEntry | None, BkctlError | None]:
        """The last add confirmed that an answer proves, its entry, and its error; a bookie that has nothing yet has
        not failed."""
        codec = self._credentials.codec
        try:
            if isinstance(outcome, LacReply):
                return reported_lac(outcome, codec), None, None
            if isinstance(outcome, PollReply):
                told = -1 if outcome.max_last_add_confirmed is None else outcome.max_last_add_confirmed
                if outcome.body is None:
                    return told, None, None
                entry = codec.decode(None, outcome.body)
                return max(told, entry.credible_last_add_confirmed), entry, None
        except EntryDigestError as damage:
            return -1, None, LedgerReadError(self._credentials.ledger_id, f"the answer is damaged: {damage}")
        if isinstance(outcome, ClientClosedError):
            raise LedgerReadError(self._credentials.ledger_id, "the client was closed") from outcome
        if isinstance(outcome, NoSuchEntryError | NoSuchLedgerError):
            return -1, None, None
        return -1, None, outcome

    def _require_one(self, now_ns: int, error: BkctlError) -> None:
        """LedgerReadError if all bookies have failed for long."""
        since = [polled.failing_since_ns for polled in self._polled.values()]
        if all(each is not None and now_ns - each > OUTAGE_S * 1e9 for each in since):
            raise LedgerReadError(
                self._credentials.ledger_id, f"no bookie of its last ensemble answers: {error}"
            ) from error
