"""Losses that an operator accepts in the explorer, and lost bookies that come back with their disks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Sequence

from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import note_back, read_given_up
from bkctl.runtime.replication.close.accepted_loss import LossClose
from bkctl.runtime.replication.close.given_up_record import GivenUpRecord
from bkctl.runtime.replication.close.ledger_closer import CloseOutcome, LedgerCloser, LossConsent
from bkctl.runtime.replication.config import OpenLedgers, Policy, ReplicationConfig
from bkctl.runtime.replication.run.decommission import Decommission
from bkctl.runtime.replication.run.drain import DrainHooks
from bkctl.runtime.replication.run.recovery import BookieRecovery
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.storage.adapters.sqlite import memory_database
from bkctl.storage.errors import BkctlError
from tests.sim.oracle import ACCEPTING, Oracle
from tests.sim.watched_cluster import ROOT, ProcessStore, WatchedCluster

READ_AHEAD_ENTRIES = 8
Start = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
Replace = Callable[[Collection[str], bool], Coroutine[None, None, None]]
"""Makes a command that recovers (dead) or drains (alive) these bookies."""


class Losses:
    """Bookies die, their loss is accepted, some come back, and others leave."""

    def __init__(
        self, cluster: WatchedCluster, oracle: Oracle, source: random.Random, config: ReplicationConfig
    ) -> None:
        self._cluster = cluster
        self._oracle = oracle
        self._source = source
        self._config = config
        self._removed: set[str] = set()

    async def run(self, bookie_ids: Sequence[str], start: Start, replace: Replace) -> None:
        source, cluster = self._source, self._cluster
        lost = source.sample(bookie_ids, source.choice((1, 1, 2)))
        await cluster.clock.sleep(source.uniform(0.0, 8.0))
        for bookie_id in lost:
            self._oracle.note(bookie_id, "is lost")
            cluster.bookies[bookie_id].crash(source.choice((0.0, 3.0)))
        await cluster.clock.sleep(4.0)
        returning = [each for each in lost if source.random() < 0.8]
        is_early = source.random() < 0.3
        if is_early:
            start(self._bring_back(returning, source.uniform(0.0, 20.0)))
        ways = [self._close, self._decommission] if source.random() < 0.4 else [self._close]
        for number, way in enumerate(ways):
            await self._attempt(f"{ACCEPTING}-{number}", way, lost)
        if not is_early:
            await self._bring_back(returning, source.uniform(0.0, 5.0))
        others = [each for each in bookie_ids if each not in lost]
        for number in range(source.randint(1, 2)):
            leaving = source.choice(others if number == 0 or source.random() < 0.6 else bookie_ids)
            await replace((leaving,), source.random() < 0.6)
            if returning and source.random() < 0.4:
                cluster.bookies[returning[0]].crash(0.0)

    async def _attempt(
        self,
        actor: str,
        way: Callable[[str, ProcessStore, Sequence[str]], Coroutine[None, None, None]],
        lost: Sequence[str],
    ) -> None:
        """One operation in a process of its own, which may be killed."""
        store = await self._cluster.connect(actor)
        work = asyncio.create_task(way(actor, store, lost))
        await asyncio.wait((work,), timeout=self._source.choice((None, None, None, self._source.uniform(0.0, 6.0))))
        if not work.done():
            self._oracle.note(actor, "is killed")
            self._cluster.kill(store, 0.0)
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._oracle.note(actor, f"fails: {error}")
            if not isinstance(error, BkctlError):
                self._oracle.violate(f"unexpected error: {error!r}")
        await store.close()

    def _record(self, store: ProcessStore) -> GivenUpRecord:
        return GivenUpRecord(RecoveryNotes(store, ROOT), self._cluster.clock, "ops")

    async def _close(self, actor: str, store: ProcessStore, lost: Sequence[str]) -> None:
        """As ``bkctl ledger close --accept-loss``."""
        ports = await self._cluster.ports(store)

        async def keep(_: int) -> None: ...

        closing = LossClose(ports, self._config, lost, READ_AHEAD_ENTRIES)
        locks = ReplicationLocks(store, ROOT, actor)
        consent = LossConsent(frozenset(lost), closing, locks, keep, self._record(store))
        ids = [each for each, metadata in self._oracle.ledgers.items() if not metadata.is_closed]
        closer = LedgerCloser(ports, consent=consent)
        async for result in closer.close_all(ids, grace_s=0, in_parallel=4):
            reason = "" if result.failure is None else f": {result.failure.reason}"
            self._oracle.note(actor, f"ledger {result.ledger_id} {result.outcome.value}{reason}")
            if result.outcome is CloseOutcome.CLOSED:
                self._oracle.check_ledger(result.ledger_id)

    async def _decommission(self, actor: str, store: ProcessStore, lost: Sequence[str]) -> None:
        """As ``bkctl recover``, then ``bkctl decommission --accept-loss --from-file`` of what is left."""
        ports = await self._cluster.ports(store)
        cookies, locks = CookieStore(store, ROOT), ReplicationLocks(store, ROOT, actor)
        policy = Policy(config=self._config, open_ledgers=OpenLedgers.SKIP)
        recovery = BookieRecovery(ports, cookies, locks, policy, open_database=memory_database)
        await recovery.require_down(lost)
        report = await recovery.run(await recovery.plan(lost))
        left = {each.ledger_id for each in report.failures}
        operation = Decommission(recovery, cookies, ports)
        plan = await operation.plan(lost, accepted_losses=left)
        moved = await operation.move(plan, 10.0, DrainHooks())
        record = self._record(store)
        done = await operation.finish(plan, moved, DrainHooks(losses=lambda: record))
        self._removed |= {*done.cookies_deleted}
        self._oracle.note(actor, f"decommissioned {' '.join(lost)}: {done.refusal or 'done'}")

    async def _bring_back(self, bookie_ids: Sequence[str], seconds: float) -> None:
        """With their disks, and their cookies, which ``bkctl cookie create`` makes again if they were deleted."""
        await self._cluster.clock.sleep(seconds)
        for bookie_id in bookie_ids:
            store = await self._cluster.connect(f"operator-{bookie_id}")
            cookies = CookieStore(store, ROOT)
            if bookie_id in self._removed and await cookies.find(bookie_id) is None:
                await cookies.create(
                    Cookie(bookie_id=bookie_id, journal_directories=("/j",), ledger_directories=("/l",))
                )
                await note_back(RecoveryNotes(store, ROOT), bookie_id)
            self._oracle.note(bookie_id, "is back")
            await self._cluster.bookies[bookie_id].start()
            await store.close()

    async def check_whole(self) -> None:
        """What a check calls whole can be read, but for the losses that were accepted."""
        store = await self._cluster.connect("check")
        ports = await self._cluster.ports(store)
        live = (await ports.registrations.snapshot()).live
        given_up = await read_given_up(RecoveryNotes(store, ROOT))
        checker = LedgerChecker(ports, live, self._config, given_up=given_up)
        for ledger_id, metadata in [*self._oracle.ledgers.items()]:
            if metadata.is_closed and (await checker.check(ledger_id)).is_clean:
                self._oracle.check_readable(ledger_id, live)
        await store.close()
