"""What shows that the metadata is older than it was, and what does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bkctl.runtime.bookie.collection.forward_proof import ForwardProof, find_older, is_older_copy
from bkctl.runtime.errors import LedgerNotFoundError, MetadataError, MetadataUnavailableError, NoNodeError
from bkctl.runtime.metadata.ledgers.ids import LedgerIdGenerator
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.recovery_notes import CollectionNote, RecoveryNotes
from bkctl.runtime.metadata.store import MetadataStore, Node, NodeStat
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.filenames import METADATA_SEEN
from bkctl.storage.metadata_seen import MetadataSeen, newest, read_copies
from tests.counting_store import CountingStore
from tests.runtime.bookie.collection.test_ledgers import OWN_ID, Bookie, bookie, hooked_ledgers, tree
from tests.runtime.metadata.conftest import root, store
from tests.storage.engines import checkpoint

__all__ = ["bookie", "root", "store", "tree"]

SEEN = MetadataSeen(bookie_id="own:3181", zxid=100, step=5)
RESTORED = CollectionNote(step=9, restored="2026-01-31T12:00:00Z")


@pytest.mark.parametrize(
    ("seen", "note", "zxid", "reason"),
    [
        (None, None, 0, None),
        (None, CollectionNote(step=7), 0, None),
        (SEEN, CollectionNote(step=5), 100, None),
        (SEEN, CollectionNote(step=6), 1 << 32, None),
        (SEEN, CollectionNote(step=4), 1 << 32, "has note 4"),
        (SEEN, None, 1 << 32, "has note 0"),
        (SEEN, CollectionNote(step=6), 99, "0x63"),
        (SEEN, RESTORED, 101, "the backup of 2026"),
        (None, RESTORED, 101, "the backup of 2026"),
        (msgspec.structs.replace(SEEN, bookie_id="former:3181"), None, 101, None),
        (msgspec.structs.replace(SEEN, suspect=12), CollectionNote(step=6), 101, "ledger 12"),
    ],
)
def test_the_rule(seen: MetadataSeen | None, note: CollectionNote | None, zxid: int, reason: str | None) -> None:
    found = find_older(seen, note, "own:3181", zxid)
    assert (found is None) is (reason is None)
    assert (reason or "") in (found or "")


def again(bookie: Bookie, store: MetadataStore | None = None) -> ForwardProof:
    """The proof of the same bookie after a restart."""
    return ForwardProof(
        *(store or bookie.store, bookie.root, OWN_ID, OsFileSystem(), directories(bookie)),
        *(bookie.workers, LoopClock(), bookie.metrics, lambda: sorted(bookie.local_ids())),
    )


def directories(bookie: Bookie) -> list[str]:
    return [engine.ledger_directory for engine in bookie.storage.engines]


async def give(bookie: Bookie, count: int) -> list[int]:
    """Let the cluster's counter give ids."""
    generator = LedgerIdGenerator(bookie.store, bookie.root, bookie.ledgers.tree)
    return [await generator.next_id() for _ in range(count)]


async def test_an_id_that_was_not_given_yet_stops_all_until_an_operator_confirms(bookie: Bookie) -> None:
    await give(bookie, 10)
    bookie.store_locally(6, 9, 10, 11)
    with pytest.raises(MetadataError, match=r"ledger 11 is here.* bkctl bookie gc confirm own:3181"):
        await bookie.collect()
    assert (bookie.local_ids(), bookie.metrics.deletion_stopped) == ({6, 9, 10, 11}, 1)
    note = await RecoveryNotes(bookie.store, bookie.root).collection.find(OWN_ID)
    assert note is not None
    assert "ledger 11" in note.value.stopped
    await give(bookie, 10)  # new ledgers use these ids again
    restarted = again(bookie)
    await restarted.begin()
    assert restarted.stopped is not None
    assert restarted.stopped.since_ms == note.value.stopped_ms
    confirmed = await bookie.proof.confirm()
    assert confirmed is not None
    assert bookie.metrics.deletion_stopped == 0
    assert await bookie.collect() == 4
    checkpoint(bookie.storage)


class LaggingServer(CountingStore):
    """Until a sync it answers as it would have done earlier: without the ids given since, and without some ledgers."""

    def __init__(self, store: MetadataStore, unseen: Sequence[str] = ()) -> None:
        super().__init__(store)
        self._unseen = unseen
        self._earlier: dict[str, NodeStat | None] = {}
        self.is_behind = True

    async def remember(self, path: str) -> None:
        self._earlier[path] = await super().exists(path)

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        now = await super().exists(path, on_change)
        return self._earlier.get(path, now) if self.is_behind else now

    async def get(self, path: str) -> Node:
        if self.is_behind and path in self._unseen:
            raise NoNodeError("no such node", path)
        return await super().get(path)

    async def sync(self, path: str) -> None:
        await super().sync(path)
        self.is_behind = False


@pytest.mark.parametrize("is_given", [True, False])
async def test_a_server_that_lags_behind_is_asked_again_before_an_id_counts_as_not_given(
    bookie: Bookie, is_given: bool
) -> None:
    await bookie.proof.advance()
    await give(bookie, 10)
    await bookie.create(11)
    lagging = LaggingServer(bookie.store, [bookie.ledgers.path(11)])
    await lagging.remember(Paths(bookie.root).short_ids)
    await lagging.remember(bookie.root)
    if is_given:
        await give(bookie, 10)
    proof = again(bookie, lagging)
    await proof.begin()
    lagging.is_behind = True
    ledgers = hooked_ledgers(bookie.ledgers, lagging)  # type: ignore[arg-type]
    assert await _absent(ledgers, 11)
    await proof.require_given(ledgers, [11], 9)
    assert (proof.stopped, lagging.is_behind) == (None, False)
    seen = newest(read_copies(OsFileSystem(), directories(bookie)))
    assert seen is not None
    assert seen.suspect == -1


async def _absent(ledgers: LedgerStore, ledger_id: int) -> bool:
    with contextlib.suppress(LedgerNotFoundError):
        await ledgers.read(ledger_id)
        return False
    return True


async def test_ids_that_clients_choose_stop_nothing(bookie: Bookie) -> None:
    await give(bookie, 10)
    await bookie.create(1000)
    bookie.store_locally(500, 900)
    assert await bookie.collect() == 2
    await bookie.ledgers.delete(1000)
    checkpoint(bookie.storage)
    bookie.store_locally(1000, 8)
    assert await bookie.collect() == 2, "the highest id that clients chose is remembered"


async def test_a_confirmation_holds_for_all_ledgers_that_are_here(bookie: Bookie) -> None:
    await bookie.proof.advance()
    await give(bookie, 4)
    bookie.store_locally(20, 21)
    await RecoveryNotes(bookie.store, bookie.root).collection.put(OWN_ID, RESTORED)
    with pytest.raises(MetadataError, match="the backup of 2026"):
        await bookie.collect()
    await bookie.proof.confirm()
    assert await bookie.collect() == 2


async def test_the_newer_metadata_ends_the_stop_by_itself(bookie: Bookie) -> None:
    notes = RecoveryNotes(bookie.store, bookie.root).collection
    await bookie.proof.advance()
    newer = await notes.find(OWN_ID)
    assert newer is not None
    await notes.put(OWN_ID, CollectionNote(step=newer.value.step - 1))
    for _ in range(2):
        with pytest.raises(MetadataError, match="has note"):
            await bookie.proof.advance()
    await notes.put(OWN_ID, newer.value)
    await bookie.proof.advance()
    assert (bookie.proof.stopped, bookie.metrics.deletion_stopped) == (None, 0)


async def test_a_damaged_record_stops_the_deletion(bookie: Bookie) -> None:
    bookie.store_locally(50)
    for directory in directories(bookie):
        Path(directory, METADATA_SEEN).write_bytes(b"x")
    restarted = again(bookie)
    await restarted.begin()
    assert restarted.stopped is not None
    assert "bkctl.metadata" in restarted.stopped.reason
    await restarted.confirm()
    seen = newest(read_copies(OsFileSystem(), directories(bookie)))
    assert seen is not None
    assert seen.chosen == 50
    assert 0 < seen.zxid <= bookie.store.zxid


async def test_a_new_bookie_does_not_inherit_the_stop_of_a_former_one(bookie: Bookie) -> None:
    for directory in directories(bookie):
        Path(directory, METADATA_SEEN).unlink()
    await RecoveryNotes(bookie.store, bookie.root).collection.put(OWN_ID, RESTORED)
    restarted = again(bookie)
    await restarted.begin()
    assert restarted.stopped is None


async def test_a_bookie_that_may_keep_no_note_collects(bookie: Bookie, zookeeper: EmbeddedZooKeeper) -> None:
    bookie.store_locally(50)
    path = RecoveryNotes(bookie.store, bookie.root).collection.path_of(OWN_ID)
    owner = KazooClient(zookeeper.connect_string, auth_data=[("digest", "other:secret")])
    owner.start()
    try:
        owner.set_acls(path, [make_digest_acl("other", "secret", all=True)])
        for _ in range(2):
            await bookie.proof.advance()
        assert await bookie.collect() == 1
    finally:
        owner.stop()
        owner.close()


async def test_a_new_bookie_that_loses_zookeeper_at_its_start_is_not_stopped_by_that(bookie: Bookie) -> None:
    for directory in directories(bookie):
        Path(directory, METADATA_SEEN).unlink()
    await RecoveryNotes(bookie.store, bookie.root).collection.remove(OWN_ID)
    await again(bookie, LostAtNote(bookie.store)).begin()
    restarted = again(bookie)
    await restarted.begin()
    assert restarted.stopped is None


class LostAtNote(CountingStore):
    """Its connection is lost when the note is written."""

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        raise MetadataUnavailableError("cut off", path)


async def test_a_directory_that_could_not_be_written_is_no_older_copy(bookie: Bookie) -> None:
    """The note must not get two ahead of any directory."""
    await bookie.proof.advance()
    path = Path(directories(bookie)[0], METADATA_SEEN)
    before = path.read_bytes()
    path.unlink()
    path.mkdir()  # a rename over it fails
    for _ in range(3):
        await bookie.proof.advance()
        await again(bookie).begin()
    path.rmdir()
    path.write_bytes(before)
    assert await older_copies(bookie) == []
    for _ in range(2):
        await bookie.proof.advance()
    assert await older_copies(bookie) == []
    path.write_bytes(before)
    assert await older_copies(bookie) == [str(path.parent)]


async def older_copies(bookie: Bookie) -> list[str]:
    note = await RecoveryNotes(bookie.store, bookie.root).collection.find(OWN_ID)
    assert note is not None
    copies = read_copies(OsFileSystem(), directories(bookie))
    assert len(copies) == len(directories(bookie))
    return [directory for directory, seen in copies.items() if is_older_copy(seen, note.value, OWN_ID)]
