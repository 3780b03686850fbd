"""The writer of a log of ledgers: take-over, appends, rolling.

A writer enters its name into the log's node first. It then recovers the last ledger, which fences the former writer and
fixes the end, and creates a ledger of its own. Each of its changes of the node requires that its name is still there.
The node lists a ledger from its creation on: both are one transaction. So a crash leaves no ledger that no log lists.

The next writer recovers the ledger of one that crashed. If nothing was written to it, it is replaced and deleted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Self

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.errors import (
    BadVersionError,
    ConflictError,
    LedgerError,
    LedgerNotFoundError,
    LogNotFoundError,
    LogTakenOverError,
    MetadataError,
    NoNodeError,
    RefusedError,
    TooManyPendingAddsError,
)
from bkctl.runtime.ledger_log.deletion import delete_empty
from bkctl.runtime.ledger_log.reader import lost_ledger
from bkctl.runtime.metadata.ledger_logs.format import (
    LOG_ID_KEY,
    NAME_KEY,
    LedgerLog,
    LogLedger,
    LogWriterClaim,
    with_ledger,
)
from bkctl.runtime.metadata.ledger_logs.nodes import ATTEMPTS_MAX, LogNodes, always_changed
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.ports import Clock

logger = logging.getLogger(__name__)


_LAC_INTERVAL_S = 0.1
"""How late a follower may see the last entry before the writer pauses."""


class LogPosition(msgspec.Struct, frozen=True, gc=False):
    """Where an entry is: its position in the log, and its place in a ledger."""

    position: int
    ledger_id: int
    entry_id: int


class LogWriter:
    """The only writer of a log, until another process opens the log for writing.

    If an append succeeded, its entry stays in the log until it is trimmed. If it failed, the entry is in doubt. Use it
    with ``async with``, or call ``close``.
    """

    def __init__(self, client: LedgerClient, nodes: LogNodes, clock: Clock, name: str, claim: LogWriterClaim) -> None:
        self.name = name
        self.former: LogWriterClaim | None = None
        """The writer that was entered before this one."""
        self._client = client
        self._nodes = nodes
        self._clock = clock
        self._claim = claim
        self._turn = asyncio.Lock()
        self._log: LedgerLog
        self._ledger: LedgerWriter
        self._listed: LogLedger
        self._newest: asyncio.Future[int] | None = None

    @classmethod
    async def open(cls, client: LedgerClient, nodes: LogNodes, clock: Clock, name: str, writer_name: str) -> Self:
        """Take the log over from any former writer. ``writer_name``: this process, as other writers report it.

        LogNotFoundError; RefusedError if the log is being deleted; LogTakenOverError if another process takes it over
        meanwhile; errors of recovering and of creating a ledger, after which the log has no writer.
        """
        claim = LogWriterClaim(f"{clock.random.getrandbits(64):016x}", writer_name, clock.now_ms())
        writer = cls(client, nodes, clock, name, claim)
        found = await nodes.change(name, writer._enter)
        await writer._start_ledger(found)
        return writer

    def _enter(self, log: LedgerLog) -> LedgerLog | None:
        if log.is_deleted:
            raise RefusedError(f"log {self.name} is being deleted: bkctl log delete {self.name} finishes that")
        if log.writer is not None and log.writer.token == self._claim.token:
            return None
        self.former = log.writer
        return msgspec.structs.replace(log, writer=self._claim)

    async def _start_ledger(self, found: Versioned[LedgerLog]) -> None:
        """Close the last ledger, if it is not, and create a new one, which the log lists from its creation on."""
        first_position = await self._end_of(found.value)
        for _ in range(ATTEMPTS_MAX):
            self._require_own(found.value)
            try:
                await self._create_listed(found, first_position)
                break
            except (BadVersionError, NoNodeError) as error:
                if error.path != self._nodes.path(self.name):
                    raise
            found = await self._nodes.read(self.name)
        else:
            raise always_changed(self.name)
        if self._log.released:
            try:
                await delete_empty(self._client, self._nodes, self.name)
            except MetadataError as error:
                logger.warning("log %s: released ledgers are not deleted yet: %s", self.name, error)

    async def _create_listed(self, found: Versioned[LedgerLog], first_position: int) -> None:
        log, created_ms = found.value, self._clock.now_ms()

        def after(ledger_id: int) -> LedgerLog:
            return with_ledger(log, LogLedger(ledger_id, first_position, created_ms))

        self._ledger = await self._client.create(
            ensemble_size=log.ensemble_size,
            write_quorum_size=log.write_quorum_size,
            ack_quorum_size=log.ack_quorum_size,
            custom_metadata={
                "application": b"bkctl",
                NAME_KEY: self.name.encode(),
                LOG_ID_KEY: log.log_id.encode(),
            },
            lac_interval_s=_LAC_INTERVAL_S,
            together_with=lambda ledger_id: self._nodes.replacement(self.name, found, after(ledger_id)),
        )
        self._log = after(self._ledger.ledger_id)
        self._listed = self._log.ledgers[-1]

    async def _end_of(self, log: LedgerLog) -> int:
        """The position after the last entry, which is final afterwards."""
        if not log.ledgers:
            return 0
        last = log.ledgers[-1]
        try:
            reader = await self._client.open(last.ledger_id, recover=True)
        except LedgerNotFoundError as error:
            raise await self._reason(lost_ledger(self.name, log, error)) from error
        return last.first_position + reader.last_add_confirmed + 1

    def _require_own(self, log: LedgerLog) -> None:
        if log.writer is None or log.writer.token != self._claim.token:
            raise LogTakenOverError(self.name, self._claim.name, None if log.writer is None else log.writer.name)

    async def _reason(self, error: LedgerError | ConflictError) -> Exception:
        """Why a ledger cannot be written any longer: another writer, if there is one, or ``error``."""
        try:
            self._require_own((await self._nodes.read(self.name)).value)
        except (LogTakenOverError, LogNotFoundError) as reason:
            return reason
        except MetadataError:
            return error
        return error

    async def append(self, payload: bytes) -> LogPosition:
        """Append one entry and wait until it is acknowledged. Errors as for ``submit``."""
        return await (await self.submit(payload))

    async def submit(self, payload: bytes) -> asyncio.Task[LogPosition]:
        """Send one entry; the task returns its position when it is acknowledged, in order.

        Waits while too many entries are not acknowledged, and while the log rolls to a new ledger. Nothing was sent if
        this raises. LogTakenOverError when another process writes the log now: it says which. EntryTooLargeError,
        LogNotFoundError; errors of the ledger, after which the log must be opened again.
        """
        async with self._turn:
            if self._is_full():
                await self._roll()
            while True:
                try:
                    sent = self._ledger.append_nowait(payload)
                    break
                except TooManyPendingAddsError:
                    await self._drained()
                except LedgerError as error:
                    raise await self._reason(error) from error
            self._newest = sent
            return asyncio.get_running_loop().create_task(self._acknowledged(sent, self._listed))

    async def _acknowledged(self, sent: asyncio.Future[int], listed: LogLedger) -> LogPosition:
        try:
            entry_id = await sent
        except LedgerError as error:
            raise await self._reason(error) from error
        return LogPosition(listed.first_position + entry_id, listed.ledger_id, entry_id)

    async def _drained(self) -> None:
        """Wait until all entries that were sent are acknowledged, or failed."""
        if self._newest is not None:
            await asyncio.wait([self._newest])

    def _is_full(self) -> bool:
        if self._ledger.length == 0:
            return False
        age_ms = self._clock.now_ms() - self._listed.created_ms
        return self._ledger.length >= self._log.roll_bytes or age_ms >= self._log.roll_s * 1000

    async def _roll(self) -> None:
        await self._drained()
        try:
            await self._ledger.close()
        except (LedgerError, ConflictError) as error:
            raise await self._reason(error) from error
        found = await self._nodes.read(self.name)
        self._require_own(found.value)
        await self._start_ledger(found)

    async def close(self) -> None:
        """Wait for all acknowledgements and close the last ledger. LogTakenOverError as for ``submit``."""
        await self._drained()
        try:
            await self._ledger.close()
        except (LedgerError, ConflictError) as error:
            raise await self._reason(error) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _class: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            await self.close()
        else:
            self._ledger.abandon()
