"""The compare-and-set loop, over a record in memory: every race is spelled out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bkctl.runtime.client.metadata_update import LedgerRecord, LocalCopy, update_record
from bkctl.runtime.errors import BadVersionError, ConflictError, LedgerNotFoundError, MetadataUnavailableError
from bkctl.runtime.ledger.changes import to_in_recovery
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.net.loop import LoopClock
from tests.runtime.client.fakes import Fakes


class Record:
    """A shared number. ``before_write`` runs when a write arrives; what it raises is what the writer sees."""

    name = "the number"

    def __init__(self, value: int) -> None:
        self.stored = Versioned(value, 0)
        self.written: list[int] = []
        self.before_write: Callable[[], None] = lambda: None
        self.after_write: Callable[[], None] = lambda: None

    async def read(self) -> Versioned[int]:
        await asyncio.sleep(0)
        return self.stored

    async def write(self, value: int, expected_version: int) -> Versioned[int]:
        await asyncio.sleep(0)
        self.before_write()
        if self.stored.version != expected_version:
            raise BadVersionError("lost")
        self.set(value)
        self.written.append(value)
        written = self.stored
        self.after_write()
        return written

    def set(self, value: int) -> None:
        self.stored = Versioned(value, self.stored.version + 1)


async def add_one(record: Record, copy: LocalCopy[int], *, below: int = 100, attempts_max: int = 5) -> int:
    return await update_record(
        record,
        copy,
        is_needed=lambda value: value < below,
        transform=lambda value: value + 1,
        clock=LoopClock(seed=1),
        attempts_max=attempts_max,
    )


async def test_an_unneeded_change_writes_nothing() -> None:
    record = Record(7)
    assert await add_one(record, LocalCopy(record.stored), below=7) == 7
    assert record.written == []


async def test_a_conflict_recomputes_from_the_stored_value() -> None:
    record = Record(1)
    copy = LocalCopy(record.stored)
    record.set(50)
    assert await add_one(record, copy) == 51
    assert (copy.value, record.written) == (51, [51])


async def test_a_conflict_may_make_the_change_unneeded() -> None:
    record = Record(1)
    copy = LocalCopy(record.stored)
    record.set(100)
    assert await add_one(record, copy) == 100
    assert record.written == []


async def test_what_the_predicate_raises_ends_the_loop() -> None:
    record = Record(1)
    copy = LocalCopy(record.stored)
    record.set(2)

    def refuse(value: int) -> bool:
        if value == 2:
            raise ConflictError("not two")
        return True

    with pytest.raises(ConflictError, match="not two"):
        await update_record(
            record, copy, is_needed=refuse, transform=lambda value: value, clock=LoopClock(), attempts_max=5
        )


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_lost_answer_is_settled_by_reading_back(is_applied: bool) -> None:
    record = Record(98)
    copy = LocalCopy(record.stored)

    def lose() -> None:
        record.before_write = record.after_write = lambda: None
        raise MetadataUnavailableError("connection lost")

    if is_applied:
        record.after_write = lose
    else:
        record.before_write = lose
    assert await add_one(record, copy, below=99) == 99
    assert record.written == [99]


async def test_a_lagging_read_does_not_take_the_copy_back() -> None:
    record = Record(1)
    copy = LocalCopy(Versioned(5, 4))
    assert not copy.install(record.stored)
    assert not copy.install(Versioned(6, 4))
    assert copy.value == 5
    assert copy.install(Versioned(9, 5))
    assert copy.value == 9


async def test_a_change_that_another_loop_overtook_is_decided_again() -> None:
    """Two loops over one copy: the second finds what the first wrote, and says no."""
    record = Record(0)
    copy = LocalCopy(record.stored)
    assert {*await asyncio.gather(add_one(record, copy, below=1), add_one(record, copy, below=1))} == {1}
    assert record.written == [1]


async def test_two_loops_with_different_changes_both_end_up_applied() -> None:
    record = Record(0)
    copy = LocalCopy(record.stored)

    async def add(amount: int) -> int:
        return await update_record(
            record,
            copy,
            is_needed=lambda value: value % (10 * amount) < amount,
            transform=lambda value: value + amount,
            clock=LoopClock(seed=1),
            attempts_max=5,
        )

    await asyncio.gather(add(1), add(10))
    assert record.stored.value == copy.value == 11


async def test_a_race_that_never_ends_is_given_up() -> None:
    record = Record(0)
    record.before_write = lambda: record.set(record.stored.value)
    with pytest.raises(ConflictError, match="the number: changed by other processes 4 times"):
        await add_one(record, LocalCopy(record.stored), attempts_max=4)
    assert record.written == []


async def test_ledger_metadata_is_such_a_record(fakes: Fakes) -> None:
    ledger_id, metadata = await fakes.create(("b1",), 1, 1)
    record = LedgerRecord(fakes.ledgers, ledger_id)
    copy = LocalCopy(Versioned(metadata, 0))
    changed = await update_record(
        record,
        copy,
        is_needed=lambda value: value.state is LedgerState.OPEN,
        transform=to_in_recovery,
        clock=LoopClock(),
        attempts_max=3,
    )
    assert changed.state is (await record.read()).value.state is LedgerState.IN_RECOVERY
    assert copy.current.version == 1
    with pytest.raises(LedgerNotFoundError):
        await LedgerRecord(fakes.ledgers, ledger_id + 1).read()
