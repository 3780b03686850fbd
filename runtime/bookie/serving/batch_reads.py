"""Batch reads: consecutive entries of a ledger in one answer. Source: wire section 13."""

from __future__ import annotations

from bkctl.runtime.ports import Workers
from bkctl.runtime.protocol.messages import BatchReadRequest
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.errors import StorageError

_ANSWER_BYTES = 36
"""The frame of an answer, without entries."""
_LENGTH_BYTES = 4


async def read_batch(
    workers: Workers, lane: str, engine: LedgerDirectoryEngine, call: BatchReadRequest, first_body: bytes
) -> list[bytes]:
    """The bodies of a batch, of which the first one was found; the first entry that cannot be read ends it."""
    bodies = [first_body]
    entry_bytes = _LENGTH_BYTES + len(first_body)
    left_bytes = call.bytes_max - _ANSWER_BYTES - entry_bytes
    # As Java does: as many as there is room for if all are like the first one.
    count = min(call.count_max, 1 + max(0, left_bytes) // entry_bytes)
    while len(bodies) < count:
        entry_id = call.first_entry_id + len(bodies)
        cached = engine.find_cached(call.ledger_id, entry_id)
        found = [cached] if cached is not None else []
        if cached is None:
            try:
                found = await workers.run(
                    lane, engine.stored.read_run, call.ledger_id, entry_id, count - len(bodies), left_bytes
                )
            except (StorageError, OSError):
                break  # the client asks for this entry next, and gets the error
        if not found:
            break
        for offset, body in enumerate(found):
            newest = engine.find_cached(call.ledger_id, entry_id + offset) or body  # added again since
            left_bytes -= _LENGTH_BYTES + len(newest)
            if left_bytes < 0:
                return bodies
            bodies.append(newest)
    return bodies
