"""Maintenance of bookies: the notes, and the delay of Java's auditor; stopped after each of its writes."""

from __future__ import annotations

import pytest

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.maintenance import (
    DelayAtEnd,
    Maintenance,
    delay_at_end,
    delay_to_set,
    end_maintenance,
    list_maintenance,
    start_maintenance,
)
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import RecoveryDelay, ReplicationSwitches
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore

A, B = "b1:3181", "b2:3181"
NOTE = MaintenanceNote(start_ms=1, end_ms=1000, user="ann", stored_delay_s=20, set_delay_s=1800)


async def delay_node(store: ZooKeeperStore, root: str) -> tuple[bytes, int]:
    """Contents and version: a write of the value that is there raises the version."""
    node = await store.get(Paths(root).lost_bookie_recovery_delay)
    return node.data, node.stat.version


async def cluster(store: ZooKeeperStore, root: str) -> tuple[RecoveryNotes, ReplicationSwitches, RecoveryDelay]:
    await store.create(root, make_parents=True)
    switches = ReplicationSwitches(store, root)
    await switches.set_recovery_delay(20)
    delay = await switches.recovery_delay()
    assert delay is not None
    return RecoveryNotes(store, root), switches, delay


@pytest.mark.parametrize(
    ("current_s", "duration_s", "expected"),
    [(0, 1800.0, 1800), (20, 0.5, None), (1800, 1800.0, None), (1799, 1799.5, 1800), (0, 1e12, 2**31 - 1)],
)
def test_the_delay_is_raised_only_if_it_is_too_short(current_s: int, duration_s: float, expected: int | None) -> None:
    assert delay_to_set(RecoveryDelay(current_s, 0), duration_s) == expected
    assert delay_to_set(None, duration_s) is None


@pytest.mark.parametrize(
    ("note", "current_s", "expected"),
    [
        (NOTE, 1800, DelayAtEnd.RESTORED),
        (NOTE, 20, DelayAtEnd.IS_RESTORED),
        (NOTE, 7, DelayAtEnd.CHANGED_SINCE),
        (NOTE, None, DelayAtEnd.NOT_CHANGED),
        (None, 20, DelayAtEnd.NOT_CHANGED),
        (MaintenanceNote(start_ms=1, end_ms=2, user="ann"), 20, DelayAtEnd.NOT_CHANGED),
    ],
)
def test_the_delay_at_the_end(note: MaintenanceNote | None, current_s: int | None, expected: DelayAtEnd) -> None:
    current = None if current_s is None else RecoveryDelay(current_s, 3)
    assert delay_at_end(note, current) is expected


async def test_start_and_end(store: ZooKeeperStore, root: str) -> None:
    notes, switches, delay = await cluster(store, root)
    await start_maintenance(notes, switches, [A], NOTE, delay)
    assert await delay_node(store, root) == (b"1800", 1)
    [found] = await list_maintenance(notes)
    assert (found.bookie_id, found.note, found.is_overdue(1000), found.is_overdue(1001)) == (A, NOTE, False, True)
    assert await end_maintenance(notes, switches, found) is DelayAtEnd.RESTORED
    assert await delay_node(store, root) == (b"20", 2)
    assert await list_maintenance(notes) == []


async def test_only_one_of_several_bookies_stores_the_delay(store: ZooKeeperStore, root: str) -> None:
    notes, switches, delay = await cluster(store, root)
    await start_maintenance(notes, switches, [A, B], NOTE, delay)
    stored = {each.bookie_id: each.note and each.note.stored_delay_s for each in await list_maintenance(notes)}
    assert stored == {A: 20, B: None}


async def test_a_crash_after_the_note_at_the_start(store: ZooKeeperStore, root: str) -> None:
    notes, switches, _ = await cluster(store, root)
    await notes.maintenance.add(A, NOTE)
    [left] = await list_maintenance(notes)
    assert await end_maintenance(notes, switches, left) is DelayAtEnd.IS_RESTORED
    assert await delay_node(store, root) == (b"20", 0), "writing the value that is there would trigger an audit"
    assert await list_maintenance(notes) == []


async def test_a_crash_after_the_delay_at_the_end(store: ZooKeeperStore, root: str) -> None:
    notes, switches, delay = await cluster(store, root)
    await start_maintenance(notes, switches, [A], NOTE, delay)
    await switches.set_recovery_delay(20)
    version = (await delay_node(store, root))[1]
    [left] = await list_maintenance(notes)
    assert await end_maintenance(notes, switches, left) is DelayAtEnd.IS_RESTORED
    assert await delay_node(store, root) == (b"20", version)
    assert await list_maintenance(notes) == []


async def test_two_operators_at_once(store: ZooKeeperStore, root: str) -> None:
    notes, switches, delay = await cluster(store, root)
    await start_maintenance(notes, switches, [A], NOTE, delay)
    with pytest.raises(ConflictError, match=f"the maintenance of bookie {A} has been started already"):
        await start_maintenance(notes, switches, [B, A], NOTE, delay)
    with pytest.raises(ConflictError, match="the recovery delay was changed meanwhile"):
        await start_maintenance(notes, switches, [B], NOTE, delay)
    assert [each.bookie_id for each in await list_maintenance(notes)] == [A], "the losers leave nothing"
    assert await delay_node(store, root) == (b"1800", 1)


async def test_an_unreadable_note_ends_without_touching_the_delay(store: ZooKeeperStore, root: str) -> None:
    notes, switches, _ = await cluster(store, root)
    await store.create(notes.maintenance.path_of(A), b"junk", make_parents=True)
    [found] = await list_maintenance(notes)
    assert isinstance(found, Maintenance)
    assert found.note is None
    assert found.problem is not None
    assert found.is_overdue(0)
    assert await end_maintenance(notes, switches, found) is DelayAtEnd.NOT_CHANGED
    assert (await list_maintenance(notes), await delay_node(store, root)) == ([], (b"20", 0))
