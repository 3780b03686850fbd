"""Answers of the handler over real storage and real lanes; the connection notes what it is told to send."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.bookie.serving.reads import list_entries
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.messages import (
    BatchReadRequest,
    BookieCall,
    ForceLedgerCall,
    ListEntriesCall,
    LongPollRead,
    ReadCall,
    ReadLacCall,
    WriteLacCall,
)
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.journal.format import JournalRecordKind
from bkctl.storage.journal.reader import JournalScan
from tests.runtime.bookie.handler_bookie import Bookie
from tests.storage.engines import KEY, config_below, entry, explicit_lac, open_storage


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    bookie = Bookie(storage, config.journal)
    yield bookie
    await bookie.close()


async def test_nothing_is_denied_while_the_index_may_be_incomplete(bookie: Bookie) -> None:
    bookie.engine.rows.set_master_key(5, KEY)
    bookie.engine.add(5, 0, entry(5, 0))
    bookie.engine.rows.set_master_key(6, KEY)
    questions = {(5, 1): Status.NO_SUCH_ENTRY, (6, -1): Status.NO_SUCH_ENTRY, (7, 0): Status.NO_SUCH_LEDGER}
    for is_unknown in (False, True, False):
        bookie.engine.negatives_are_unknown = is_unknown
        for question, denied in questions.items():
            assert (await bookie.read(*question))[0] is (Status.UNKNOWN_LEDGER_STATE if is_unknown else denied)
        assert (await bookie.read(5, 1, KEY))[0] is (
            Status.UNKNOWN_LEDGER_STATE if is_unknown else Status.NO_SUCH_ENTRY
        )
        unknown = Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_lac(6))[0] is (unknown if is_unknown else Status.NO_SUCH_ENTRY)
        assert (await bookie.read_lac(7))[0] is (unknown if is_unknown else Status.NO_SUCH_LEDGER)
        assert (await bookie.list_entries(5))[0] is (unknown if is_unknown else Status.OK)
        assert (await bookie.list_entries(7))[0] is (unknown if is_unknown else Status.NO_SUCH_LEDGER)
        assert (await bookie.read(5, 0))[:2] == (Status.OK, entry(5, 0))


async def test_a_ledger_in_limbo_tells_no_end_and_takes_an_explicit_lac(bookie: Bookie) -> None:
    bookie.engine.rows.set_master_key(5, KEY)
    bookie.engine.set_explicit_lac(5, explicit_lac(5, 0))
    bookie.engine.set_limbo(5)
    assert (await bookie.read_lac(5)) == (Status.UNKNOWN_LEDGER_STATE, None, None)
    assert await bookie.write_lac(5, 1) is Status.OK
    bookie.engine.clear_limbo(5)
    assert (await bookie.read_lac(5)) == (Status.OK, explicit_lac(5, 1), None)


async def test_what_was_asked_in_limbo_is_not_denied_when_the_answer_comes_behind_it(bookie: Bookie) -> None:
    """The disk was asked before the repair copied the entry there."""
    bookie.engine.rows.set_master_key(5, KEY)
    bookie.engine.set_limbo(5)
    plain = bookie.ask(ReadCall(1, 5, 0, None, False))
    lac = bookie.ask(ReadLacCall(1, 5))
    bookie.engine.clear_limbo(5)
    assert await plain.status() is Status.UNKNOWN_LEDGER_STATE
    assert await lac.status() is Status.UNKNOWN_LEDGER_STATE
    assert (await bookie.read(5, 0))[0] is Status.NO_SUCH_ENTRY


def ids_of(entries: EntryList, up_to: int) -> list[int]:
    return [entry_id for entry_id in range(up_to) if entry_id in entries]


async def test_a_list_holds_what_is_in_caches_and_on_disk(bookie: Bookie) -> None:
    """In parts, while a checkpoint moves entries from the caches to the disk."""
    engine = bookie.engine
    engine.rows.set_master_key(5, KEY)

    def add(*entry_ids: int) -> None:
        for entry_id in entry_ids:
            engine.add(5, entry_id, entry(5, entry_id))

    status, entries = await bookie.list_entries(5)
    assert (status, len(entries)) == (Status.OK, 0)
    add(*range(0, 60, 2), *range(5))
    checkpoint_now(engine)
    add(*range(40, 50), 3)
    job = engine.begin_checkpoint()
    add(*range(90, 99), 1)
    expected = sorted({*range(0, 60, 2), *range(5), *range(40, 50), *range(90, 99)})
    in_parts = asyncio.ensure_future(list_entries(bookie.workers, engine, 5, turn_entry_count_max=7))
    listing = asyncio.ensure_future(bookie.list_entries(5))
    await asyncio.sleep(0)
    done = await asyncio.to_thread(engine.write_checkpoint, job)
    engine.end_checkpoint(job, done)
    listed = await in_parts
    assert listed is not None
    assert ids_of(listed, 120) == expected
    status, entries = await listing
    assert status is Status.OK
    assert ids_of(entries, 120) == expected
    status, entries = await bookie.list_entries(5)
    assert ids_of(entries, 120) == expected
    assert (await bookie.list_entries(6)) == (Status.NO_SUCH_LEDGER, None)


async def test_a_list_of_a_ledger_in_limbo_would_deny_what_is_not_in_it(bookie: Bookie) -> None:
    bookie.engine.rows.create_row(5, is_fenced=True, is_limbo=True)
    assert await bookie.list_entries(5) == (Status.UNKNOWN_LEDGER_STATE, None)


async def test_a_limbo_that_began_after_the_question_counts(bookie: Bookie) -> None:
    """The disk may have answered from an index that was exchanged meanwhile."""
    bookie.engine.rows.set_master_key(5, KEY)
    questions = [bookie.read(5, 0), bookie.read(5, -1), bookie.read_lac(5), bookie.read(5, 0, KEY)]
    asked = [asyncio.ensure_future(question) for question in questions]
    await asyncio.sleep(0)
    bookie.engine.set_limbo(5)
    assert [(await each)[0] for each in asked] == [Status.UNKNOWN_LEDGER_STATE] * len(asked)


async def test_a_ledger_that_is_deleted_and_used_again_meanwhile_is_listed_as_it_is_now(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bookie.engine
    engine.rows.set_master_key(5, KEY)
    for entry_id in range(20):
        engine.add(5, entry_id, entry(5, entry_id))
    checkpoint_now(engine)
    list_stored = engine.stored.list_entries

    def list_and_delete(ledger_id: int, first_entry_id: int = 0, count_max: int | None = None) -> list[int]:
        listed = list_stored(ledger_id, first_entry_id, count_max)
        if engine.delete_count == 0:
            engine.delete_ledger(5)
            engine.rows.set_master_key(5, KEY)
            engine.add(5, 30, entry(5, 30))
        return listed

    monkeypatch.setattr(engine.stored, "list_entries", list_and_delete)
    status, entries = await bookie.list_entries(5)
    assert (status, ids_of(entries, 40)) == (Status.OK, [30])


async def test_an_index_that_cannot_be_read_lists_nothing(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> None:
    bookie.engine.rows.set_master_key(5, KEY)

    def fail(*_: object) -> list[int]:
        raise IndexDamagedError("damaged")

    monkeypatch.setattr(bookie.engine.stored, "list_entries", fail)
    assert await bookie.list_entries(5) == (Status.IO_ERROR, None)


@pytest.mark.parametrize(
    "call",
    [
        ReadCall(1, 5, -1, KEY, False),
        BatchReadRequest(1, 1, 5, 0, 10, 1000, KEY, False),
        LongPollRead(1, 5, 0, -2, 1000, True, False),
        WriteLacCall(1, 5, KEY, explicit_lac(5, 30)),
        ForceLedgerCall(1, 5),
        ListEntriesCall(1, 5),
    ],
    ids=lambda call: type(call).__name__,
)
async def test_a_request_that_fails_by_a_defect_is_answered_and_logged(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: BookieCall
) -> None:
    await bookie.add(5, 30)
    bookie.engine.rows.on_dropped(5)  # the LAC must be read again

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    for owner, name in (
        (bookie.engine, "last_cached"),
        (bookie.engine, "find_cached"),
        (bookie.engine.stored, "list_entries"),
        (GroupCommit, "barrier"),
    ):
        monkeypatch.setattr(owner, name, fail, raising=False)
    assert await asyncio.wait_for(bookie.ask(call).status(), 60) is Status.IO_ERROR
    assert "ledger 5: a request failed" in caplog.text
    assert "a defect" in caplog.text


async def test_h19_no_client_can_forge_a_control_record(bookie: Bookie) -> None:
    """Java journals an add with a negative entry id as it came, and replays it as a fence or a contradicting key."""
    before = bookie.storage.journals[0].durable_position
    for ledger_id, entry_id in (
        (5, -0x2000),
        (5, -0x1000),
        (5, -0x8000),
        (5, -1),
        (-5, 0),
        (5, -(2**63)),
        (2**63 - 1, 0),
    ):
        assert await bookie.add(ledger_id, entry_id) is Status.BAD_REQUEST, (ledger_id, entry_id)
    assert bookie.storage.journals[0].durable_position == before
    assert bookie.engine.rows.find(5) is None


async def test_no_request_creates_a_row_of_an_id_that_no_collection_reaches(bookie: Bookie) -> None:
    assert (await bookie.read(2**63 - 1, 0, KEY))[0] is Status.BAD_REQUEST
    assert await bookie.write_lac(2**63 - 1, 0) is Status.BAD_REQUEST
    assert bookie.engine.rows.find(2**63 - 1) is None


async def test_h3_a_fence_of_an_unknown_ledger_brings_its_key(tmp_path: Path) -> None:
    """It is the first that the bookie hears of the ledger: key record, then fence, in one journal."""
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    bookie = Bookie(storage, config.journal)
    assert (await bookie.read(7, 0, KEY))[0] is Status.NO_SUCH_ENTRY
    journal_id = storage.journals[0].durable_position.journal_id
    await bookie.close()  # without a checkpoint, as a crash would
    path = tmp_path / "journal-0" / "current" / f"{journal_id:x}.txn"
    kinds = [record.kind for record in JournalScan(OsFileSystem(), str(path), is_newest=True)]
    assert kinds == [JournalRecordKind.LEDGER_KEY, JournalRecordKind.FENCE]
    storage = open_storage(config)
    storage.replay()
    row = storage.engine_of(7).rows.find(7)
    assert row is not None
    assert (row.is_fenced, row.master_key) == (True, KEY)
    storage.close()


@pytest.mark.parametrize("version", [4, 5])
async def test_an_explicit_lac_that_cannot_be_journaled_is_not_acknowledged(tmp_path: Path, version: int) -> None:
    """Java says OK, and a crash loses it."""
    config = msgspec.structs.replace(
        config_below(tmp_path), journal=JournalConfig(preallocation_bytes=4096, format_version=version)
    )
    storage = open_storage(config)
    storage.replay()
    bookie = Bookie(storage, config.journal)
    assert await bookie.write_lac(5, 3) is Status.BAD_VERSION
    assert bookie.engine.rows.find(5) is None
    await bookie.close()


async def test_a_fencing_read_that_finds_nothing_waits_for_the_fence_h10(bookie: Bookie) -> None:
    """Java answers "no such entry" at once, and whoever asked counts a fence that a crash may still undo."""
    sync_may_end = threading.Event()
    blocked = bookie.workers.run("journal-0", sync_may_end.wait)
    fence = bookie.fence(5)
    try:
        await asyncio.sleep(0)
        for _ in range(3):  # the reads lane answers in order: the read part of the fencing one is behind us
            assert (await bookie.read(5, 0))[0] is Status.NO_SUCH_ENTRY
        assert not fence.done()
    finally:
        sync_may_end.set()
    await blocked
    assert await fence is Status.NO_SUCH_ENTRY


LAST_ENTRIES = {
    "cache above disk": (3, 7),
    "disk above cache": (7, 3),
    "disk alone": (4, None),
    "cache alone": (None, 4),
}


@pytest.mark.parametrize("case", LAST_ENTRIES)
async def test_the_last_entry_is_the_greater_one_of_cache_and_disk_h8(bookie: Bookie, case: str) -> None:
    """Re-replication adds old entries: the cache may hold a lower one than the disk."""
    on_disk, in_cache = LAST_ENTRIES[case]
    bookie.engine.rows.set_master_key(5, KEY)
    if on_disk is not None:
        bookie.engine.add(5, on_disk, entry(5, on_disk))
        checkpoint_now(bookie.engine)
    if in_cache is not None:
        bookie.engine.add(5, in_cache, entry(5, in_cache))
    last = max(each for each in (on_disk, in_cache) if each is not None)
    assert await bookie.read(5, -1) == (Status.OK, entry(5, last), last - 1)
    assert await bookie.read_lac(5) == (Status.OK, None, entry(5, last))
    assert (await bookie.read(5, -1, KEY))[:2] == (Status.OK, entry(5, last))


async def test_a_ledger_without_entries_has_no_last_one(bookie: Bookie) -> None:
    bookie.engine.rows.set_master_key(5, KEY)
    assert (await bookie.read(5, -1))[:2] == (Status.NO_SUCH_ENTRY, None)
    assert await bookie.read_lac(5) == (Status.NO_SUCH_ENTRY, None, None)
    assert (await bookie.read(5, -1, KEY))[:2] == (Status.NO_SUCH_ENTRY, None)
    bookie.engine.set_explicit_lac(5, explicit_lac(5, 3))
    assert await bookie.read_lac(5) == (Status.OK, explicit_lac(5, 3), None)
    assert (await bookie.read(5, -1))[0] is Status.NO_SUCH_ENTRY


async def test_the_lac_beside_an_entry_is_the_highest_that_was_stored(bookie: Bookie) -> None:
    """Of the caches and of the disk, and whatever entry is asked for."""
    bookie.engine.rows.set_master_key(5, KEY)
    for entry_id in (3, 7):
        bookie.engine.add(5, entry_id, entry(5, entry_id))
    checkpoint_now(bookie.engine)
    bookie.engine.add(5, 4, entry(5, 4))
    for entry_id in (4, 3, 7):  # one in a cache first: that alone does not tell the LAC
        assert await bookie.read(5, entry_id) == (Status.OK, entry(5, entry_id), 6)
    bookie.engine.set_explicit_lac(5, explicit_lac(5, 7))
    assert await bookie.read(5, 3) == (Status.OK, entry(5, 3), 7)
    assert (await bookie.read(5, 5))[0] is Status.NO_SUCH_ENTRY


@pytest.mark.parametrize("last_add_confirmed", [-2, -(2**63)])
async def test_an_entry_with_an_impossible_lac_is_read(bookie: Bookie, last_add_confirmed: int) -> None:
    """Nothing checks the LAC of an add (wire 5.1)."""
    body = entry(5, 0, last_add_confirmed=last_add_confirmed)
    bookie.engine.rows.set_master_key(5, KEY)
    bookie.engine.add(5, 0, body)
    async with asyncio.timeout(60):
        assert await bookie.read(5, 0) == (Status.OK, body, -1)
        assert await bookie.read(5, -1) == (Status.OK, body, -1)


async def test_a_poll_of_a_ledger_that_is_deleted_meanwhile_is_told_so(bookie: Bookie) -> None:
    """It reads the LAC from the disk first; nothing would wake it if it began to wait then."""
    assert await bookie.add(5, 0) is Status.OK
    checkpoint_now(bookie.engine)
    bookie.engine.rows.on_dropped(5)
    assert bookie.engine.last_add_confirmed(5) is None
    poll = bookie.ask(LongPollRead(1, 5, -1, 0, 60_000, True, False))
    await asyncio.sleep(0)
    bookie.engine.delete_ledger(5)
    bookie.forget(5)
    assert await poll.status() is Status.NO_SUCH_LEDGER
