"""What both clients do to the same ledgers, in terms that fit either side."""

from __future__ import annotations

import asyncio
import random

from bkctl.runtime.client import LedgerClient, LedgerWriter
from bkctl.runtime.ledger.metadata import DigestType
from tests.interop.java import JavaClient

PASSWORD = "correct horse"
DIGESTS = {
    "CRC32C": DigestType.CRC32C,
    "CRC32": DigestType.CRC32,
    "MAC": DigestType.HMAC,
    "DUMMY": DigestType.DUMMY,
}
"""Names of the Java API, and our names: those of the stored metadata."""


def payloads(count: int, size_bytes_max: int = 2000, seed: int = 1) -> list[bytes]:
    """Entries of mixed sizes, the empty one among them."""
    source = random.Random(seed)
    return [b"", *(source.randbytes(source.randint(1, size_bytes_max)) for _ in range(count - 1))]


async def append_all(writer: LedgerWriter, entries: list[bytes]) -> list[int]:
    """Append through a bkctl writer, pipelined; returns the entry ids."""
    return list(await asyncio.gather(*[writer.append_nowait(entry) for entry in entries]))


async def java_writes(java: JavaClient, entries: list[bytes], digest: str, *, is_closing: bool = True) -> int:
    """A Java client creates a ledger with these entries; returns its id."""
    ledger_id = await java.create(digest_type=digest, password=PASSWORD)
    assert await java.append(ledger_id, entries) == list(range(len(entries)))
    if is_closing:
        assert await java.close_ledger(ledger_id) == len(entries) - 1
    return ledger_id


async def bkctl_creates(client: LedgerClient, digest: str) -> LedgerWriter:
    """A bkctl client creates the same kind of ledger as ``java_writes``; the writer is open."""
    return await client.create(
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        digest_type=DIGESTS[digest],
        password=PASSWORD.encode(),
    )


async def bkctl_reads(client: LedgerClient, ledger_id: int, *, recover: bool = False) -> list[bytes]:
    """All payloads that a bkctl client finds in the ledger."""
    reader = await client.open(ledger_id, password=PASSWORD.encode(), recover=recover)
    if reader.last_add_confirmed < 0:
        return []
    return [entry.payload for entry in await reader.read(0, reader.last_add_confirmed)]
