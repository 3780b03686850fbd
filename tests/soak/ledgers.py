"""Ledgers of a soak run: what was acknowledged, and an independent check that every copy of it is there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence

from runtime.client import LedgerClient
from runtime.client.ports import credentials_of
from runtime.errors import BookieError, EntryDigestError
from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.write_set import write_set

LEDGERS_MIN, LEDGERS_MAX = 5, 25
ENTRIES_MAX = 100
ENTRY_BYTES_MAX = 4096
_LEDGERS_AT_ONCE = 8


class Book:
    """The payload sizes of all ledgers that were written and not deleted; their bytes follow from the ids."""

    def __init__(self, metadata_uri: str) -> None:
        self._metadata_uri = metadata_uri
        self._sizes: dict[int, list[int]] = {}

    def count_referencing(self, bookie_id: str) -> int:
        """Ledgers whose metadata has the bookie in any segment."""

        async def count() -> int:
            async with await LedgerClient.connect(self._metadata_uri) as client:
                found = await asyncio.gather(*(client.ports.ledgers.read(each) for each in self._sizes))
            return sum(bookie_id in each.value.bookies() for each in found)

        return asyncio.run(count())

    def write(self, source: random.Random) -> None:
        """Some closed ledgers, of any sizes; bookies may not change meanwhile."""

        async def write_all() -> None:
            async with await LedgerClient.connect(self._metadata_uri) as client:
                for _ in range(source.randint(LEDGERS_MIN, LEDGERS_MAX)):
                    sizes = [source.randint(0, ENTRY_BYTES_MAX) for _ in range(source.randint(0, ENTRIES_MAX))]
                    async with await client.create(write_quorum_size=source.choice((2, 3))) as writer:
                        adds = [
                            writer.append_nowait(_payload(writer.ledger_id, entry_id, size))
                            for entry_id, size in enumerate(sizes)
                        ]
                        await asyncio.gather(*adds)
                    self._sizes[writer.ledger_id] = sizes

        asyncio.run(write_all())

    def forget(self, count_max: int) -> None:
        """Delete the oldest ledgers until so many are left."""

        async def delete_all() -> None:
            async with await LedgerClient.connect(self._metadata_uri) as client:
                for ledger_id in sorted(self._sizes)[: max(0, len(self._sizes) - count_max)]:
                    await client.delete(ledger_id)
                    del self._sizes[ledger_id]

        asyncio.run(delete_all())

    def problems(self, gone: Collection[str]) -> list[str]:
        """What is wrong: a ledger that references one of ``gone``, or a copy that is not where the metadata says."""

        async def check_all() -> list[str]:
            found: list[str] = []
            async with await LedgerClient.connect(self._metadata_uri) as client:
                ids = sorted(self._sizes)
                for start in range(0, len(ids), _LEDGERS_AT_ONCE):
                    part = ids[start : start + _LEDGERS_AT_ONCE]
                    for problems in await asyncio.gather(*(self._check(client, each, gone) for each in part)):
                        found += problems
            return found

        return asyncio.run(check_all())

    async def _check(self, client: LedgerClient, ledger_id: int, gone: Collection[str]) -> list[str]:
        metadata = (await client.ports.ledgers.read(ledger_id)).value
        sizes = self._sizes[ledger_id]
        if not metadata.is_closed or metadata.last_entry_id != len(sizes) - 1:
            return [
                f"ledger {ledger_id}: {metadata.state.name}, last entry {metadata.last_entry_id}, {len(sizes)} written"
            ]
        problems = [f"ledger {ledger_id} references {each}" for each in metadata.bookies() & set(gone)]
        for entry_id in range(len(sizes)):
            problems += await self._check_entry(client, ledger_id, metadata, entry_id)
        return problems

    async def _check_entry(
        self, client: LedgerClient, ledger_id: int, metadata: LedgerMetadata, entry_id: int
    ) -> list[str]:
        codec = credentials_of(ledger_id, metadata).codec
        expected = _payload(ledger_id, entry_id, self._sizes[ledger_id][entry_id])
        ensemble = metadata.segment_of(entry_id).ensemble
        members = [ensemble[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]
        problems = []
        for bookie_id, answer in zip(members, await _ask_all(client, members, ledger_id, entry_id), strict=True):
            wrong = ""
            if isinstance(answer, BaseException):
                wrong = str(answer)
            else:
                try:
                    if codec.decode(entry_id, answer).payload != expected:
                        wrong = "other bytes than were written"
                except EntryDigestError as error:
                    wrong = str(error)
            if wrong:
                problems.append(f"ledger {ledger_id} entry {entry_id} on bookie {bookie_id}: {wrong}")
        return problems


async def _ask_all(
    client: LedgerClient, bookie_ids: Sequence[str], ledger_id: int, entry_id: int
) -> list[bytes | BookieError]:
    async def ask(bookie_id: str) -> bytes | BookieError:
        try:
            return (await client.ports.bookies.read(bookie_id, ledger_id, entry_id)).body
        except BookieError as error:
            return error

    return await asyncio.gather(*(ask(each) for each in bookie_ids))


def _payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    return random.Random(ledger_id * 1_000_003 + entry_id).randbytes(size)
