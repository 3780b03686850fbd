"""A replay by child processes leaves what a replay without them leaves, whatever comes in between."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import crc32c
import msgspec
import pytest

from storage.child_pool import ChildProcesses
from storage.config import EngineConfig, EntryLogConfig, JournalConfig, StorageConfig
from storage.disk_room import DiskRoom
from storage.engine import LedgerDirectoryEngine
from storage.entry_log_reader import EntryLogScan, list_entry_logs
from storage.errors import CorruptFileError, EntryTooLargeError, IndexFailedError
from storage.filenames import LAST_ID, REPLAY_FOLDER_PREFIX, current_directory, journal_file_name
from storage.filesystem import OsFileSystem
from storage.framing import ReadWindow
from storage.index_store import open_plyvel
from storage.journal_catalog import CatalogedJournal
from storage.journal_checked import find_group_end
from storage.journal_format import (
    encode_explicit_lac_record,
    encode_fence_record,
    encode_ledger_key_record,
)
from storage.journal_reader import list_journals
from storage.ledger_index import LedgerRow
from storage.ledger_storage import LedgerStorage
from storage.memtable import ENTRY_OVERHEAD_BYTES
from storage.ports import ChildContext, ChildPool, Children, DiskSpace
from storage.replay import ReplayReport, checkpoint_now
from storage.replay_ahead import CHILD_MODULE, ReplayAhead
from storage.replay_child import read_stretch
from storage.replay_tasks import ReadStretch
from storage.setting import MEBIBYTE
from storage.step_sizes import StepSizes
from tests.processes import striking_children
from tests.sim.children import InProcessChildren
from tests.storage.engines import KEY, NOW_MS, entry, explicit_lac
from tests.storage.groups import group_bytes
from tests.storage.traced_disk import TracedDisk

FS = OsFileSystem()
STRETCH_BYTES = 64 * 1024
JOURNALS, LEDGERS = 2, 3
UNKNOWN_LEDGER = 90


STEPS = StepSizes(ahead_file_bytes_min=2 * STRETCH_BYTES, ahead_stretch_bytes_min=STRETCH_BYTES // 8)
"""A small journal has many stretches."""
CHILDREN = ChildProcesses()


class ChildrenOf:
    """Child processes of another module, and fewer of them."""

    def __init__(self, module: str, core_count: int = 2) -> None:
        self._module = module
        self.core_count = core_count

    def pool(self, _: str, directory: str, count: int) -> AbstractContextManager[ChildPool]:
        return CHILDREN.pool(self._module, directory, count)


NO_CHILD_STARTS = ChildrenOf("storage.there_is_no_such_module")


def config_below(root: Path, *, journals: int = 1, ledgers: int = 1) -> StorageConfig:
    return StorageConfig(
        journal_directories=tuple(str(root / f"journal-{index}") for index in range(journals)),
        ledger_directories=tuple(str(root / f"ledgers-{index}") for index in range(ledgers)),
        journal=JournalConfig(preallocation_bytes=16 * 1024, size_bytes_max=1024 * 1024),
        engine=EngineConfig(memtable_bytes_max=2 * STRETCH_BYTES),
    )


def with_cache(config: StorageConfig, stretch_count: int) -> StorageConfig:
    engine = EngineConfig(memtable_bytes_max=stretch_count * STRETCH_BYTES)
    return msgspec.structs.replace(config, engine=engine)


def opened(config: StorageConfig, steps: StepSizes = STEPS) -> LedgerStorage:
    return LedgerStorage.open(FS, open_plyvel, config, NOW_MS, steps=steps)


def write_journals(config: StorageConfig, groups: Sequence[Sequence[bytes]]) -> None:
    """What a bookie has journaled that was killed before its first checkpoint; each record goes to its journal."""
    storage = opened(config)
    storage.replay()
    for group in groups:
        for index, journal in enumerate(storage.journals):
            mine = [data for data in group if struct.unpack_from(">q", data)[0] % len(storage.journals) == index]
            if mine:
                journal.write_group(mine)
    storage.close()


class Replayed(msgspec.Struct):
    """All that a storage knows after a replay."""

    report: ReplayReport
    rows: dict[int, LedgerRow | None]
    entries: dict[tuple[int, int], bytes]
    last_adds_confirmed: dict[int, int | None]


def replayed(
    config: StorageConfig, *, children: Children | None, room: DiskRoom | None = None, steps: StepSizes = STEPS
) -> Replayed:
    storage = opened(config, steps)
    try:
        report = storage.replay(children=children, room=room)
        found = Replayed(report, {}, {}, {})
        for engine in storage.engines:
            for ledger_id in engine.ledger_ids():
                found.rows[ledger_id] = engine.ledger(ledger_id)
                for entry_id in {*engine.list_entries(ledger_id), *engine.list_cached_entries(ledger_id)}:
                    body = engine.find_cached(ledger_id, entry_id) or engine.read(ledger_id, entry_id)
                    assert body is not None
                    found.entries[ledger_id, entry_id] = body
                generation = engine.read_generation
                last = engine.find_last(ledger_id)
                found.last_adds_confirmed[ledger_id] = engine.note_last_stored(ledger_id, last, generation)
        return found
    finally:
        storage.close()


def log_names(config: StorageConfig) -> list[str]:
    folders = map(current_directory, config.ledger_directories)
    return [name for folder in folders for name in os.listdir(folder) if name.endswith(".log")]


def entries_in_logs(config: StorageConfig) -> list[tuple[int, int]]:
    found = []
    for folder in map(current_directory, config.ledger_directories):
        for log_id in list_entry_logs(FS, folder):
            found += [(each.ledger_id, each.entry_id) for each in EntryLogScan(FS, folder, log_id)]
    return sorted(found)


def left_folders(config: StorageConfig) -> list[str]:
    folders = map(current_directory, config.ledger_directories)
    return [name for folder in folders for name in os.listdir(folder) if name.startswith(REPLAY_FOLDER_PREFIX)]


def any_groups(seed: int, count: int, *, has_deleted: bool) -> Iterator[list[bytes]]:
    """Groups as clients make them happen, with ledgers that begin and end on the way, and entries added again."""
    choice = random.Random(seed)
    next_ids: dict[int, int] = {}
    if has_deleted:
        yield [entry(UNKNOWN_LEDGER, 0)]
    yield [encode_ledger_key_record(20, KEY), entry(20, 0, last_add_confirmed=10**6)]
    for number in range(1, count):
        group = [entry(20, number)]
        for _ in range(choice.randint(1, 30)):
            ledger_id = choice.randrange(12)
            if ledger_id not in next_ids:
                next_ids[ledger_id] = 0
                group.append(encode_ledger_key_record(ledger_id, KEY))
            entry_id = next_ids[ledger_id]
            what = choice.random()
            if what < 0.9:
                next_ids[ledger_id] += 1
            elif what < 0.95:
                entry_id = choice.randrange(entry_id + 1)
            elif what < 0.97:
                group.append(encode_explicit_lac_record(ledger_id, explicit_lac(ledger_id, entry_id)))
            elif what < 0.98:
                group.append(encode_fence_record(ledger_id))
            elif what < 0.99 and has_deleted:
                group.append(entry(UNKNOWN_LEDGER, entry_id))
            body = choice.randbytes(choice.choice([0, 5, 300, 300, 4000]))
            # Clients of a ledger may know more or less than the one before.
            group.append(entry(ledger_id, entry_id, body, last_add_confirmed=entry_id + choice.randint(-5, 5)))
        yield group


def simple_groups(count: int) -> list[list[bytes]]:
    """One entry of ledger 5 and one of ledger 6 in each, of a kilobyte together."""
    keys = [encode_ledger_key_record(ledger_id, KEY) for ledger_id in (5, 6)]
    groups = [
        [entry(ledger_id, number, bytes([number % 251]) * 400) for ledger_id in (5, 6)] for number in range(count)
    ]
    return [keys, *groups]


@pytest.mark.parametrize(("seed", "cache_stretches"), [(0, 2), (1, 2), (2, 2), (3, 100)])
def test_it_leaves_what_a_replay_without_children_leaves(tmp_path: Path, seed: int, cache_stretches: int) -> None:
    """With many stretches, and with a few of several batches; in one case with entries of a ledger that is deleted."""
    groups = list(any_groups(seed, 250 if cache_stretches == 2 else 700, has_deleted=seed == 2))
    found = []
    for name, has_children in (("plain", False), ("children", True)):
        config = config_below(tmp_path / name, journals=JOURNALS, ledgers=LEDGERS)
        config = with_cache(config, cache_stretches)
        if cache_stretches > 2:
            config = msgspec.structs.replace(config, journal=JournalConfig(preallocation_bytes=16 * 1024))
        write_journals(config, groups)
        found.append(replayed(config, children=CHILDREN if has_children else None))
        assert left_folders(config) == []
    plain, ahead = found
    assert ahead.report == plain.report
    assert ahead.report.child_failure == ""
    assert ahead.rows == plain.rows
    assert ahead.entries == plain.entries
    assert ahead.last_adds_confirmed == plain.last_adds_confirmed
    # The plain replay rolls none here.
    assert (
        seed == 2
        or len(log_names(config_below(tmp_path / "children", journals=JOURNALS, ledgers=LEDGERS))) > LEDGERS * 2
    )


def test_nothing_is_done_twice_by_the_next_start(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    write_journals(config, simple_groups(600))
    first = replayed(config, children=CHILDREN)
    again = replayed(config, children=CHILDREN)
    assert first.report.entry_count == 1200
    assert again.report.entry_count == 0
    assert again.entries == first.entries


def test_a_child_that_cannot_start_is_told_and_replaced(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    write_journals(config, simple_groups(600))
    found = replayed(config, children=NO_CHILD_STARTS)
    assert found.report.child_failure == "a child process (storage.there_is_no_such_module) ended with exit code 1"
    assert found.report.entry_count == 1200
    assert left_folders(config) == []


def test_a_child_that_is_killed_is_told_and_replaced(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    write_journals(config, simple_groups(600))
    found = replayed_under_signals(config, signal.SIGKILL, STEPS)
    assert found.report.child_failure == "a child process (storage.replay_child) was ended by signal 9"
    assert found.report.entry_count == 1200
    assert left_folders(config) == []


def replayed_under_signals(config: StorageConfig, number: signal.Signals, steps: StepSizes) -> Replayed:
    with striking_children("storage.replay_child", number):
        return replayed(config, children=CHILDREN, steps=steps)


def test_a_torn_tail_is_dropped_and_reported(tmp_path: Path) -> None:
    reports = []
    for name, has_children in (("plain", False), ("children", True)):
        config = config_below(tmp_path / name)
        write_journals(config, simple_groups(600))
        path = journal_path(config)
        data = path.read_bytes()
        end = -(-len(data.rstrip(b"\0")) // 512) * 512
        path.write_bytes(data[:end] + struct.pack(">i", 1000) + entry(5, 9999, b"torn") + data[end + 40 :])
        found = replayed(config, children=CHILDREN if has_children else None)
        [tail] = found.report.dropped_tails
        reports.append((tail.offset, tail.dropped_bytes, found.report.entry_count, found.entries))
    assert reports[0] == reports[1]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_damaged_group_stops_the_boot_with_the_same_sentence(tmp_path: Path, share: float) -> None:
    sentences = []
    for has_children in (False, True):
        config = config_below(tmp_path / str(has_children))
        write_journals(config, simple_groups(600))
        path = journal_path(config)
        data = bytearray(path.read_bytes())
        place = int(len(bytes(data).rstrip(b"\0")) * share)
        data[place] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(CorruptFileError) as caught:
            replayed(config, children=CHILDREN if has_children else None)
        sentences.append(str(caught.value).replace(str(path), ""))
        assert left_folders(config) == []
    assert sentences[0] == sentences[1]


def damaged(data: bytes, seed: int) -> bytes:
    """A flip, a range of zeros, or a cut, somewhere."""
    choice = random.Random(seed)
    end = len(data.rstrip(b"\0"))
    place = choice.randrange(512, end)
    match seed % 4:
        case 0:
            return data[:place] + bytes([data[place] ^ 1 << choice.randrange(8)]) + data[place + 1 :]
        case 1:
            sector, count = place // 512 * 512, 512 * choice.choice([1, 2, 5, 400])
            return data[:sector] + bytes(count) + data[sector + count :]
        case 2:
            return data[: choice.choice([place, place // 512 * 512, place // 16_384 * 16_384])]
        case _:  # the end: what a crash may take
            sector = max(512, end // 512 * 512 - 512 * choice.randrange(6))
            return data[:sector] + bytes(512) + data[sector + 512 :]


@pytest.fixture(scope="module")
def simple_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with a journal, and nothing else, made once."""
    root = tmp_path_factory.mktemp("written")
    write_journals(config_below(root), simple_groups(400))
    return root


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_damaged_the_outcome_is_the_same(tmp_path: Path, simple_journal: Path, seed: int) -> None:
    """Of each kind of damage once with processes."""
    in_process = InProcessChildren(FS, open_plyvel)
    outcomes = []
    for number, children in enumerate((None, CHILDREN if seed < 4 else in_process)):
        root = tmp_path / str(number)
        shutil.copytree(simple_journal, root)
        config = config_below(root)
        path = journal_path(config)
        path.write_bytes(damaged(path.read_bytes(), seed))
        try:
            found = replayed(config, children=children)
        except CorruptFileError as error:
            outcomes.append(str(error).replace(str(root), ""))
        else:
            tails = [(tail.offset, tail.dropped_bytes, tail.reason) for tail in found.report.dropped_tails]
            outcomes.append(f"{sorted(found.entries)} {tails}")
    assert outcomes[0] == outcomes[1]


def test_a_file_cut_behind_a_group_stops_the_boot(tmp_path: Path) -> None:
    """The writer makes it longer before its data would reach the end."""
    for has_children in (False, True):
        config = config_below(tmp_path / str(has_children))
        write_journals(config, simple_groups(603))
        path = journal_path(config)
        data = path.read_bytes()
        step = config.journal.preallocation_bytes
        cut = max(end for end in range(step, len(data.rstrip(b"\0")), step) if is_group_end(path, end))
        path.write_bytes(data[:cut])
        with pytest.raises(CorruptFileError, match="file cut"):
            replayed(config, children=CHILDREN if has_children else None)


@pytest.mark.parametrize(
    ("late", "error"),
    [
        (encode_ledger_key_record(5, b"x" * 20), CorruptFileError),
        (entry(5, 10_000, bytes(3000)), EntryTooLargeError),
    ],
)
def test_what_stops_a_replay_stops_this_one(tmp_path: Path, late: bytes, error: type[Exception]) -> None:
    """Another key of a ledger; an entry over a limit that was lowered since."""
    groups = simple_groups(600)
    groups.insert(400, [late])
    for has_children in (False, True):
        config = config_below(tmp_path / str(has_children))
        write_journals(config, groups)
        engine = msgspec.structs.replace(config.engine, entry_log=EntryLogConfig(entry_bytes_max=2048))
        with pytest.raises(error):
            replayed(msgspec.structs.replace(config, engine=engine), children=CHILDREN if has_children else None)


@pytest.mark.parametrize("first", [0, 1])
def test_a_ledger_of_another_journal_stops_the_boot(tmp_path: Path, first: int) -> None:
    """With its key, and an entry alone."""
    write_journals(config_below(tmp_path), simple_groups(600)[first:])
    with pytest.raises(CorruptFileError, match="which belongs to another journal"):
        replayed(config_below(tmp_path, journals=2), children=CHILDREN)


def test_without_room_no_child_is_started(tmp_path: Path) -> None:
    config = with_cache(config_below(tmp_path), 16)
    write_journals(config, simple_groups(300))
    room = DiskRoom(FS, [config.ledger_directories[0]], reserve_bytes=2**60)
    found = replayed(config, children=CHILDREN, room=room)
    assert found.report.unflushed_bytes > 0
    assert len(found.entries) == 600
    assert log_names(config) == []
    assert not Path(current_directory(config.ledger_directories[0]), LAST_ID).exists()


class FillingDisk(OsFileSystem):
    """Has room for a while."""

    def __init__(self, look_count: int) -> None:
        self.left_count = look_count

    def space(self, path: str) -> DiskSpace:
        self.left_count -= 1
        return DiskSpace(2**50, 2**49 if self.left_count > 0 else 0, 1)


@pytest.mark.parametrize("look_count", [2, 4])
def test_when_the_room_ends_on_the_way_the_rest_waits_in_memory(tmp_path: Path, look_count: int) -> None:
    config = with_cache(config_below(tmp_path), 16)
    write_journals(config, simple_groups(600))
    room = DiskRoom(FillingDisk(look_count), [config.ledger_directories[0]])
    found = replayed(config, children=CHILDREN, room=room)
    assert found.report.unflushed_bytes > 0
    assert found.report.ledger_key_count == 2, "what was not taken was applied all the same"
    assert len(log_names(config)) == look_count - 2
    assert sorted(found.entries) == [(ledger_id, number) for ledger_id in (5, 6) for number in range(600)]
    again = replayed(config, children=CHILDREN)
    assert again.entries == found.entries


def test_an_entry_with_a_group_in_it_misleads_nobody(tmp_path: Path) -> None:
    """A client that knows where its entry goes can put the end of a group into it, and another group behind that."""
    config = with_cache(config_below(tmp_path), 32)
    write_journals(config, [])
    storage = opened(config)
    storage.replay()
    journal = storage.journals[0]
    journal.write_group([encode_ledger_key_record(ledger_id, KEY) for ledger_id in (5, 6)])
    start = journal.durable_position
    head = entry(5, 0)
    body = bytearray(head)
    while len(body) < 6 * STRETCH_BYTES:
        body += bytes(-(start.offset + 4 + len(body)) % 512)
        length_word = struct.pack(">i", 8 * STRETCH_BYTES)
        body += fake_end(length_word + body, start.offset, start.journal_id)
        body += bytes(-(start.offset + 4 + len(body)) % 512)
        inner_start = start.offset + 4 + len(body)
        body += group_bytes([entry(6, 666)], inner_start, journal_id=start.journal_id)
    body += bytes(8 * STRETCH_BYTES - len(body))
    journal.write_group([bytes(body)])
    for number in range(1, 600):
        journal.write_group([entry(5, number, bytes(400))])
    storage.close()
    found = replayed(config, children=CHILDREN)
    assert sorted(found.entries) == [(5, number) for number in range(600)]
    assert found.entries[5, 0] == bytes(body)


def fake_end(before: bytes, group_start: int, journal_id: int) -> bytes:
    """Padding behind ``before`` up to the next sector, with the checksum of a group that ends so."""
    count = -(group_start + len(before) + 8) % 512 or 512
    padding = struct.pack(">ii3scq", -256, count, b"bkg", b"\1", group_start)
    crc = crc32c.crc32c(before + padding, crc32c.crc32c(struct.pack(">q", journal_id)))
    return padding + struct.pack(">I", crc) + bytes(count - 16)


class RacingDisk(OsFileSystem):
    """Each folder of a replay gets one more file when it has been looked through."""

    def __init__(self) -> None:
        self.raced: set[str] = set()

    def list_directory(self, path: str) -> list[str]:
        names = super().list_directory(path)
        if REPLAY_FOLDER_PREFIX in os.path.basename(path) and path not in self.raced:
            self.raced.add(path)
            self.create(os.path.join(path, "7.log")).close()
        return names


def test_a_child_that_outlived_its_parent_is_in_nobodys_way(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    write_journals(config, simple_groups(10))
    folder = Path(current_directory(config.ledger_directories[0]), f"{REPLAY_FOLDER_PREFIX}1-1")
    folder.mkdir()
    (folder / "6.log").write_bytes(b"")
    disk = RacingDisk()
    storage = LedgerStorage.open(disk, open_plyvel, config, NOW_MS)
    storage.replay()
    storage.close()
    assert len(disk.raced) == 1
    assert not folder.exists()


class KilledError(Exception):
    """A process was, at this place."""


def killed() -> None:
    raise KilledError


def test_a_deletion_that_was_cut_off_takes_no_entry_of_the_journal_along(tmp_path: Path) -> None:
    """Its rows are gone before the journal is read, not behind what the journal brings back."""
    found = []
    for has_children in (False, True):
        config = config_below(tmp_path / str(has_children))
        write_journals(config, simple_groups(600))
        storage = opened(config)
        engine = storage.engine_of(5)
        for ledger_id in (5, 6):
            engine.set_master_key(ledger_id, KEY)
            engine.add(ledger_id, 0, entry(ledger_id, 0))
        checkpoint_now(engine)
        engine.delete_ledger(5)
        with pytest.raises(KilledError):
            engine.write_checkpoint(engine.begin_checkpoint(), killed)
        storage.close()
        found.append(replayed(config, children=CHILDREN if has_children else None))
    assert len(found[0].entries) == 1200
    assert found[1] == found[0]


@pytest.mark.parametrize("sign", [encode_fence_record(5), encode_ledger_key_record(5, KEY)])
@pytest.mark.parametrize(("first", "place"), [(4, 0), (4, 3), (100, 0), (100, 3), (100, 400)])
def test_entries_in_front_of_the_first_sign_of_their_ledger_are_skipped(
    tmp_path: Path, sign: bytes, first: int, place: int
) -> None:
    """They are those of a ledger that was deleted; in another group, in the same one, in another stretch."""
    groups = [[encode_ledger_key_record(6, KEY)], *simple_groups(600)[1:]]
    groups[first].insert(1, sign)
    groups[first + place].insert(0, sign)
    found, logged = [], []
    for has_children in (False, True):
        config = config_below(tmp_path / str(has_children))
        write_journals(config, groups)
        found.append(replayed(config, children=CHILDREN if has_children else None))
        # An index that is rebuilt from the logs must not bring them back.
        logged.append(entries_in_logs(config))
    assert found[0].report.skipped_count == (first if place else first - 1)
    assert found[1] == found[0]
    assert logged[0] == logged[1] == sorted(found[0].entries)


def test_a_child_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """As one that is stopped, or waits for a disk that does not answer."""
    config = config_below(tmp_path)
    write_journals(config, simple_groups(600))
    found = replayed_under_signals(config, signal.SIGSTOP, msgspec.structs.replace(STEPS, ahead_patience_s=2.0))
    assert found.report.child_failure == "a child process (storage.replay_child) has said nothing for 2 s"
    assert found.report.entry_count == 1200


def entry_counts_of_logs(tmp_path: Path, cache_stretches: int, sizes_bytes: Sequence[int]) -> list[int]:
    """For each log that children make of a journal with entries of so many bytes behind their header."""
    config = with_cache(config_below(tmp_path), cache_stretches)
    engine = msgspec.structs.replace(config.engine, entry_log=EntryLogConfig(size_bytes_max=1 << 30))
    config = msgspec.structs.replace(config, journal=JournalConfig(), engine=engine)
    entries = [entry(5, number, bytes(size_bytes)) for number, size_bytes in enumerate(sizes_bytes)]
    groups = [entries[first : first + 50] for first in range(0, len(entries), 50)]
    write_journals(config, [[encode_ledger_key_record(5, KEY)], *groups])
    path = journal_path(config)
    storage = opened(config)
    try:
        engines = storage.engines
        ahead = ReplayAhead(FS, ChildrenOf(CHILD_MODULE, core_count=2), config, engines, None, checkpoint_now, STEPS)
        engines[0].set_master_key(5, KEY)
        journal = CatalogedJournal(int(path.stem, 16), config.journal.preallocation_bytes, has_checksums=True)
        ahead.run(str(path), 0, journal, 0, 1 << 24, lambda _: None)
    finally:
        storage.close()
    assert (ahead.entry_count, ahead.failure) == (len(entries), "")
    folder = current_directory(config.ledger_directories[0])
    return [sum(1 for _ in EntryLogScan(FS, folder, log_id)) for log_id in list_entry_logs(FS, folder)]


def with_unsynced_adds(config: StorageConfig) -> StorageConfig:
    return msgspec.structs.replace(config, journal=msgspec.structs.replace(config.journal, is_data_synced=False))


@pytest.mark.parametrize(("change", "stretch_bytes_min"), [(with_unsynced_adds, 8192), (lambda config: config, 65536)])
def test_children_are_not_always_of_use(
    tmp_path: Path,
    change: Callable[[StorageConfig], StorageConfig],
    stretch_bytes_min: int,
) -> None:
    """Where a crash tears more than the last group, and where they could not hold the shortest stretch."""
    steps = msgspec.structs.replace(STEPS, ahead_stretch_bytes_min=stretch_bytes_min)
    config = change(config_below(tmp_path))
    write_journals(config, simple_groups(600))
    found = replayed(config, children=NO_CHILD_STARTS, steps=steps)
    assert (found.report.child_failure, found.report.entry_count) == ("", 1200)


def test_logs_are_durable_before_rows_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_below(tmp_path)
    write_journals(config, simple_groups(600))
    path = journal_path(config)
    disk = TracedDisk()
    task = ReadStretch(
        path=str(path),
        journal_id=int(path.stem, 16),
        journal_index=0,
        journal_count=1,
        start_offset=512,
        is_start_known=True,
        stop_offset=100_000,
        group_bytes_max=1 << 20,
        body_bytes_max=1 << 20,
        held_bytes_max=1 << 30,
        log_ids=[7],
        log_paths=[str(tmp_path / "7.log")],
    )
    context = ChildContext(disk, open_plyvel, ChildProcesses(), "", lambda _: None)
    [log] = read_stretch(task, context).logs
    names = [name for name, file in disk.take_calls() if file == "7.log"]
    assert len(log.ledgers) == 2
    assert names == ["create", *["write"] * (len(names) - 2), "sync"]
    storage = opened(config)
    written: list[list[str]] = []
    engine = storage.engines[0]
    monkeypatch.setattr(engine, "write_locations", lambda *_: written.append([name for name, _ in disk.take_calls()]))
    ahead = ReplayAhead(disk, CHILDREN, config, [engine], None, checkpoint_now, STEPS)
    for ledger_id in (5, 6):
        engine.set_master_key(ledger_id, KEY)
    journal = CatalogedJournal(int(path.stem, 16), config.journal.preallocation_bytes, has_checksums=True)
    ahead.run(str(path), 0, journal, 0, 1 << 24, lambda _: None)
    storage.close()
    assert len(written) > 3
    assert all(names[-2:] == ["rename", "sync directory"] for names in written)


def test_an_index_that_fails_before_it_ends_the_boot(tmp_path: Path) -> None:
    """Though the reason is want of room: it must not be written any more."""
    config = config_below(tmp_path)
    write_journals(config, simple_groups(600))
    path = journal_path(config)
    storage = opened(config)
    engine = storage.engines[0]
    engine.set_master_key(5, KEY)
    engine.add(5, 0, entry(5, 0))

    def fail(_: LedgerDirectoryEngine) -> None:
        raise IndexFailedError("no room") from OSError(errno.ENOSPC, "no room")

    journal = CatalogedJournal(int(path.stem, 16), config.journal.preallocation_bytes, has_checksums=True)
    with pytest.raises(IndexFailedError):
        ReplayAhead(FS, CHILDREN, config, [engine], None, fail, STEPS).run(
            str(path), 0, journal, 0, 1 << 24, lambda _: None
        )
    storage.close()


def test_stretches_are_long_where_entries_are_large(tmp_path: Path) -> None:
    """Small ones take up more memory than bytes of the journal."""
    assert len(entry_counts_of_logs(tmp_path / "large", 16, [4000] * 500)) < 20
    assert len(entry_counts_of_logs(tmp_path / "small", 16, [0] * 55_000)) > 30


def test_children_hold_no_more_than_a_cache_when_entries_become_small(
    tmp_path: Path,
) -> None:
    cache_bytes = 512 * STRETCH_BYTES
    entry_counts = entry_counts_of_logs(tmp_path, 512, [4000] * 5000 + [0] * 400_000)
    # Up to a mebibyte of groups, with 36 bytes for an entry, is read at a time.
    assert max(entry_counts) <= cache_bytes // 2 // (32 + ENTRY_OVERHEAD_BYTES) + MEBIBYTE // 36


REPLAY = """
import sys, msgspec
from storage.child_pool import ChildProcesses
from storage.config import StorageConfig
from storage.filesystem import OsFileSystem
from storage.index_store import open_plyvel
from storage.ledger_storage import LedgerStorage
from storage.step_sizes import StepSizes
config = msgspec.json.decode(sys.argv[1], type=StorageConfig)
steps = msgspec.json.decode(sys.argv[2], type=StepSizes)
storage = LedgerStorage.open(OsFileSystem(), open_plyvel, config, 1, steps=steps)
print("begun", flush=True)
storage.replay(children=ChildProcesses())
print("done", flush=True)
"""


def test_one_that_is_killed_is_done_again(tmp_path: Path) -> None:
    """Wherever it stands; its children end by themselves, and what they leave is in nobody's way."""
    config = config_below(tmp_path, ledgers=2)
    write_journals(config, simple_groups(3000))
    command = [sys.executable, "-P", "-c", REPLAY, *(msgspec.json.encode(each).decode() for each in (config, STEPS))]
    for number in range(8):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(0.1 + 0.05 * number)
        process.kill()
        process.wait()
        process.stdout.close()
    found = replayed(config, children=CHILDREN)
    expected = {
        (ledger_id, n): entry(ledger_id, n, bytes([n % 251]) * 400) for n in range(3000) for ledger_id in (5, 6)
    }
    assert found.entries == expected
    assert left_folders(config) == []


def is_group_end(path: Path, offset: int) -> bool:
    with contextlib.closing(FS.open(str(path))) as file:
        return find_group_end(ReadWindow(file), int(path.stem, 16), offset, 1 << 20) == offset


def journal_path(config: StorageConfig) -> Path:
    """The file with the records."""
    folder = current_directory(config.journal_directories[0])
    paths = [Path(folder, journal_file_name(journal_id)) for journal_id in list_journals(FS, folder)]
    return max(paths, key=lambda path: len(path.read_bytes().rstrip(b"\0")))
