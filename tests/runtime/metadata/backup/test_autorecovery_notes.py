"""Autorecovery's notes are outside of the ledgers root, and belong to the cluster all the same."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.backup.archive import ArchiveHeader, ArchiveReader
from bkctl.runtime.metadata.backup.backup import backup_cluster, read_maintenance, survey_notes
from bkctl.runtime.metadata.backup.cluster_format import format_cluster, nuke_cluster, require_no_connections
from bkctl.runtime.metadata.backup.restore import ClusterRestore, read_archive, read_restore_target
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.replication.recovery_notes import (
    DaemonNote,
    FailedLedgerNote,
    LostBookieNote,
    LostLedgerNote,
    MaintenanceNote,
    RecoveryNotes,
    notes_path,
)
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.runtime.metadata.backup.test_cluster_format import go_on

TREE = LedgerTree.HIERARCHICAL
NOTE = MaintenanceNote(start_ms=1, end_ms=2, user="ann", stored_delay_s=20, set_delay_s=1800)
DAEMON = DaemonNote(
    bookie_id="b1:3181", host="h", pid=7, role="both", started_ms=1, written_ms=2, is_auditor=True, admin=None
)


async def leave_notes(store: ZooKeeperStore, root: str) -> RecoveryNotes:
    """One note of each persistent kind, of a cluster whose delay was raised."""
    await init_cluster(store, root, TREE, random.Random(1))
    await ReplicationSwitches(store, root).set_recovery_delay(1800)
    notes = RecoveryNotes(store, root)
    await notes.deadlines.put("b2:3181", LostBookieNote(lost_ms=1, due_ms=2))
    await notes.losses.put("5", LostLedgerNote(found_ms=1, missing_bookies=("b2:3181",), reason="no copy"))
    failed = FailedLedgerNote(worker="h", attempts=1, first_ms=1, last_ms=1, retry_ms=2, reason="r", detail="d")
    await notes.failures.put("6", failed)
    await notes.maintenance.put("b3:3181", NOTE)
    return notes


async def back_up(store: ZooKeeperStore, root: str, path: Path) -> None:
    maintenance = await read_maintenance(store, root)
    header = ArchiveHeader(root=root, instance_id="i", layout=TREE.value, created="t", maintenance=maintenance)
    await backup_cluster(store, header, TREE, OsFileSystem(), str(path))


async def bring_back(store: ZooKeeperStore, root: str, path: Path) -> None:
    with ArchiveReader(OsFileSystem(), str(path)) as reader:
        archive = await read_archive(reader, LoopClock())
        target = await read_restore_target(store, root, archive)
        restore = ClusterRestore(store, archive, target, before_each=go_on, keep=lambda _path, _node: None)
        async for _ in restore.run(reader):
            pass
        await restore.finish()


async def test_a_plan_counts_the_notes(store: ZooKeeperStore, root: str) -> None:
    assert await survey_notes(store, root) is None
    await leave_notes(store, root)
    found = await survey_notes(store, root)
    assert found is not None
    assert (found.name, found.nodes) == (notes_path(root), 1 + 4 * 2)


async def test_nuke_deletes_the_notes(store: ZooKeeperStore, root: str) -> None:
    await leave_notes(store, root)
    await nuke_cluster(store, root, TREE, before_each=go_on)
    assert await store.exists(notes_path(root)) is None
    assert await store.exists(root) is None


async def test_format_deletes_the_notes_and_restores_the_delay(store: ZooKeeperStore, root: str) -> None:
    await leave_notes(store, root)
    await format_cluster(store, root, TREE, random.SystemRandom(), before_each=go_on)
    assert await store.exists(notes_path(root)) is None
    delay = await ReplicationSwitches(store, root).recovery_delay()
    assert delay is not None
    assert delay.seconds == 20


async def test_format_leaves_a_delay_that_was_set_since(store: ZooKeeperStore, root: str) -> None:
    await leave_notes(store, root)
    await ReplicationSwitches(store, root).set_recovery_delay(60)
    await format_cluster(store, root, TREE, random.SystemRandom(), before_each=go_on)
    delay = await ReplicationSwitches(store, root).recovery_delay()
    assert delay is not None
    assert delay.seconds == 60


async def test_a_running_daemon_is_a_connection(store: ZooKeeperStore, root: str) -> None:
    notes = await leave_notes(store, root)
    await require_no_connections(store, root)
    await notes.daemons.put("1", DAEMON)
    with pytest.raises(RefusedError, match=f"an autorecovery daemon is running and has {notes.daemons.path}/1"):
        await require_no_connections(store, root)
    await notes.daemons.remove("1")
    await store.create(f"{notes.daemons.path}/2", b"of no session")
    await require_no_connections(store, root)


async def test_a_restore_brings_back_maintenance_and_its_delay(
    store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    notes = await leave_notes(store, root)
    await back_up(store, root, tmp_path / "backup")
    await nuke_cluster(store, root, TREE, before_each=go_on)
    await bring_back(store, root, tmp_path / "backup")
    assert await store.children(notes_path(root)) == ["maintenance"]
    found = await notes.maintenance.find("b3:3181")
    assert found is not None
    assert found.value == NOTE
    delay = await ReplicationSwitches(store, root).recovery_delay()
    assert delay is not None
    assert delay.seconds == 1800


async def test_a_restore_into_the_same_cluster_starts_no_maintenance(
    store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    notes = await leave_notes(store, root)
    await store.set(f"{root}/INSTANCEID", b"i", 0)
    await back_up(store, root, tmp_path / "backup")
    await notes.maintenance.remove("b3:3181")
    await bring_back(store, root, tmp_path / "backup")
    assert await notes.maintenance.keys() == []


async def test_an_archive_without_maintenance_is_as_before(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    await init_cluster(store, root, TREE, random.Random(1))
    await back_up(store, root, tmp_path / "backup")
    with gzip.open(tmp_path / "backup") as archive:
        assert b"maintenance" not in archive.read()
