"""A change under way: its lock, its lines in the audit trail, its trash."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.commands.context import Effect
from bkctl.commands.errors import ChangeCutOffError, PlanShown
from bkctl.commands.safety.gate import TakeLock, is_dead, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.errors import MetadataUnavailableError, RefusedError, SessionExpiredError
from bkctl.runtime.metadata.cluster.operation_lock import (
    OperationHolder,
    OperationLock,
    OperationLockedError,
    acquire_operation_lock,
    lock_bookies,
    operation_lock_path,
    operations_on_bookies,
)
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.commands.safety.conftest import WrittenContext
from tests.runtime.metadata.conftest import CONFIG, connect_in_time, expire, session_of
from tests.runtime.metadata.link import TcpLink
from tests.until import until

MakeContext = Callable[..., WrittenContext]
PLAN = Plan(command="cookie delete", tier=3, root="/change/ledgers", instance_id="i", subject="b1")
LINE = ("cookie", "delete", "b1", "--set", "BK_zkPassword=secret", "--confirm", "b1")


@pytest.fixture
async def store(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[ZooKeeperStore]:
    async with await ZooKeeperStore.connect(zookeeper.connect_string) as store:
        yield store


def confirmed(make_context: MakeContext, **settings: Any) -> WrittenContext:
    return make_context(confirmed_name=PLAN.subject, **settings)


def trail(make_context: WrittenContext) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (make_context.directory / "audit.jsonl").read_text().splitlines()]


async def test_begin_and_end_are_noted(make_context: MakeContext, store: ZooKeeperStore) -> None:
    made = confirmed(make_context, command_line=LINE, context_name="prod", metadata_uri="zk://h/x")
    async with open_change(made.context, PLAN, store) as change:
        assert await store.exists(operation_lock_path(PLAN.root)) is not None
        [begin] = trail(made)
        change.require_lock()
        change.details["deleted"] = 1
        change.result = "partial"
    assert await store.exists(operation_lock_path(PLAN.root)) is None
    begin, end = trail(made)
    assert (begin["event"], end["event"]) == ("begin", "end")
    assert (end["result"], end["details"]) == ("partial", {"deleted": 1})
    for line in (begin, end):
        assert line["operation_id"] == change.operation_id
        assert line["command"] == "cookie delete"
        assert line["command_line"] == [*LINE[:4], "BK_zkPassword=***", *LINE[5:]]
        assert (line["context"], line["metadata_uri"]) == ("prod", "zk://h/x")
        assert (line["root"], line["instance_id"], line["tier"]) == ("/change/ledgers", "i", 3)
        assert line["plan_hash"] == PLAN.plan_hash
        assert line["host"] == socket.gethostname()
        assert line["pid"] == os.getpid()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    assert stat.S_IMODE((made.directory / "audit.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (RefusedError("the reason"), "failed: the reason"),
        (OSError(28, "No space left on device"), "failed: [Errno 28] No space left on device"),
        (ZeroDivisionError("secret"), "failed: ZeroDivisionError"),
        (asyncio.CancelledError(), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
async def test_a_failure_is_noted_too(
    make_context: MakeContext, store: ZooKeeperStore, error: BaseException, result: str
) -> None:
    made = confirmed(make_context)
    with pytest.raises(type(error)):
        async with open_change(made.context, PLAN, store):
            raise error
    assert [line.get("result") for line in trail(made)] == [None, result]
    assert await store.exists(operation_lock_path(PLAN.root)) is None


async def test_without_an_audit_trail_nothing_happens(make_context: MakeContext, store: ZooKeeperStore) -> None:
    made = confirmed(make_context)
    (made.directory / "audit.jsonl").mkdir(parents=True)
    with pytest.raises(RefusedError, match="nothing was changed: cannot write the audit trail"):
        async with open_change(made.context, PLAN, store):
            pytest.fail("it went ahead")
    assert await store.exists(operation_lock_path(PLAN.root)) is None


async def test_a_small_change_is_not_held_up_by_a_trail_that_cannot_be(
    make_context: MakeContext, store: ZooKeeperStore
) -> None:
    """As in a container without a home: creating a cluster must work there."""
    made = make_context(state_directory="", assume_yes=True)
    reversible = msgspec.structs.replace(PLAN, tier=1)
    async with open_change(made.context, reversible) as change:
        change.details["done"] = True
    assert made.err.getvalue().startswith("warning: no audit trail: no directory")
    with pytest.raises(RefusedError):
        async with open_change(made.context, msgspec.structs.replace(PLAN, tier=2), store):
            pytest.fail("it went ahead")


async def test_an_end_that_cannot_be_noted_is_told_and_no_more(
    make_context: MakeContext, store: ZooKeeperStore
) -> None:
    made = confirmed(make_context)
    async with open_change(made.context, PLAN, store):
        (made.directory / "audit.jsonl").unlink()
        (made.directory / "audit.jsonl").mkdir()
    assert "warning: cannot write the end of this operation to the audit trail" in made.err.getvalue()


async def test_a_live_holder_is_not_waited_for(make_context: MakeContext, store: ZooKeeperStore) -> None:
    holder = OperationHolder("cluster nuke", "root", socket.gethostname(), os.getpid())
    async with await acquire_operation_lock(store, PLAN.root, holder):
        with pytest.raises(OperationLockedError, match="cluster nuke"):
            async with open_change(confirmed(make_context).context, PLAN, store):
                pytest.fail("it went ahead")
        async with open_change(confirmed(make_context).context, PLAN) as change:
            change.require_lock()


async def test_another_machine_is_not_waited_for(make_context: MakeContext, store: ZooKeeperStore) -> None:
    async with await acquire_operation_lock(store, PLAN.root, OperationHolder("x", host="elsewhere", pid=1)):
        with pytest.raises(OperationLockedError, match="elsewhere"):
            async with open_change(confirmed(make_context).context, PLAN, store):
                pytest.fail("it went ahead")


async def test_a_killed_holder_is_waited_for(make_context: MakeContext, store: ZooKeeperStore) -> None:
    dead = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    lock = await acquire_operation_lock(
        store, PLAN.root, OperationHolder("cluster nuke", host=socket.gethostname(), pid=int(dead.stdout))
    )
    made = confirmed(make_context)

    async def change() -> None:
        async with open_change(made.context, PLAN, store):
            pass

    waiting = asyncio.ensure_future(change())
    await until(lambda: "waiting for the ZooKeeper session of a killed process" in made.err.getvalue())
    assert not waiting.done()
    await lock.release()
    await waiting


async def test_the_end_of_the_session_ends_the_work(
    make_context: MakeContext, store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper
) -> None:
    async def change_on() -> None:
        async with open_change(confirmed(make_context).context, PLAN, store) as change:
            expire(session_of(store), zookeeper)
            with pytest.raises(MetadataUnavailableError):
                await store.sync("/")
            change.require_lock()

    with pytest.raises(ChangeCutOffError, match="'cookie delete' may be partly done: run it again"):
        await change_on()


async def test_a_share_is_taken_again_after_its_session_ended(
    make_context: MakeContext, store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper
) -> None:
    plan = msgspec.structs.replace(PLAN, command="decommission", root="/shared/ledgers")
    made = confirmed(make_context)
    async with open_change(made.context, plan, store, bookie_ids=["b1"]) as change:
        async with open_change(made.context, plan, store, bookie_ids=["b2"]):
            assert len(await operations_on_bookies(store, plan.root)) == 2
        change.require_lock()
        await change.renew_lock()
        expire(session_of(store), zookeeper)
        with pytest.raises(MetadataUnavailableError):
            await store.sync("/")
        with pytest.raises(SessionExpiredError):
            change.require_lock()
        await change.renew_lock()
        change.require_lock()
        assert [holder.operation for holder in await operations_on_bookies(store, plan.root)] == ["decommission"]
    assert await operations_on_bookies(store, plan.root) == []


DRAIN = msgspec.structs.replace(PLAN, command="bookie drain", root="/drained/ledgers")


@pytest.fixture
async def link(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[TcpLink]:
    link = await TcpLink.open(zookeeper.port)
    yield link
    link.restore()
    await link.close()


@pytest.fixture
async def linked_store(link: TcpLink) -> AsyncIterator[ZooKeeperStore]:
    """Another session, by a link that can be cut."""
    async with await connect_in_time(link.address, CONFIG) as store:
        yield store


async def at_once(take_lock: TakeLock) -> OperationLock:
    """There is no outage at the start."""
    return await take_lock()


async def holders(store: ZooKeeperStore) -> list[OperationHolder]:
    await store.sync("/")
    return await operations_on_bookies(store, DRAIN.root)


async def test_work_that_outlasts_its_session_keeps_its_lock(
    make_context: MakeContext, store: ZooKeeperStore, linked_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper
) -> None:
    made = confirmed(make_context)
    async with open_change(made.context, DRAIN, linked_store, bookie_ids=["b1"], outlast=at_once) as change:
        (holder,) = await holders(store)
        await asyncio.to_thread(expire, session_of(linked_store), zookeeper)
        with pytest.raises(MetadataUnavailableError):
            await linked_store.sync("/")

        async def is_held_again() -> bool:
            return await holders(store) == [holder]

        await until(is_held_again)
        with pytest.raises(SessionExpiredError):
            change.require_lock()  # another command may have had the lock and changed what was read before
        await change.renew_lock()
        change.require_lock()
    assert await holders(store) == []


async def test_work_that_outlasts_its_session_ends_when_another_operation_has_its_bookie(
    make_context: MakeContext,
    store: ZooKeeperStore,
    link: TcpLink,
    linked_store: ZooKeeperStore,
    zookeeper: EmbeddedZooKeeper,
) -> None:
    made = confirmed(make_context)
    other = OperationHolder("recover failed-bookie", "ops", "elsewhere", 17)

    async def drain() -> None:
        async with open_change(made.context, DRAIN, linked_store, bookie_ids=["b1"], outlast=at_once):
            link.cut()
            await asyncio.to_thread(expire, session_of(linked_store), zookeeper)
            async with await lock_bookies(store, DRAIN.root, other, ["b1"]):
                link.restore()
                await asyncio.Event().wait()

    with pytest.raises(OperationLockedError, match="is working on bookie b1: 'recover failed-bookie' by ops"):
        await drain()
    assert trail(made)[-1]["result"].startswith("failed: another operation is working on bookie b1")
    assert await holders(store) == []


async def test_the_entry_of_a_former_session_of_the_same_work_is_waited_for(
    make_context: MakeContext,
    store: ZooKeeperStore,
    link: TcpLink,
    linked_store: ZooKeeperStore,
    zookeeper: EmbeddedZooKeeper,
) -> None:
    """ZooKeeper deletes it only after the session time-out."""
    made = confirmed(make_context)
    async with open_change(made.context, DRAIN, linked_store, bookie_ids=["b1"], outlast=at_once) as change:
        (holder,) = await holders(store)
        link.cut()
        await asyncio.to_thread(expire, session_of(linked_store), zookeeper)
        former = await lock_bookies(store, DRAIN.root, holder, ["b1"])
        link.restore()
        with pytest.raises(MetadataUnavailableError):
            await linked_store.sync("/")
        taking = asyncio.create_task(change.renew_lock())
        for _ in range(10):  # it asks more often than one attempt does
            await linked_store.sync("/")
        assert not taking.done()
        await former.release()
        await taking
        change.require_lock()
        assert await holders(store) == [holder]


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"is_dry_run": True}, PlanShown, "'cookie delete' was only planned"),
        ({"plan_out_path": "plan"}, PlanShown, "'cookie delete' was only planned"),
        ({"is_context_read_only": True}, RefusedError, "'cookie delete' was about to make changes in read-only mode"),
        ({"is_read_only_by_environment": True}, RefusedError, "was about to make changes in read-only mode"),
    ],
)
async def test_no_change_begins_for_a_plan_or_in_read_only_mode(
    make_context: MakeContext,
    store: ZooKeeperStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    error: type[Exception],
    sentence: str,
) -> None:
    """Whatever a command forgets: this is the gate that all of them pass."""
    monkeypatch.chdir(tmp_path)
    made = confirmed(make_context, **settings)
    with pytest.raises(error, match=sentence):
        async with open_change(made.context, PLAN, store):
            pytest.fail("it went ahead")
    assert not made.directory.exists()
    assert await store.exists(operation_lock_path(PLAN.root)) is None


async def test_a_command_does_only_what_it_has_declared(make_context: MakeContext) -> None:
    for effects in ((Effect.LOOKS,), (Effect.SERVES,), (Effect.HARMFUL,), (Effect.HARMFUL, Effect.REVERSIBLE)):
        made = confirmed(make_context)
        made.context.effects = effects
        with pytest.raises(RefusedError, match="without having declared them; this is a bug"):
            async with open_change(made.context, PLAN):
                pytest.fail("it went ahead")
        assert not made.directory.exists()


async def test_a_plan_has_the_name_and_the_effect_of_its_command(make_context: MakeContext) -> None:
    made = make_context(assume_yes=True)
    made.context.effects = (Effect.HARMFUL,)
    async with open_change(made.context, Plan(root="/r", instance_id=None)) as change:
        assert (change.plan.command, change.plan.tier) == ("cookie delete", 2)


def test_only_a_process_of_this_machine_can_be_known_to_be_dead() -> None:
    """A process of the same number on this machine says nothing about one elsewhere."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here, dead = socket.gethostname(), process.pid
    assert is_dead(OperationHolder("cookie delete", host=here, pid=dead))
    with subprocess.Popen(["true"]) as unreaped:
        os.waitid(os.P_PID, unreaped.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(OperationHolder("cookie delete", host=here, pid=unreaped.pid))
    assert not is_dead(OperationHolder("cookie delete", host=f"not-{here}", pid=dead))
    assert not is_dead(OperationHolder("cookie delete", host=here, pid=os.getpid()))
    assert not is_dead(OperationHolder("cookie delete", host=here))


@pytest.mark.parametrize(
    ("held", "needed", "is_in_the_way"),
    [(["b1"], ["b1"], True), (["b2"], ["b1"], False), ([], [], True), ([], ["b1"], False), (["b1"], [], False)],
)
async def test_a_plan_shows_the_operation_that_a_run_would_meet(
    make_context: MakeContext, store: ZooKeeperStore, held: list[str], needed: list[str], is_in_the_way: bool
) -> None:
    other = OperationHolder("recover failed-bookie", "ops", "elsewhere", 17)
    lock = lock_bookies(store, PLAN.root, other, held) if held else acquire_operation_lock(store, PLAN.root, other)
    made = make_context(is_dry_run=True)
    async with await lock:
        with pytest.raises(PlanShown):
            async with open_change(made.context, PLAN, store, bookie_ids=needed):
                pytest.fail("it went ahead")
    found = json.loads(made.out.getvalue())["findings"]
    assert [each["severity"] for each in found] == ["warning"] * is_in_the_way
    assert all(f"another operation is in the way: {other}" in each["finding"] for each in found)
