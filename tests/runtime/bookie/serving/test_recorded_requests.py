"""Requests that were once sent to a Java bookie (4.18.0), in the same order: the answers differ only where intended."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig
from tests.runtime.protocol.golden import Row, rows

CLOSED: Final = b""
SILENT: Final = b"no answer"


class Caller:
    """Sends one frame after another to a bookie, each on a new connection unless it continues an exchange."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._exchange = ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, name: str, frame: bytes) -> bytes:
        exchange = name[:-2] if "-then-" in name else name
        if self._streams is None or exchange != self._exchange:
            self.close()
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        self._exchange = exchange
        reader, writer = self._streams
        writer.write(frame)
        try:
            async with asyncio.timeout(60):
                length = await reader.readexactly(4)
                return length + await reader.readexactly(int.from_bytes(length, "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return CLOSED
        except TimeoutError:
            return SILENT

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


_NEGATIVE: Final = "negative ids are refused: Java stores some, and its journal then mistakes them for control records"
_ABSENT: Final = "the add before it was refused"
_EXPLICIT: Final = "an explicit LAC without an entry is an answer, not an I/O error"
INTENDED: Final = {
    "v3-info": "disk space of this machine",
    "v3-info-total": "disk space of this machine",
    "v3-info-free": "disk space of this machine",
    "v3-readlac-noledger": "there is no such ledger, not only no such entry",
    "v3-group-field": "an unknown field is skipped, of whatever wire type, as older Java bookies do",
    "add-after-empty-key": "an empty key is none: the first real one becomes the ledger's key",
    "add-after-empty-key-again": "an empty key is none: the first real one becomes the ledger's key",
    "add-id-mismatch": "an add whose request and body name different entries is refused",
    "add-id-mismatch-read-43": _ABSENT,
    "read-neg-lid": "Java never answers",
    "add-neg-eid-5": _NEGATIVE,
    "read-neg-eid-5": _NEGATIVE,
    "read-neg-eid-last": _ABSENT,
    "read-eid-2": _NEGATIVE,
    "read-eid-5-again": _NEGATIVE,
    "v2-read-eid-2": _NEGATIVE,
    "batch-start-2": _NEGATIVE,
    "add-2^63-1-ledger": "the ledger id is above the largest one that metadata can name",
    "rlac-explicit-only": _EXPLICIT,
    "wlac-body-16": "16 bytes are a valid packet with the digest type DUMMY",
    "rlac-60": _EXPLICIT,
    "rlac-60b": _EXPLICIT,
    "rlac-60c": _EXPLICIT,
    "rlac-60d": _EXPLICIT,
    "wlac-61-crc": "a shorter packet may follow a longer one",
    "rlac-61": _EXPLICIT,
    "wlac-packet-other-ledger": "a packet of another ledger is refused: Java stores it for that one",
    "rlac-63": "there is no such ledger, not only no such entry",
    "rlac-64": _ABSENT,
    "list-existing": "Java's DbLedgerStorage never answers",
}
"""Exchanges with other answers, and why they are better."""


async def test_answers_are_those_of_a_java_bookie(bookie_config: BookieConfig) -> None:
    different: set[str] = set()
    asked_count = 0
    async with running_bookie(bookie_config) as server:
        caller = Caller(server.port)
        for name, exchange in itertools.groupby(rows("bookie-4.18.0.jsonl"), key=lambda row: row.name):
            request, *answers = exchange
            asked_count += 1
            if await caller.ask(name, request.frame) not in [_expected(row) for row in answers]:
                different.add(name)
        caller.close()
    assert different == set(INTENDED)
    assert asked_count > 200


def _expected(row: Row) -> bytes:
    return {"response": row.frame, "close": CLOSED, "none": SILENT}[row.direction]
