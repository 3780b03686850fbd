"""Reads entries of one bookie directly, again and again, also while it is down; run as a process of its own.

Arguments: port, number of entries per ledger, ids of the ledgers. The first read of the whole set is reported as
``READ ALL``. SIGTERM ends it with the counts of all answers as JSON. Answers that deny an entry are printed at once.
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import signal
import sys

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import (
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnknownLedgerStateError,
)
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.entry_body import EntryCodec

AT_ONCE = 8


def payload(ledger_id: int, entry_id: int) -> bytes:
    """What the entry must contain."""
    return b"entry %d of ledger %d" % (entry_id, ledger_id)


class Reader:
    def __init__(self, port: int, entry_count: int, ledger_ids: list[int]) -> None:
        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", port

        self.counts: collections.Counter[str] = collections.Counter()
        self._pool = BookiePool(resolve, ClientConfig(), LoopClock())
        self._wanted = [(ledger_id, entry_id) for ledger_id in ledger_ids for entry_id in range(entry_count)]
        self._codecs = {ledger_id: EntryCodec(ledger_id, DigestType.CRC32C, b"") for ledger_id in ledger_ids}

    async def run(self) -> None:
        is_first = True
        while True:
            random.shuffle(self._wanted)
            waiting = iter(self._wanted)
            await asyncio.gather(*(self._read_some(waiting) for _ in range(AT_ONCE)))
            if is_first:
                print("READ ALL", flush=True)
            is_first = False

    async def _read_some(self, waiting: collections.abc.Iterator[tuple[int, int]]) -> None:
        for ledger_id, entry_id in waiting:
            word = await self._read(ledger_id, entry_id)
            self.counts[word] += 1
            if word in {"denied", "wrong"}:
                print(f"{word.upper()} entry {entry_id} of ledger {ledger_id}", flush=True)
            if word == "unreachable":
                await asyncio.sleep(0.05)

    async def _read(self, ledger_id: int, entry_id: int) -> str:
        try:
            reply = await self._pool.read("bookie", ledger_id, entry_id)
        except (NoSuchEntryError, NoSuchLedgerError):
            return "denied"
        except UnknownLedgerStateError:
            return "unknown"
        except (BookieUnavailableError, BookieTimeoutError):
            return "unreachable"
        except BookieError as error:
            return f"failed: {error}"
        entry = self._codecs[ledger_id].decode(entry_id, reply.body)
        return "good" if bytes(entry.payload) == payload(ledger_id, entry_id) else "wrong"


async def main() -> None:
    port, entry_count, *ledger_ids = map(int, sys.argv[1:])
    reader = Reader(port, entry_count, ledger_ids)
    task = asyncio.ensure_future(reader.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    print(json.dumps(reader.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
