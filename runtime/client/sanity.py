"""Writes a small ledger to one bookie, reads it back and deletes it: a health check that covers the whole bookie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from bkctl.runtime.client.api import open_ledger
from bkctl.runtime.client.ports import ClientPorts, credentials_of
from bkctl.runtime.client.write_test import payload_of
from bkctl.runtime.errors import LedgerReadError, MetadataError
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.protocol.status import Status

CUSTOM_METADATA = (("application", b"bkctl bookie sanity"),)
"""Identifies the ledgers of sanity tests."""

_ENTRY_BYTES = 1024

OnLeftover = Callable[[int, BaseException], None]
"""Receives the id of a test ledger that could not be deleted, and the reason."""


class SanityResult(msgspec.Struct, frozen=True, kw_only=True):
    """A test that passed. The ledger is deleted."""

    ledger_id: int
    entries: int
    write_s: float
    read_s: float


async def run_sanity_test(
    ports: ClientPorts, bookie_id: str, entry_count: int, on_leftover: OnLeftover
) -> SanityResult:
    """Create a ledger on this bookie alone, write and close it, read it back as a new reader would, and delete it.

    Returns if all entries came back as they were written. Otherwise raises the bookie's answer to an add as a
    BookieError (BookieReadOnlyError from a read-only bookie), or the reason of a failed read: BookieError,
    DigestMismatchError, LedgerReadError; or MetadataError. The ledger is always deleted, also after a failure or a
    cancellation; if that fails, ``on_leftover`` is called.
    """
    clock = ports.clock
    payloads = [payload_of(entry_id, _ENTRY_BYTES) for entry_id in range(entry_count)]
    async with _ledger_on(ports, bookie_id, on_leftover) as (ledger_id, stored):
        began_ns = clock.monotonic_ns()
        await _write(ports, bookie_id, ledger_id, stored, payloads)
        written_ns = clock.monotonic_ns()
        await _read_back(ports, ledger_id, payloads)
        read_ns = clock.monotonic_ns()
    return SanityResult(
        ledger_id=ledger_id,
        entries=entry_count,
        write_s=(written_ns - began_ns) / 1e9,
        read_s=(read_ns - written_ns) / 1e9,
    )


@asynccontextmanager
async def _ledger_on(
    ports: ClientPorts, bookie_id: str, on_leftover: OnLeftover
) -> AsyncIterator[tuple[int, Versioned[LedgerMetadata]]]:
    """A new ledger with this ensemble; deleted at the end of the block."""
    metadata = new_ledger((bookie_id,), 1, 1, DigestType.CRC32C, b"", custom_metadata=CUSTOM_METADATA)
    metadata = msgspec.structs.replace(metadata, creator_token=ports.clock.random.randrange(1, 2**63))
    creating = asyncio.ensure_future(ports.ledgers.create(metadata))
    try:
        yield await asyncio.shield(creating)
    finally:
        await asyncio.wait([creating])  # after a cancellation, the ledger may still be created
        if creating.exception() is None:
            ledger_id, _ = creating.result()
            try:
                await ports.ledgers.delete(ledger_id)
            except BaseException as error:
                on_leftover(ledger_id, error)
                if not isinstance(error, MetadataError):
                    raise


async def _write(
    ports: ClientPorts,
    bookie_id: str,
    ledger_id: int,
    stored: Versioned[LedgerMetadata],
    payloads: Sequence[bytes],
) -> None:
    """Add the entries one after another, and close the ledger.

    Without ``LedgerWriter``, which would replace a failing bookie by another one.
    """
    credentials, length = credentials_of(ledger_id, stored.value), 0
    for entry_id, payload in enumerate(payloads):
        length += len(payload)
        body = credentials.codec.encode(entry_id, entry_id - 1, length, payload)
        answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        ports.bookies.add(bookie_id, ledger_id, entry_id, credentials.master_key, body, _answering(answer))
        status = await answer
        if status != Status.OK:
            raise ports.bookies.error_of(status, bookie_id, f"add of entry {entry_id} of test ledger {ledger_id}")
    await ports.ledgers.write(ledger_id, to_closed(stored.value, len(payloads) - 1, length), stored.version)


def _answering(answer: asyncio.Future[Status]) -> Callable[[Status], None]:
    def set_result(status: Status) -> None:
        if not answer.done():  # it is cancelled if the test was stopped meanwhile
            answer.set_result(status)

    return set_result


async def _read_back(ports: ClientPorts, ledger_id: int, payloads: Sequence[bytes]) -> None:
    """Read the closed ledger through its metadata. LedgerReadError."""
    reader = await open_ledger(ports, ledger_id, b"", recover=False)
    found = [entry.payload async for entry in reader]
    if found != list(payloads):
        raise LedgerReadError(ledger_id, "the entries that were read back differ from those that were written")
