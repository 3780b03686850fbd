"""A whole bookie, from its boot on empty directories to the boot after a power failure, on adapters in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    ADD_ENTRY,
    EFENCED,
    EOK,
    READ_ENTRY,
    VERSION_THREE,
    AddRequest,
    BKPacketHeader,
    OperationType,
    ReadRequest,
    Request,
    Response,
)
from bkctl.storage.filenames import DIRTY
from tests.crash.model_disk import Mode
from tests.sim.disk import LosesAll
from tests.sim.loop import run_simulated
from tests.sim.network import WireClient
from tests.sim.whole_bookie import CONFIG, WholeBookie
from tests.storage.engines import KEY, entry

FENCED, OPEN = 2, 1
LAST_ADD = -1
COUNT = 40
PAYLOAD = b"payload" * 50

OUTSIDE = (
    "open",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.scandir",
    "socket.__new__",
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "subprocess.Popen",
)


class Outside:
    """What leaves the process while it is watched: files, sockets, processes, threads, real time.

    Only the watching thread counts: earlier tests of this process may have left others, such as those of Spark.
    """

    def __init__(self) -> None:
        self._watched_thread = 0
        self.seen: list[str] = []
        sys.addaudithook(self._note)  # stays for the life of the process

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        self.seen.clear()
        self._watched_thread = threading.get_ident()
        with pytest.MonkeyPatch.context() as patch:
            # Python 3.11 reports neither of these to audit hooks.
            patch.setattr(threading.Thread, "start", self._noting("thread", threading.Thread.start))
            patch.setattr(time, "sleep", self._noting("sleep", time.sleep))
            yield
        self._watched_thread = 0

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in OUTSIDE:
            self._see(event, arguments)

    def _see(self, name: str, arguments: tuple[object, ...]) -> None:
        if threading.get_ident() == self._watched_thread:
            self.seen.append(f"{name} {arguments}")

    def _noting(self, name: str, function: Callable[..., None]) -> Callable[..., None]:
        def noting(*arguments: object) -> None:
            self._see(name, arguments)
            function(*arguments)

        return noting


@pytest.fixture(scope="module")
def outside() -> Outside:
    run_simulated(live(Mode.ORDERED, LosesAll()))  # imports what is imported late
    return Outside()


async def add(client: WireClient, ledger_id: int, entry_id: int) -> int:
    response = await send_add(client, ledger_id, entry_id)
    return response.addResponse.status


def send_add(client: WireClient, ledger_id: int, entry_id: int) -> asyncio.Future[Response]:
    body = entry(ledger_id, entry_id, PAYLOAD)
    request = AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=KEY, body=body)
    return client.ask(Request(header=header(ADD_ENTRY), addRequest=request))


async def read(client: WireClient, ledger_id: int, entry_id: int, *, fences: bool = False) -> tuple[int, bytes]:
    request = ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if fences:
        request.flag, request.masterKey = ReadRequest.FENCE_LEDGER, KEY
    answer = (await client.ask(Request(header=header(READ_ENTRY), readRequest=request))).readResponse
    return answer.status, answer.body


def header(operation: OperationType) -> BKPacketHeader:
    return BKPacketHeader(version=VERSION_THREE, operation=operation, txnId=0)


async def live(mode: Mode, chance: random.Random, *, has_syncs: bool = True) -> None:
    """Boot, add, fence, checkpoint, add, lose power, boot; then all that was acknowledged is there."""
    whole_bookie = WholeBookie(mode)
    await whole_bookie.format_cluster()
    bookie = await whole_bookie.boot()
    client = whole_bookie.connect()
    for entry_id in range(COUNT):
        assert set(await asyncio.gather(add(client, OPEN, entry_id), add(client, FENCED, entry_id))) == {EOK}
    await whole_bookie.clock.sleep(3 * CONFIG.flush_interval_s)
    assert whole_bookie.disk.read_file("/ledgers/current/lastMark"), "no checkpoint happened"
    if not has_syncs:
        whole_bookie.disk.unsynced_suffix = ".txn"
    assert (await read(client, FENCED, LAST_ADD, fences=True))[0] == EOK
    for entry_id in range(COUNT, 2 * COUNT):
        assert await add(client, OPEN, entry_id) == EOK
    for entry_id in range(2 * COUNT, 3 * COUNT):
        send_add(client, OPEN, entry_id).add_done_callback(lambda answer: answer.exception())
    await whole_bookie.lose_power(chance)

    bookie = await whole_bookie.boot()
    client = whole_bookie.connect()
    assert await add(client, FENCED, COUNT) == EFENCED
    for entry_id in range(2 * COUNT):
        assert await read(client, OPEN, entry_id) == (EOK, entry(OPEN, entry_id, PAYLOAD))
    for entry_id in range(COUNT):
        assert await read(client, FENCED, entry_id) == (EOK, entry(FENCED, entry_id, PAYLOAD))
    assert await add(client, OPEN, 3 * COUNT) == EOK
    assert whole_bookie.disk.exists(f"/ledgers/current/{DIRTY}")
    await whole_bookie.stop(bookie)
    assert not whole_bookie.disk.exists(f"/ledgers/current/{DIRTY}")
    assert not whole_bookie.disk.locked
    assert not whole_bookie.network.ports


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("seed", [None, *range(10)])
def test_what_was_acknowledged_survives_a_power_failure(mode: Mode, seed: int | None, outside: Outside) -> None:
    """Without a thread, a socket, a file or a real second."""

    async def run() -> None:
        with outside.watched():
            await live(mode, LosesAll() if seed is None else random.Random(seed))

    run_simulated(run())
    assert outside.seen == []


def test_a_journal_that_is_not_synced_is_noticed() -> None:
    with pytest.raises(AssertionError):
        run_simulated(live(Mode.ORDERED, LosesAll(), has_syncs=False))


def test_what_leaves_the_process_is_noticed(outside: Outside, tmp_path: Path) -> None:
    with outside.watched():
        (tmp_path / "file").write_bytes(b"")
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        time.sleep(0)
        socket.socket().close()
    assert {line.split()[0] for line in outside.seen} >= {"open", "thread", "sleep", "socket.__new__"}
