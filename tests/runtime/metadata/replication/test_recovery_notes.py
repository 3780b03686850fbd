"""Notes of autorecovery on a real ZooKeeper."""

from __future__ import annotations

import msgspec
import pytest

from bkctl.runtime.errors import BadVersionError, MetadataFormatError
from bkctl.runtime.metadata.replication.recovery_notes import LostBookieNote, MaintenanceNote, RecoveryNotes, notes_path
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore

ROOT = "/notes/of ledgers"


async def test_notes_are_written_found_replaced_and_removed(store: ZooKeeperStore) -> None:
    deadlines = RecoveryNotes(store, ROOT).deadlines
    assert await deadlines.keys() == []
    assert await deadlines.find("b/1:3181") is None
    first, second = LostBookieNote(lost_ms=1, due_ms=2), LostBookieNote(lost_ms=1, due_ms=9)
    assert await deadlines.add("b/1:3181", first)
    assert not await deadlines.add("b/1:3181", second)
    await deadlines.put("b/1:3181", second)
    await deadlines.put("b2", first)
    assert sorted(await deadlines.keys()) == ["b/1:3181", "b2"]
    found = await deadlines.find("b/1:3181")
    assert found is not None
    assert found.value == second
    with pytest.raises(BadVersionError):
        await deadlines.remove("b/1:3181", found.version - 1)
    await deadlines.remove("b/1:3181", found.version)
    await deadlines.remove("b/1:3181")
    assert [(key, note.value) async for key, note in deadlines.all() if not isinstance(note, MetadataFormatError)] == [
        ("b2", first)
    ]


async def test_garbage_is_named_and_the_rest_is_read(store: ZooKeeperStore) -> None:
    maintenance = RecoveryNotes(store, ROOT).maintenance
    note = MaintenanceNote(start_ms=1, end_ms=2, user="ops")
    await maintenance.put("b1", note)
    await store.create(f"{notes_path(ROOT)}/maintenance/b0", b"junk")
    found = dict([each async for each in maintenance.all()])
    problem = found["b0"]
    assert isinstance(problem, MetadataFormatError)
    assert str(problem).startswith("/bkctl/autorecovery/notes%2Fof%20ledgers/maintenance/b0: note of autorecovery: ")
    stored = found["b1"]
    assert not isinstance(stored, MetadataFormatError)
    assert msgspec.json.encode(stored.value) == msgspec.json.encode(note)
