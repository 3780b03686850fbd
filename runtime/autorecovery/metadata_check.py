"""A check of all ledgers that reads only metadata, as a lane of the auditor. It runs once in its interval.

Its last result is a note, which a successor knows too. A check repeats no work if only storing the result failed. One
that could not read all ledgers stores no time, which other auditors would believe, and is repeated.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import ClassVar, Generic, TypeVar

import msgspec

from bkctl.runtime.autorecovery.check_times import DISABLED, LOOK_AGAIN_S, NOT_YET, CheckTimes, repeat_in_s, wait_s
from bkctl.runtime.autorecovery.lane import Lane, Turn
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.replication.recovery_notes import CheckNote, MetadataCheckNote

NoteT = TypeVar("NoteT", bound=MetadataCheckNote)

logger = logging.getLogger(__name__)

WARNINGS_MAX = 20
"""Ledgers whose metadata cannot be read are reported one by one up to this number."""


class MetadataCheck(abc.ABC, Generic[NoteT]):
    """One of these checks. ``result``: the last one, of this auditor or of one before; None: not known yet."""

    name: ClassVar[str]
    """What is checked, and the name of the lane."""

    def __init__(self, ports: ClientPorts, times: CheckTimes, note: CheckNote[NoteT], nothing: NoteT) -> None:
        """``note``: where results are stored. ``nothing``: what each check begins with."""
        self.result: NoteT | None = None
        self._ports = ports
        self._times = times
        self._note = note
        self._nothing = nothing
        self._found = nothing
        """What the running check has found so far."""
        self._is_stored = True
        self._repeats = 0
        self._repeat_ms = 0
        self.lane = Lane(self.name, self._run, ports.clock, interval_s=times.interval_s)

    @abc.abstractmethod
    async def _check(self, turn: Turn) -> bool:
        """Check all ledgers, and count in ``_found``; False: autorecovery is disabled, perhaps since a moment ago."""

    @abc.abstractmethod
    def _summary(self, result: NoteT, unread: str) -> str:
        """A result in a few words. ``unread``: words about the ledgers that it lacks, to follow their number."""

    async def _run(self, turn: Turn) -> str:
        if not await self._due_in_s():
            clock, began_ns = self._ports.clock, self._ports.clock.monotonic_ns()
            self._found = self._nothing
            if not await self._check(turn):
                self.lane.due_in(LOOK_AGAIN_S)
                return DISABLED
            seconds = (clock.monotonic_ns() - began_ns) / 1e9
            await self._keep(msgspec.structs.replace(self._found, ended_ms=clock.now_ms(), seconds=seconds))
        self.lane.due_in(min(await self._due_in_s(), LOOK_AGAIN_S))
        return self._words()

    def _words(self) -> str:
        if self.result is None:
            return NOT_YET
        count = self.result.unreadable.ledgers
        return self._summary(self.result, f", {count} could not be read" if count else "")

    async def _ledgers(self, turn: Turn) -> AsyncGenerator[tuple[int, LedgerMetadata], None]:
        """All ledgers that can be read. The others are counted, and the first ones reported. Close the iterator."""
        async with aclosing(self._ports.ledgers.read_all()) as ledgers:
            async for ledger_id, found in ledgers:
                turn.beat()
                if not isinstance(found, MetadataFormatError):
                    yield ledger_id, found.value
                    continue
                if self._found.unreadable.ledgers < WARNINGS_MAX:
                    logger.warning("not in the check of %s: %s", self.name, found)
                unreadable = self._found.unreadable.plus(ledger_id)
                self._found = msgspec.structs.replace(self._found, unreadable=unreadable)

    async def _due_in_s(self) -> float:
        """Time until the check is due. One operation, two the first time, more after an error."""
        if self.result is None:
            self.result = await self._note.find()
        if not self._is_stored:
            await self._store()
        last_ms, now_ms = await self._times.last_ms(), self._ports.clock.now_ms()
        return max(wait_s(last_ms, now_ms, self._times.interval_s), (self._repeat_ms - now_ms) / 1000)

    async def _keep(self, result: NoteT) -> None:
        """The check has reached its end."""
        self.result, self._is_stored = result, False
        logger.log(self._level(result), "check of %s finished: %s", self.name, self._words())
        if result.unreadable.ledgers:
            pause_s = repeat_in_s(self._repeats, self._times.interval_s)
            self._repeats, self._repeat_ms = self._repeats + 1, result.ended_ms + round(pause_s * 1000)
        else:
            self._repeats = self._repeat_ms = 0
        await self._store()

    def _level(self, _: NoteT) -> int:
        """How serious a result is, for the log."""
        return logging.INFO

    async def _store(self) -> None:
        assert self.result is not None
        await self._note.put(self.result)
        if not self.result.unreadable.ledgers:
            await self._times.note_end(self.result.ended_ms)
        self._is_stored = True
