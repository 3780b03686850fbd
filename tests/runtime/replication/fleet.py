"""A small cluster for repair scenarios: real ZooKeeper, scripted bookies on the real wire, ledgers by hand.

A bookie that was never started is a dead one: metadata names it, nobody is registered under its id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import NodeExistsError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode, RegistrationClient
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.config import CopyPace, Policy, ReplicationConfig
from bkctl.runtime.replication.judge.check_scope import WHOLE, CheckScope
from bkctl.runtime.replication.judge.copies import LedgerCheck
from bkctl.runtime.replication.judge.fragments import segment_entries
from bkctl.runtime.replication.run.decommission import Decommission, DecommissionPlan, DecommissionReport
from bkctl.runtime.replication.run.drain import DrainHooks
from bkctl.runtime.replication.run.recovery import BookieRecovery, RecoveryReport
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.storage.adapters.sqlite import temporary_database
from tests.runtime.client.fakes import TIMEOUT_S, Client, Fakes, answers_so_far, payload
from tests.runtime.client.scripted_bookie import ScriptedBookie
from tests.runtime.net.stepped_clock import SteppedClock

T = TypeVar("T")

PATIENT = ClientConfig(add_timeout_s=60, read_timeout_s=60)
"""No bookie of these tests stays silent: a request that is held is answered, or its connection is cut."""

QUICK = ReplicationConfig(
    attempts_max=4,
    backoff_first_s=0.02,
    backoff_max_s=0.1,
    silence_pause_s=0.1,
    late_copy_wait_s=0.05,
    lock_wait_s=0.2,
    lock_poll_s=0.05,
    registration_wait_s=0.5,
    open_ledger_wait_s=0.3,
)
"""The limits of production, with waits made for tests."""


class Fleet:
    """Make it with ``build``."""

    def __init__(self, fakes: Fakes, client: Client) -> None:
        self.fakes = fakes
        self.client = client
        self.ledgers = client.ports.ledgers
        self.bookies: dict[str, ScriptedBookie] = {}
        store, root = client.store, client.ports.ledgers.root
        self.registration = RegistrationClient(store, root)
        self.cookies = CookieStore(store, root)
        self.locks = ReplicationLocks(store, root, "this-host")

    @classmethod
    async def build(cls, fakes: Fakes) -> Fleet:
        return cls(fakes, await fakes.client(PATIENT))

    async def start(self, *bookie_ids: str, mode: BookieMode = BookieMode.WRITABLE) -> None:
        """Bring bookies up and register them."""
        for bookie in await self.fakes.bookies(*bookie_ids, mode=mode):
            self.bookies[bookie.bookie_id] = bookie

    async def store(self, metadata: LedgerMetadata, *, ledger_id: int | None = None, holes: Iterable[str] = ()) -> int:
        """Store a ledger: its metadata, and every copy on bookies that run, but for those in ``holes``."""
        ledger_id, _ = await self.ledgers.create(metadata, ledger_id=ledger_id)
        for index, segment in enumerate(metadata.segments):
            entries = segment_entries(metadata, index)
            for entry_id in range(entries.first_entry_id, entries.last_entry_id + 1):
                for position in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size):
                    bookie_id = segment.ensemble[position]
                    if bookie_id in self.bookies and bookie_id not in holes:
                        self.fakes.put(self.bookies[bookie_id], ledger_id, entry_id, lac=entry_id - 1)
        return ledger_id

    async def read(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """What is stored now."""
        return await self.ledgers.read(ledger_id)

    def recovery(self, config: ReplicationConfig = QUICK, bytes_per_s: int | None = None) -> BookieRecovery:
        """Recovery with this fleet's parts."""
        return BookieRecovery(
            self.client.ports,
            self.cookies,
            self.locks,
            Policy(config=config, pace=CopyPace(bytes_per_s=bytes_per_s)),
            open_database=temporary_database,
        )

    async def recover(self, *bookie_ids: str, config: ReplicationConfig = QUICK) -> RecoveryReport:
        """Plan and run."""
        recovery = self.recovery(config)
        return await recovery.run(await recovery.plan(bookie_ids))

    def decommission(self) -> Decommission:
        """Decommission with this fleet's parts."""
        return Decommission(self.recovery(), self.cookies, self.client.ports)

    async def check(self, ledger_id: int, scope: CheckScope = WHOLE) -> LedgerCheck:
        """Verify one ledger."""
        live = (await self.registration.snapshot()).live
        return await LedgerChecker(self.client.ports, live, QUICK).check(ledger_id, scope)

    async def add_cookie(self, bookie_id: str) -> None:
        """A cookie as the bookie would have written it, if it has none."""
        cookie = Cookie(
            bookie_id=bookie_id,
            journal_directories=("/journal",),
            ledger_directories=("/ledgers",),
            instance_id="the-cluster",
        )
        with contextlib.suppress(NodeExistsError):
            await self.cookies.create(cookie)

    def adds(self) -> int:
        """Adds that any bookie received."""
        return sum(bookie.count("add") for bookie in self.bookies.values())

    def reads(self) -> int:
        """Reads that any bookie received."""
        return sum(bookie.count("read") for bookie in self.bookies.values())


async def carry_out(
    decommission: Decommission,
    plan: DecommissionPlan,
    hooks: DrainHooks | None = None,
) -> DecommissionReport:
    """Move all ledgers away, then delete the cookies: what the command does with bookies that are down."""
    hooks = hooks or DrainHooks()
    moved = await decommission.move(plan, 0.0, hooks)
    return await decommission.finish(plan, moved, hooks)


def length_of(entry_count: int) -> int:
    """Payload bytes of a ledger that ``Fleet.store`` fills."""
    return sum(len(payload(entry_id)) for entry_id in range(entry_count))


class SteppedFleet(Fleet):
    """A fleet whose client sees time pass only in ``advance``: for bookies that do not answer."""

    def __init__(self, fakes: Fakes, client: Client, clock: SteppedClock) -> None:
        super().__init__(fakes, client)
        self._clock = clock

    @classmethod
    async def build(cls, fakes: Fakes) -> SteppedFleet:
        clock = SteppedClock()
        return cls(fakes, await fakes.client(clock=clock), clock)

    async def advance(self, seconds: float) -> None:
        """Let all answers that are on their way arrive, then let time pass."""
        await _settle()
        await answers_so_far(self.client, *self.bookies)
        self._clock.advance(seconds)
        await _settle()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that waits for time-outs and pauses."""
        task = asyncio.create_task(work)
        while not task.done():
            await self.advance(TIMEOUT_S)
        return task.result()


async def _settle() -> None:
    for _ in range(20):  # more steps than any chain of wake-ups in these tests has
        await asyncio.sleep(0)
