"""A change looks twice: for the plan, and again in the gate."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bkctl.commands
from bkctl.commands.errors import PlanShown
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.runtime.metadata.cluster.operation_lock import operation_lock_path
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.commands.safety.conftest import WrittenContext

MakeContext = Callable[..., WrittenContext]
PLAN = Plan(
    tier=1, root="/operation/ledgers", instance_id=None, items=({"action": "set", "path": "/a", "expected_version": 3},)
)
OTHER = msgspec.structs.replace(PLAN, items=({"action": "set", "path": "/a", "expected_version": 4},))

_LOOKS, _LOCKED, _NO_PAUSE = "its work looks again", "locked before the first look", "nothing comes between"
OPENS_ITSELF = {
    "bookie/leaving.py": _LOOKS,  # as recover and recover ledger
    "decommission.py": _LOOKS,
    "bookie/undrain.py": _LOOKS,
    "bookie/index.py": _LOOKS,  # the bookie refuses a second rebuild
    "bookie/stop.py": _NO_PAUSE,  # nothing is examined
    "bookie/garbage_collection.py": _NO_PAUSE,  # switches; confirm looks again
    "bookie/log_level.py": _NO_PAUSE,
    "bookie/sanity.py": _NO_PAUSE,
    "recover.py": _LOOKS,
    "recover_ledger.py": _LOOKS,
    "replication_access.py": _LOOKS,
    "ledger/close.py": _LOOKS,
    "ledger/delete.py": _LOOKS,
    "ledger/import_ledgers.py": _LOOKS,
    "ledger/rewrite_bookie.py": _LOOKS,
    "contexts.py": _NO_PAUSE,  # one line of a file, which is read again
    "ledger/write_test.py": _NO_PAUSE,
    "storage/adopt.py": _LOCKED,
    "storage/index.py": _LOCKED,
    "storage/journal.py": _LOCKED,
    "storage/limbo.py": _LOCKED,
    "autorecovery/switches.py": _NO_PAUSE,  # one setting, which the last operator decides
    "autorecovery/repair_marks.py": _LOOKS,
    "cluster/init.py": _NO_PAUSE,
    "cluster/restore.py": _LOOKS,
    "log/append.py": _NO_PAUSE,  # the writer that opened the log last wins
    "log/create.py": _NO_PAUSE,
}
"""Commands that open the gate without ``make_change``, and why they may."""


class Counter:
    """An operation that finds one plan after another, and keeps what it was applied to."""

    def __init__(self, written: WrittenContext, *plans: Plan) -> None:
        self.written = written
        self.plans = list(plans)
        self.looks = 0
        self.applied: list[int] = []

    async def examine(self) -> tuple[Plan, int]:
        self.looks += 1
        self.written.context.console.warn("seen each time")
        if not self.plans:
            raise RefusedError("nothing was changed: it is in use")
        self.written.context.console.warn(f"look {self.looks}")
        return self.plans.pop(0), self.looks

    async def apply(self, change: Change, found: int) -> str:
        self.applied.append(found)
        return change.operation_id

    async def run(self, store: ZooKeeperStore | None = None, **options: Any) -> tuple[int, str | None]:
        return await make_change(self.written.context, self.examine, self.apply, store, **options)


async def test_the_second_look_is_applied_and_no_warning_is_repeated(make_context: MakeContext) -> None:
    operation = Counter(make_context(), PLAN, PLAN)
    found, result = await operation.run()
    assert (found, operation.applied, result is not None) == (2, [2], True)
    assert operation.written.err.getvalue().splitlines() == [
        "warning: seen each time",
        "warning: look 1",
        "warning: look 2",
    ]


async def test_a_plan_that_has_become_another_one_is_not_carried_out(make_context: MakeContext) -> None:
    operation = Counter(make_context(), PLAN, OTHER)
    with pytest.raises(ConflictError, match=r"since the plan was made \(/a: expected_version 3 then, 4 now\): run"):
        await operation.run()
    assert (operation.looks, operation.applied) == (2, [])


async def test_a_cluster_that_was_created_anew_after_the_plan_is_left_alone(
    make_context: MakeContext, zookeeper: EmbeddedZooKeeper
) -> None:
    planned = msgspec.structs.replace(PLAN, instance_id="that of the former cluster")
    operation = Counter(make_context(), planned, planned)  # both plans from one session
    async with await ZooKeeperStore.connect(zookeeper.connect_string) as store:
        with pytest.raises(ConflictError, match="instance id: it says that of the former cluster, now it is None"):
            await operation.run(store)
    assert (operation.looks, operation.applied) == (2, [])


async def test_what_is_refused_at_the_second_look_is_not_carried_out(make_context: MakeContext) -> None:
    operation = Counter(make_context(), PLAN)
    with pytest.raises(RefusedError, match="it is in use"):
        await operation.run()
    assert operation.applied == []
    refused = msgspec.structs.replace(PLAN, refusal="nothing was changed: its bookie is needed now")
    operation = Counter(make_context(), PLAN, refused)
    with pytest.raises(RefusedError, match="its bookie is needed now"):
        await operation.run()
    assert (operation.looks, operation.applied) == (2, [])


async def test_a_rehearsal_and_an_empty_plan_look_once(make_context: MakeContext) -> None:
    operation = Counter(make_context(is_dry_run=True), PLAN)
    with pytest.raises(PlanShown):
        await operation.run()
    empty = Counter(make_context(), msgspec.structs.replace(PLAN, items=(), summary=("nothing to do",)))
    assert await empty.run() == (1, None)
    assert "nothing to do" in empty.written.err.getvalue()
    assert (operation.looks, operation.applied, empty.looks, empty.applied) == (1, [], 1, [])


async def test_the_second_look_is_under_all_locks(make_context: MakeContext, zookeeper: EmbeddedZooKeeper) -> None:
    held: list[tuple[bool, bool]] = []
    in_turn = False

    @contextlib.asynccontextmanager
    async def turn(_: Change) -> AsyncIterator[None]:
        nonlocal in_turn
        in_turn = True
        yield
        in_turn = False

    async with await ZooKeeperStore.connect(zookeeper.connect_string) as store:

        async def examine() -> tuple[Plan, None]:
            held.append((await store.exists(operation_lock_path(PLAN.root)) is not None, in_turn))
            return PLAN, None

        async def apply(_: Change, __: None) -> None:
            assert in_turn

        await make_change(make_context().context, examine, apply, store, turn=turn)
    assert held == [(False, False), (True, True)]
    assert not in_turn


def test_a_new_command_looks_twice() -> None:
    commands = Path(bkctl.commands.__file__).parent
    found = {
        str(path.relative_to(commands))
        for path in commands.rglob("*.py")
        if "open_change(" in path.read_text() and path.parent.name != "safety"
    }
    assert found == set(OPENS_ITSELF), "use make_change, or say here why the gate is enough"
