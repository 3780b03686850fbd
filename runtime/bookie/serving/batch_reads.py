"""Batch reads: consecutive entries of a ledger in one answer. Source: wire section 13."""

from __future__ import annotations

import bisect
import itertools
from typing import cast

from bkctl.runtime.ports import Workers
from bkctl.runtime.protocol.messages import BatchReadRequest
from bkctl.runtime.protocol.v2_bookie import encode_entries
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.read_cache import BatchKey, KeptBatch
from bkctl.storage.errors import StorageError

_ANSWER_BYTES = 36
"""The frame of an answer, without entries."""
_LENGTH_BYTES = 4


_STEP_COUNT = 256
"""Entries that are looked up in memory together."""


class Batch:
    """The answer to a batch read, as far as it is known: ``bodies``, of which the first one was found."""

    def __init__(self, call: BatchReadRequest, first_body: bytes) -> None:
        self.bodies = [first_body]
        entry_bytes = _LENGTH_BYTES + len(first_body)
        self.left_bytes = call.bytes_max - _ANSWER_BYTES - entry_bytes
        # As Java does: as many as there is room for if all are like the first one.
        self._count = min(call.count_max, 1 + max(0, self.left_bytes) // entry_bytes)
        self._call = call

    @property
    def left(self) -> range:
        """The entries that it lacks."""
        first = self._call.first_entry_id
        return range(first + len(self.bodies), first + self._count)

    def take_cached(self, engine: LedgerDirectoryEngine) -> bool:
        """Add the next ones if they are in memory; whether there was any."""
        found = engine.find_many_cached(self._call.ledger_id, self.left[:_STEP_COUNT])
        bodies = list(itertools.takewhile(bool, found))
        self.take(cast("list[bytes]", bodies))
        return bool(bodies)

    def is_newest(self, engine: LedgerDirectoryEngine) -> bool:
        """Whether no entry of it was added again, as far as memory shows."""
        first = self._call.first_entry_id
        newest = engine.find_many_cached(self._call.ledger_id, range(first, first + len(self.bodies)))
        return all(body is None or body is known for body, known in zip(newest, self.bodies, strict=True))

    def take(self, bodies: list[bytes]) -> None:
        """Add the next ones; the first for which there is no room is the end."""
        sizes = itertools.accumulate(_LENGTH_BYTES + len(body) for body in bodies)
        count = bisect.bisect_right(list(sizes), self.left_bytes)
        self.bodies += bodies[:count]
        self.left_bytes -= sum(map(len, bodies[:count])) + _LENGTH_BYTES * count
        if count < len(bodies):
            self._count = len(self.bodies)


def find_batch(engine: LedgerDirectoryEngine, call: BatchReadRequest) -> bytes | None:
    """The encoded entries of a batch that is in memory; None for any other, and for one that needs many steps."""
    if call.first_entry_id < 0:
        return None
    if (kept := engine.read_cache.find_batch(_key_of(call))) is not None:
        engine.measures.read_cache_hits += kept.entry_count
        return kept.block
    body = engine.find_cached(call.ledger_id, call.first_entry_id)
    if body is None:
        return None
    batch = Batch(call, body)
    if batch.left:
        batch.take_cached(engine)
    return None if batch.left else _keep(engine, call, batch)


async def read_batch(
    workers: Workers, lane: str, engine: LedgerDirectoryEngine, call: BatchReadRequest, first_body: bytes
) -> bytes:
    """The encoded entries of a batch, of which the first one was found; the first one that cannot be read ends it."""
    batch = Batch(call, first_body)
    generation = engine.read_generation
    while left := batch.left:
        if batch.take_cached(engine):
            continue
        try:
            found = await workers.run(
                lane, engine.stored.read_run, call.ledger_id, left[0], len(left), batch.left_bytes
            )
        except (StorageError, OSError):
            break  # the client asks for this entry next, and gets the error
        if not found:
            break
        added_since = engine.find_many_cached(call.ledger_id, left[: len(found)])
        batch.take([newest or body for newest, body in zip(added_since, found, strict=True)])
    if batch.left or generation != engine.read_generation or not batch.is_newest(engine):
        return encode_entries(batch.bodies)
    return _keep(engine, call, batch)


def _keep(engine: LedgerDirectoryEngine, call: BatchReadRequest, batch: Batch) -> bytes:
    """Encode a batch that only a newer copy of an entry can change, and keep it for other clients."""
    block = encode_entries(batch.bodies)
    engine.read_cache.keep_batch(_key_of(call), KeptBatch(block, len(batch.bodies)))
    return block


def _key_of(call: BatchReadRequest) -> BatchKey:
    return BatchKey(call.ledger_id, call.first_entry_id, call.count_max, call.bytes_max)
