"""Actions on marks, locks, votes and switches cost the ZooKeeper operations that the table states."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from bkctl.runtime.metadata.replication.election import AuditorElection, read_auditor
from bkctl.runtime.metadata.replication.lock import list_held_locks
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.replication.work import PickedLedger
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.replication_peer import ReplicationPeer

A, B = "10.0.0.1:3181", "10.0.0.2:3181"
STATED = {
    "mark a ledger": "1 transaction",
    "mark a ledger, the first of its 65536": "2 transaction, 1 create",
    "mark a ledger, the first of all": "2 transaction, 5 create",
    "mark it again, nothing new": "1 transaction, 1 get",
    "mark it again, another bookie": "1 transaction, 1 get, 1 set",
    "list 100 marks in a row": "100 get, 4 children",
    "list the ids of 100 marks in a row": "4 children",
    "pick a ledger": "1 get, 1 create",
    "pick a ledger that another worker holds": "1 get, 1 create",
    "finish a ledger": "3 delete, 2 exists",
    "finish a ledger that was marked again": "2 delete",
    "give a ledger back": "1 delete",
    "take a lock by id": "1 create",
    "take a lock that another worker holds": "1 create",
    "list 2 locks and their holders": "1 children, 2 get",
    "win the election at once": "1 create, 1 children, 1 exists, 1 set, 1 watched",
    "wait in the election": "1 create, 1 children, 1 exists",
    "be the auditor, or wait, per hour": "nothing",
    "succeed the auditor": "1 children, 1 exists, 1 set, 1 watched",
    "resign": "1 delete",
    "who is the auditor": "1 children, 1 get",
    "is it enabled": "1 exists",
    "disable": "1 create",
    "enable": "1 delete",
    "read the delay": "1 get",
    "set the delay": "1 set",
    "trigger an audit": "1 get, 1 set",
    "watch the delay": "1 watched",
    "store the time of a check": "1 set",
}
"""ZooKeeper operations of each action in an existing tree, after one ``get`` of ``LAYOUT``.

``transaction``: several creates in one request. ``watched``: a read with a standing watch, now and per change; a lock
that is held longer than ``UNWATCHED_S`` costs one, too. Failed operations count.
"""


def as_stated(counts: collections.Counter[str], stated: str) -> str:
    """Counts in the words, and the order, of the table."""
    order = [part.split(" ")[-1] for part in stated.split(", ")]
    kinds = sorted(
        (kind for kind in counts if counts[kind]), key=lambda kind: order.index(kind) if kind in order else 99
    )
    return ", ".join(f"{counts[kind]} {kind}" for kind in kinds) or "nothing"


class Ledger:
    """What was measured."""

    def __init__(self, peer: ReplicationPeer) -> None:
        self.peer = peer
        self.stated = STATED
        self.measured: dict[str, str] = {}

    @asynccontextmanager
    async def measure(self, action: str) -> AsyncIterator[None]:
        with self.peer.store.counted() as counts:
            yield
        self.measured[action] = as_stated(counts, self.stated.get(action, ""))

    async def cost(self, action: str, acting: Awaitable[object]) -> object:
        async with self.measure(action):
            return await acting

    async def pick(self, action: str, ledger_id: int) -> PickedLedger:
        picked = await self.cost(action, self.peer.work.pick(ledger_id))
        assert isinstance(picked, PickedLedger)
        return picked


async def measure_marks(book: Ledger) -> None:
    marks = book.peer.marks
    await book.cost("mark a ledger, the first of all", marks.mark(0x10000, [A]))
    await book.cost("mark a ledger, the first of its 65536", marks.mark(0, [A]))
    for ledger_id in range(1, 99):
        await marks.mark(ledger_id, [A])
    await book.cost("mark a ledger", marks.mark(99, [A]))
    await book.cost("mark it again, nothing new", marks.mark(99, [A]))
    await book.cost("mark it again, another bookie", marks.mark(99, [B]))
    await marks.clear(0x10000, 0)
    assert len(str(await book.cost("list 100 marks in a row", book.peer.ids()))) > 100


async def measure_work(book: Ledger, theirs: ReplicationPeer) -> None:
    async with book.measure("list the ids of 100 marks in a row"):
        assert len([each async for each in book.peer.work.ids()]) == 100
    first, second, third = [await book.pick("pick a ledger", ledger_id) for ledger_id in (1, 2, 3)]
    await book.cost("finish a ledger", book.peer.work.finish(first))
    await theirs.marks.mark(2, ["10.0.0.9:3181"])
    await book.cost("finish a ledger that was marked again", book.peer.work.finish(second))
    await book.cost("give a ledger back", third.release())
    assert await theirs.locks.acquire(7)
    await book.cost("pick a ledger that another worker holds", book.peer.work.pick(7))
    await book.cost("take a lock that another worker holds", book.peer.locks.acquire(7))
    await book.cost("take a lock by id", book.peer.locks.acquire(5))
    async with book.measure("list 2 locks and their holders"):
        assert len([each async for each in list_held_locks(book.peer.store, book.peer.root, book.peer.foreign)]) == 2


async def measure_election(book: Ledger, theirs: ReplicationPeer) -> None:
    peer = book.peer
    other = AuditorElection(theirs.store, peer.root, B, lambda _: None)
    await other.campaign()
    await other.resign()
    election = AuditorElection(peer.store, peer.root, A, lambda _: None)
    async with book.measure("win the election at once"):
        await election.campaign()
        await peer.store.quiet()
    await book.cost("who is the auditor", read_auditor(peer.store, peer.root, peer.foreign))
    await book.cost("resign", election.resign())
    await other.campaign()
    async with book.measure("wait in the election"):
        waiting = asyncio.ensure_future(election.campaign())
        await peer.store.quiet()
    async with book.measure("be the auditor, or wait, per hour"):
        await asyncio.sleep(0.2)
    async with book.measure("succeed the auditor"):
        await other.resign()
        await waiting
        await peer.store.quiet()


async def measure_switches(book: Ledger) -> None:
    switches = ReplicationSwitches(book.peer.store, book.peer.root)
    await book.cost("is it enabled", switches.is_enabled())
    await book.cost("disable", switches.disable())
    await book.cost("enable", switches.enable())
    await switches.set_recovery_delay(0)
    await book.cost("read the delay", switches.recovery_delay())
    await book.cost("set the delay", switches.set_recovery_delay(5))
    await book.cost("trigger an audit", switches.rewrite_recovery_delay())
    told: asyncio.Queue[object] = asyncio.Queue()
    async with book.measure("watch the delay"):
        watch = switches.watch_recovery_delay(told.put_nowait)
        await told.get()
        await book.peer.store.quiet()
    watch.cancel()
    await switches.set_check_time_ms(PeriodicCheck.REPLICAS, 1)
    await book.cost("store the time of a check", switches.set_check_time_ms(PeriodicCheck.REPLICAS, 2))


async def test_each_action_costs_what_is_stated(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    book = Ledger(await ReplicationPeer.open(store, root))
    theirs = await ReplicationPeer.open(other_store, root)
    await measure_marks(book)
    await measure_work(book, theirs)
    await measure_election(book, theirs)
    await measure_switches(book)
    assert book.measured == book.stated
