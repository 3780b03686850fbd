"""One run of the explorer: who acts on the cluster, and when. See ``tests.sim.explorer``."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, NamedTuple

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.worker import Worker
from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.config import OpenLedgers, Policy, ReplicationConfig
from bkctl.runtime.replication.run.decommission import Decommission
from bkctl.runtime.replication.run.drain import DrainHooks
from bkctl.runtime.replication.run.mark_repair import MarkRepair
from bkctl.runtime.replication.run.recovery import BookieRecovery
from bkctl.storage.adapters.sqlite import memory_database
from bkctl.storage.errors import BkctlError
from tests.runtime.client.fakes import credentials, payload
from tests.runtime.replication.samples import ledger
from tests.sim.loop import VirtualClock
from tests.sim.losses import Losses
from tests.sim.oracle import Oracle
from tests.sim.watched_cluster import ROOT, Blind, BlindRecovery, BlindRegistrations, ProcessStore, WatchedCluster

SHAPES = (*4 * ((2, 1, 1),), (3, 2, 2), (2, 2, 2), (3, 2, 1), (1, 1, 1))
"""Ensemble, write quorum, ack quorum."""
LOSSES_SHARE = 0.12
"""Of the runs, in which operators accept losses."""
RUN_S_MAX = 240.0
QUIET_S = 40.0
CONFIG = ReplicationConfig(
    attempts_max=4,
    backoff_first_s=0.1,
    backoff_max_s=1.0,
    silence_pause_s=2.0,
    late_copy_wait_s=0.2,
    lock_wait_s=5.0,
    lock_poll_s=0.5,
    registration_wait_s=12.0,
    metadata_outage_max_s=60.0,
    open_ledger_wait_s=3.0,
)


class Outcome(NamedTuple):
    """Result of one seed. ``violation`` None: everything held."""

    seed: int
    violation: str | None
    trace: tuple[str, ...]
    finished: tuple[str, ...]
    """Kinds of the commands that reported success."""
    checks: int

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed}: {self.violation or 'all held'}", *self.trace))


class _Order(NamedTuple):
    """A command to run. ``kind``: recover, drain, decommission."""

    kind: str
    bookie_ids: tuple[str, ...]
    is_dead: bool
    """Whether the bookies die before it begins."""
    begin_s: float
    killed_after_s: float | None
    open_ledgers: OpenLedgers


class Exploration:
    """One run."""

    def __init__(self, seed: int, blind: Blind) -> None:
        self._seed = seed
        self._blind = blind
        self._plan = random.Random(seed)
        self.oracle = Oracle()
        self.finished: list[str] = []
        self._loss_plan = random.Random(f"losses {seed}")
        self._has_losses = self._loss_plan.random() < LOSSES_SHARE
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> Outcome:
        asyncio.get_running_loop().set_exception_handler(self._on_error)
        clock = VirtualClock(self._seed)
        self._clock, self._cluster = clock, WatchedCluster(clock, self.oracle, self.oracle.note)
        self.oracle.cluster = self._cluster
        own = await self._cluster.connect("setup")
        await init_cluster(own, ROOT, LedgerTree.HIERARCHICAL, random.Random(1))
        plan = self._plan
        self._ids = [f"b{number}" for number in range(1, plan.choice((4, 5, 5, 5, 6, 6)) + 1)]
        await self._cluster.add_bookies(self._ids, own)
        ports = await self._cluster.ports(own)
        for _ in range(plan.randint(1, 3)):
            await self._store_ledger(ports)
        self._is_rough = plan.random() < 0.25
        self._focus = plan.choice(list(self.oracle.ledgers))
        self._set_faults()
        try:
            await self._run_all()
        finally:
            for task in self._tasks:
                task.cancel()
            for store in self._cluster.stores:
                store.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._cluster.close()
        oracle = self.oracle
        return Outcome(self._seed, oracle.violation, tuple(oracle.trace), tuple(self.finished), oracle.checks)

    async def _run_all(self) -> None:
        plan = self._plan
        has_workers = plan.random() < 0.4
        self._lost = self._lose_a_bookie() if has_workers else None
        orders = self._orders()
        commands = [self._start(self._command(number, order)) for number, order in enumerate(orders)]
        losses = Losses(self._cluster, self.oracle, self._loss_plan, CONFIG)
        if self._has_losses:
            ids = [each for each in self._ids if each != self._lost]
            commands.append(self._start(losses.run(ids, self._start, self._replace)))
        if plan.random() < 0.4:
            self._start(self._writer())
        if has_workers:
            self._start(self._worker())
            self._start(self._auditor())
        if plan.random() < 0.6:
            self._start(self._trouble())
        violated = self._start(self._wait_violated())
        done = asyncio.gather(*commands)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RUN_S_MAX):
                await asyncio.wait((violated, done), return_when=asyncio.FIRST_COMPLETED)
        if self.oracle.violation is None and has_workers:
            await asyncio.wait((violated,), timeout=QUIET_S)
            self.oracle.check_marks()
        if self.oracle.violation is None and self._has_losses:
            await losses.check_whole()
        for task in self._tasks:
            if task.done() and not task.cancelled() and not isinstance(task.exception(), BkctlError | None):
                self.oracle.violate(f"unexpected error: {task.exception()!r}")

    def _on_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that no task handles."""
        if not isinstance(context.get("exception"), BkctlError | asyncio.CancelledError):
            self.oracle.violate(f"unexpected error: {context.get('exception')!r}: {context['message']}")

    async def _wait_violated(self) -> None:
        await self.oracle.violated.wait()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    # -- the cluster ----------------------------------------------------------------------------------------------

    async def _store_ledger(self, ports: ClientPorts) -> None:
        plan = self._plan
        size, write_quorum, ack_quorum = plan.choice([each for each in SHAPES if each[0] < len(self._ids)])
        starts = [0] if plan.random() < 0.6 else [0, plan.randint(1, 3)]
        last_entry_id = starts[-1] + plan.randint(1, 4)
        segments: dict[int, Sequence[str]] = {start: plan.sample(self._ids, size) for start in starts}
        is_open = plan.random() < (0.6 if self._has_losses else 0.1)
        metadata = ledger(segments, write_quorum, ack_quorum, last_entry_id=last_entry_id, length=100)
        if is_open:
            metadata = ledger(segments, write_quorum, ack_quorum, state=LedgerState.OPEN)
        ledger_id, _ = await ports.ledgers.create(metadata)
        codec = credentials(ledger_id).codec
        for entry_id in range(last_entry_id + 1):
            body = codec.encode(entry_id, entry_id - 1, 10 * (entry_id + 1), payload(entry_id))
            ensemble = metadata.segment_of(entry_id).ensemble
            for index in write_set(entry_id, size, write_quorum):
                disk = self._cluster.bookies[ensemble[index]].disk
                disk.entries.setdefault(ledger_id, {})[entry_id] = body
            self.oracle.acknowledge(ledger_id, entry_id)

    def _set_faults(self) -> None:
        plan, cluster = self._plan, self._cluster
        cluster.bookie_faults.slow = plan.choice((0.1, 0.25, 0.25, 0.4))
        slow = [each for each in range(len(self.oracle.ledgers) + 2) if plan.random() < 0.25]
        cluster.bookie_faults.slow_ledgers = frozenset((self._focus, *slow))
        cluster.bookie_faults.lost_answers = plan.choice((0.0, 0.0, 0.05))
        cluster.process_faults.slow = plan.choice((0.0, 0.0, 0.05))
        cluster.process_faults.lost_answers = plan.choice((0.0, 0.0, 0.02))
        cluster.process_faults.decisive = plan.choice((0.0, 0.0, 0.3))
        if self._is_rough:
            cluster.process_faults.lost_answers, cluster.process_faults.decisive = 0.05, 0.4

    def _lose_a_bookie(self) -> str | None:
        """A bookie that no command is about dies, and does not return."""
        bookie_id = self._plan.choice(self._ids)
        if not self._survives({bookie_id}):
            return None
        self.oracle.note(bookie_id, "dies")
        self._cluster.bookies[bookie_id].crash(self._plan.uniform(0.0, 5.0))
        return bookie_id

    def _orders(self) -> list[_Order]:
        plan, lost = self._plan, self._lost
        free = [each for each in self._ids if each != lost]
        plan.shuffle(free)
        ledgers = list(self.oracle.ledgers.values())
        size = self.oracle.ledgers[self._focus].ensemble_size
        orders: list[_Order] = []
        members = sorted(self.oracle.ledgers[self._focus].bookies())
        dead = set[str]() if lost is None else {lost}
        for number in range(plan.choice((1, 2, 2, 2, 3))):
            count = min(plan.choice((1, 2, 2, 2)), len(free) - size)
            if count < 1:
                break
            if number > 0 and plan.random() < 0.3:
                members = sorted(plan.choice(ledgers).bookies())
            # Later commands prefer bookies that the copies of the first one may go to.
            is_preferred = (number == 0) if plan.random() < 0.8 else plan.random() < 0.5
            free.sort(key=lambda each: (each in members) is not is_preferred)
            chosen = tuple(free[:count])
            free = [each for each in free if each not in chosen]
            is_dead = plan.random() < (0.5 if number == 0 else 0.2) and self._survives(dead.union(chosen))
            kinds = ("recover", "recover", "decommission") if is_dead else ("drain", *3 * ("decommission",))
            dead.update(chosen if is_dead else ())
            killed_after_s = plan.uniform(0.0, 10.0) if plan.random() < (0.5 if self._is_rough else 0.1) else None
            policy, begin_s = plan.choice(tuple(OpenLedgers)), number * plan.uniform(0.0, 4.0)
            orders.append(_Order(plan.choice(kinds), chosen, is_dead, begin_s, killed_after_s, policy))
        return orders

    def _survives(self, dead: set[str]) -> bool:
        """Whether each entry has a copy elsewhere."""
        return all(
            not dead.issuperset(ensemble[index] for index in write_set(entry_id, *sizes))
            for each in self.oracle.ledgers.values()
            for sizes in ((each.ensemble_size, each.write_quorum_size),)
            for ensemble in (segment.ensemble for segment in each.segments)
            for entry_id in range(each.ensemble_size)
        )

    # -- commands -------------------------------------------------------------------------------------------------

    async def _command(self, number: int, order: _Order) -> None:
        """Run it up to three times, after kills and if it leaves something."""
        await self._clock.sleep(order.begin_s)
        killed_after_s = order.killed_after_s
        for bookie_id in order.bookie_ids if order.is_dead else ():
            self._cluster.bookies[bookie_id].crash(self._plan.choice((0.0, 3.0)))
        for attempt in (1, 2, 3):
            actor = f"{order.kind}-{number}.{attempt}"
            self.oracle.note(actor, f"begins: {order.kind} {' '.join(order.bookie_ids)}")
            store = await self._cluster.connect(actor, blind=self._blind)
            work = asyncio.create_task(self._attempt(actor, store, order))
            self._tasks.append(work)
            await asyncio.wait((work,), timeout=killed_after_s)
            if not work.done():
                self.oracle.note(actor, "is killed")
                self.oracle.unreliable_s[actor] = self.oracle.now_s()
                self._cluster.kill(store, self._plan.choice((0.0, 5.0)))
                work.cancel()
                await self._clock.sleep(self._plan.uniform(0.0, 3.0))
                killed_after_s = self._plan.choice((None, self._plan.uniform(0.0, 10.0)))
                continue
            await store.close()
            if work.result() is None:
                return
            self.oracle.note(actor, f"leaves something: {work.result()}")
            await self._clock.sleep(self._plan.uniform(0.0, 5.0))

    async def _replace(self, bookie_ids: Collection[str], is_dead: bool) -> None:
        kind = self._loss_plan.choice(("recover", "decommission") if is_dead else ("drain", "decommission"))
        policy = self._loss_plan.choice(tuple(OpenLedgers))
        await self._command(len(self.finished), _Order(kind, tuple(bookie_ids), is_dead, 0.0, None, policy))

    async def _attempt(self, actor: str, store: ProcessStore, order: _Order) -> str | None:
        """None: the command reports success. Otherwise the reason."""
        ports = await self._cluster.ports(store)
        cookies = CookieStore(store, ROOT)
        locks = ReplicationLocks(store, ROOT, actor)
        parts = (ports, cookies, locks, Policy(config=CONFIG, open_ledgers=order.open_ledgers))
        kind = BlindRecovery if Blind.LOOKS in self._blind else BookieRecovery
        recovery = kind(*parts, open_database=memory_database)
        if isinstance(recovery, BlindRecovery):
            recovery.blind = BlindRegistrations(store, self._clock)
        try:
            if order.kind == "recover":
                return await self._recover(actor, recovery, order)
            marks = MarkRepair(ports, store, locks, CONFIG)
            return await self._leave(actor, Decommission(recovery, cookies, ports), recovery, marks, order)
        except BkctlError as error:
            return f"{type(error).__name__}: {error}"

    async def _recover(self, actor: str, recovery: BookieRecovery, order: _Order) -> str | None:
        oracle = self.oracle
        await recovery.require_down(order.bookie_ids)
        known = {each for bookie_id in order.bookie_ids for each in oracle.named_by(bookie_id)}
        plan = await recovery.plan(order.bookie_ids)
        report = await recovery.run(plan)
        if not report.is_complete:
            return "; ".join(f"ledger {each.ledger_id}: {each.detail}" for each in report.failures)
        began = [each for each in order.bookie_ids if each in oracle.gone_since_s]
        oracle.check_promise(actor, began, known)
        self._succeed(actor, order)
        return None

    async def _leave(
        self,
        actor: str,
        operation: Decommission,
        recovery: BookieRecovery,
        marks: MarkRepair,
        order: _Order,
    ) -> str | None:
        """The steps of ``bkctl.commands.bookie.leaving``."""
        is_drain_only = order.kind == "drain"
        plan = await operation.plan(order.bookie_ids)
        await recovery.require_down(sorted(set(plan.bookie_ids) - plan.live))
        live = [self._cluster.bookies[each] for each in sorted(plan.live)]
        for bookie in live:
            await bookie.set_read_only()
        if await operation.watch.wait_until_none(lambda found: found.writable, sorted(plan.live), 10.0):
            return "a bookie stays writable"
        moved = await operation.move(plan, 10.0, DrainHooks())
        drained = await operation.report(plan, moved, is_drain_only=is_drain_only)
        if is_drain_only and drained.is_complete:
            self.oracle.check_promise(actor, plan.bookie_ids)
            self._succeed(actor, order)
            return None
        if is_drain_only or not drained.is_complete:
            return drained.refusal
        for bookie in live:
            await bookie.stop()
        if self._plan.random() < 0.1:
            for bookie_id in order.bookie_ids:
                self._start(self._return_later(bookie_id, self._plan.uniform(0.0, 2.0)))
        if await operation.watch.wait_until_none(lambda found: found.serving, sorted(plan.live), 10.0):
            return "a bookie stays registered"

        async def clear_marks() -> None:
            for bookie_id in plan.bookie_ids:
                judged = await marks.examine(ForeignNames(), missing=bookie_id)
                clearable = [each for each in judged if each.verdict.is_clearable]
                await marks.clear(clearable, lambda _: None, lambda *_: None)

        report = await operation.finish(plan, moved, DrainHooks(clear_marks=clear_marks))
        if not report.is_complete:
            return report.refusal
        self.oracle.retire(actor, plan.bookie_ids)
        self._succeed(actor, order)
        return None

    def _succeed(self, actor: str, order: _Order) -> None:
        self.oracle.note(actor, "reports success")
        self.finished.append(order.kind)

    # -- everybody else -------------------------------------------------------------------------------------------

    async def _return_later(self, bookie_id: str, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self.oracle.note(bookie_id, "is started again")
        await self._cluster.bookies[bookie_id].start()

    async def _writer(self) -> None:
        plan, clock = self._plan, self._clock
        store = await self._cluster.connect("writer")
        client = LedgerClient(await self._cluster.ports(store), store)
        while True:
            try:
                size, write_quorum, ack_quorum = plan.choice(SHAPES)
                writer = await client.create(
                    ensemble_size=size, write_quorum_size=write_quorum, ack_quorum_size=ack_quorum, password=b"sesame"
                )
                for _ in range(plan.randint(1, 5)):
                    entry_id = await writer.append(b"x" * 10)
                    self.oracle.acknowledge(writer.ledger_id, entry_id)
                    await clock.sleep(plan.uniform(0.0, 2.0))
                if plan.random() < 0.7:
                    await writer.close()
            except BkctlError as error:
                self.oracle.note("writer", f"fails: {error}")
            await clock.sleep(plan.uniform(0.5, 10.0))

    async def _worker(self) -> None:
        """A worker; it is killed now and then, and another one begins."""
        plan, number = self._plan, 0
        while True:
            number += 1
            actor = f"worker-{number}"
            store = await self._cluster.connect(actor, blind=self._blind)
            ports = await self._cluster.ports(store)
            config = AutorecoveryConfig(failed_ledger_pause_first_s=2.0, failed_ledger_pause_max_s=10.0)
            worker = Worker(ports, store, config, CONFIG, holder=actor)
            store.on_session_lost(lambda actor=actor: self._distrust(actor))  # type: ignore[misc]
            serving = asyncio.create_task(worker.serve())
            self._tasks.append(serving)
            try:
                await self._clock.sleep(plan.uniform(5.0, 120.0))
            finally:
                self._distrust(actor)
                self._cluster.kill(store, 0.0)
                serving.cancel()

    def _distrust(self, actor: str) -> None:
        self.oracle.unreliable_s[actor] = self.oracle.now_s()

    async def _auditor(self) -> None:
        """Marks the ledgers of bookies that are gone for some time."""
        store = await self._cluster.connect("auditor")
        ports = await self._cluster.ports(store)
        marks = UnderReplicationMarks(store, ROOT, self._clock)
        marked: set[str] = set()
        while True:
            await self._clock.sleep(2.0)
            self.oracle.check_marks()
            long_ago_s = self.oracle.now_s() - 4.0
            missing = {each for each, since_s in self.oracle.gone_since_s.items() if since_s < long_ago_s}
            marked &= missing
            if missing <= marked:
                continue
            with contextlib.suppress(BkctlError):
                async for ledger_id, found in ports.ledgers.read_all():
                    if isinstance(found, Versioned) and (lost := sorted(missing & found.value.bookies())):
                        await marks.mark(ledger_id, lost)
                marked = missing

    async def _trouble(self) -> None:
        """Bookies crash and return, sessions end."""
        plan, clock, cluster = self._plan, self._clock, self._cluster
        for _ in range(plan.randint(1, 4)):
            await clock.sleep(plan.uniform(0.0, 8.0))
            bookie = cluster.bookies[plan.choice([each for each in self._ids if each != self._lost])]
            choice = plan.random()
            if choice < 0.4:
                self.oracle.note(bookie.bookie_id, "crashes")
                bookie.crash(plan.choice((0.0, 2.0, 6.0)))
                self._start(self._return_later(bookie.bookie_id, plan.uniform(7.0, 20.0)))
            elif choice < 0.6:
                self.oracle.note(bookie.bookie_id, "loses its session")
                bookie.lose_session()
            else:
                store = plan.choice(cluster.stores)
                self.oracle.note(store.actor, "loses its session")
                self._distrust(store.actor)
                cluster.server.end_session(store.session_id)
