"""Writers that go on whatever happens to one bookie, and the check of what each bookie has acknowledged."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Self

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.ports import AddDone, BodyOrStatus
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError

WRITERS = 4
BATCH = 10
BATCH_PAUSE_S = 0.02
READ_AT_ONCE = 50
CONFIG = ClientConfig(add_timeout_s=3.0, read_timeout_s=30.0)
SIZES = ((3, 3, 2), (3, 2, 2), (2, 2, 2))
"""Ensemble, write quorum, ack quorum: in turn, and the last one while there are too few bookies for the others."""
DENIALS = frozenset({Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER})


class NotingPool(BookiePool):
    """Notes which bookie acknowledged which entry of which ledger."""

    acknowledged: defaultdict[str, defaultdict[int, set[int]]]

    def add(
        self,
        bookie_id: str,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        done: AddDone,
        *,
        is_recovery_add: bool = False,
        is_high_priority: bool = False,
        is_deferred_sync: bool = False,
    ) -> None:
        def note(status: Status) -> None:
            if status is Status.OK:
                self.acknowledged[bookie_id][ledger_id].add(entry_id)
            done(status)

        super().add(
            *(bookie_id, ledger_id, entry_id, master_key, body, note),
            is_recovery_add=is_recovery_add,
            is_high_priority=is_high_priority,
            is_deferred_sync=is_deferred_sync,
        )


@dataclasses.dataclass
class Reads:
    """What bookies answered when they were asked for every entry that they have acknowledged."""

    right: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    """Denied, or answered with other bytes."""
    errors: Counter[Status] = dataclasses.field(default_factory=Counter)


class Load:
    """Writes until ``stop``. Use as an async context manager."""

    def __init__(self, metadata_uri: str) -> None:
        self._metadata_uri = metadata_uri
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        self._confirmed: dict[int, int] = {}
        """Ledger: its highest entry id that a writer has confirmed."""
        self.errors: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        client = await LedgerClient.connect(self._metadata_uri, config=CONFIG)
        self._pool = NotingPool(client.ports.registrations.address, CONFIG, LoopClock())
        self._pool.acknowledged = defaultdict(lambda: defaultdict(set))
        self.client = LedgerClient(dataclasses.replace(client.ports, bookies=self._pool), client.store)
        self._tasks = [asyncio.create_task(self._write_on(number)) for number in range(WRITERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self.client.close()

    async def stop(self) -> None:
        """All writers have ended, as if they were killed."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    @property
    def confirmed(self) -> int:
        """Entries that writers have reported as acknowledged."""
        return sum(last + 1 for last in self._confirmed.values())

    def acknowledged_by(self, bookie_id: str) -> int:
        return sum(map(len, self._pool.acknowledged[bookie_id].values()))

    async def _write_on(self, number: int) -> None:
        turn = number
        while not self._is_over:
            try:
                await self._write_ledger(*SIZES[turn % len(SIZES)])
            except BkctlError as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.1)
            turn = len(SIZES) - 1 if turn % len(SIZES) < len(SIZES) - 1 else number

    async def _write_ledger(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
        writer = await self.client.create(
            ensemble_size=ensemble, write_quorum_size=write_quorum, ack_quorum_size=ack_quorum
        )
        next_id = 0
        try:
            while not self._is_over:
                ids = range(next_id, next_id + BATCH)
                adds = [writer.append_nowait(payload(writer.ledger_id, entry_id)) for entry_id in ids]
                next_id += BATCH
                for answer in await asyncio.gather(*adds, return_exceptions=True):
                    if isinstance(answer, BaseException):
                        raise answer
                    self._confirmed[writer.ledger_id] = answer
                await asyncio.sleep(BATCH_PAUSE_S)
        finally:
            writer.abandon()

    async def read_from(self, bookie_id: str) -> Reads:
        """Ask one bookie for every entry that it has acknowledged."""
        reads = Reads()
        for ledger_id, entry_ids in sorted(self._pool.acknowledged[bookie_id].items()):
            codec = EntryCodec(ledger_id, DigestType.CRC32C, b"")
            for some in _parts(sorted(entry_ids)):
                left = some
                while left:
                    answers = await self._pool.read_many(bookie_id, ledger_id, left, bytes_max=1 << 20)
                    for entry_id, answer in zip(left, answers, strict=False):
                        _judge(reads, f"bookie {bookie_id}", codec, entry_id, answer)
                    left = left[len(answers) :]
        return reads

    async def read_from_cluster(self) -> Reads:
        """Recover each ledger and read it as a reader does."""
        reads = Reads()
        for ledger_id, last in sorted(self._confirmed.items()):
            try:
                reader = await self.client.open(ledger_id, recover=True)
                found = {entry.entry_id: entry.payload async for entry in reader.entries()}
            except BkctlError as error:
                reads.lost.append(f"ledger {ledger_id}: {error}")
                continue
            wrong = [each for each in range(last + 1) if found.get(each) != payload(ledger_id, each)]
            reads.lost += [f"ledger {ledger_id} entry {each} is not in the ledger" for each in wrong]
            reads.right += last + 1 - len(wrong)
        return reads


def payload(ledger_id: int, entry_id: int) -> bytes:
    """64 to 2,048 bytes that no other entry has."""
    return b"%015d-%015d " % (ledger_id, entry_id) * (2 + (entry_id * 7 + ledger_id) % 63)


def _judge(reads: Reads, where: str, codec: EntryCodec, entry_id: int, answer: BodyOrStatus) -> None:
    where = f"{where} ledger {codec.ledger_id} entry {entry_id}"
    if isinstance(answer, Status):
        reads.errors[answer] += 1
        if answer in DENIALS:
            reads.lost.append(f"{where}: {answer.name}")
        return
    try:
        is_right = codec.decode(entry_id, answer).payload == payload(codec.ledger_id, entry_id)
    except BkctlError:
        is_right = False
    if is_right:
        reads.right += 1
    else:
        reads.lost.append(f"{where}: other bytes than were written")


def _parts(entry_ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(entry_ids), READ_AT_ONCE):
        yield entry_ids[start : start + READ_AT_ONCE]
