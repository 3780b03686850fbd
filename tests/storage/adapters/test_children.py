"""The Children port: what every adapter of it must do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.entry_log.compaction_scan import CHILD_MODULE as SCAN_MODULE
from bkctl.storage.entry_log.compaction_scan import MeasureLogs, ScanMessage, UnreadableLog
from bkctl.storage.errors import ChildFailedError
from bkctl.storage.ports import Children
from bkctl.storage.rebuild.rebuild import CHILD_MODULE
from bkctl.storage.rebuild.tasks import JournalFindings, ReadJournal, ScanLog, ScannedLog, read_ids
from tests.sim.children import InProcessChildren
from tests.storage.engine.test_replay import key_record, write_journal
from tests.storage.entry_log.test_compaction_scan import write_log

FS = OsFileSystem()


@pytest.fixture(params=[ChildProcesses(), InProcessChildren(FS, open_plyvel)], ids=["processes", "in process"])
def children(request: pytest.FixtureRequest) -> Children:
    found: Children = request.param
    return found


def test_each_task_is_answered_and_progress_reported(children: Children, tmp_path: Path) -> None:
    tasks = []
    for number in range(5):
        directory = tmp_path / str(number)
        directory.mkdir()
        path = write_journal(directory, [key_record(number)])
        tasks.append(ReadJournal(path=str(path), is_newest=True, cataloged=None))
    reported: list[int] = []
    with children.pool(CHILD_MODULE, str(tmp_path), 2) as pool:
        answers = dict(pool.run(tasks, JournalFindings, reported.append))
    assert {task: list(found.ledgers) for task, found in answers.items()} == {
        task: [number] for number, task in enumerate(tasks)
    }
    assert sum(reported) == sum(FS.size(task.path) for task in tasks)


def test_a_task_writes_in_the_working_directory(children: Children, tmp_path: Path) -> None:
    write_log(tmp_path, 6)
    work = tmp_path / "work"
    work.mkdir()
    task = ScanLog(
        directory=str(tmp_path),
        log_id=0,
        rank=0,
        position=0,
        directory_count=1,
        entry_bytes_max=1 << 20,
        keeps_rows=True,
    )
    with children.pool(CHILD_MODULE, str(work), 1) as pool:
        [(_, found)] = pool.run([task], ScannedLog)
    assert read_ids(FS, str(work / found.ids_name)).tolist() == [0, 1, 2]
    assert (work / found.runs[0].name).exists()
    with children.pool(CHILD_MODULE, str(work), 1) as pool, pytest.raises(FileExistsError) as raised:
        list(pool.run([task], ScannedLog))
    assert raised.value.filename == str(work / found.runs[0].name)


def test_parts_of_an_answer_come_in_order(children: Children, tmp_path: Path) -> None:
    task = MeasureLogs(directory=str(tmp_path), log_ids=[3, 1, 2])
    with children.pool(SCAN_MODULE, str(tmp_path), 1) as pool:
        parts = list(pool.stream(task, ScanMessage))
    assert all(isinstance(part, UnreadableLog) for part in parts)
    assert [part.log_id for part in parts] == [3, 1, 2]


def test_after_a_stop_nothing_is_answered(children: Children, tmp_path: Path) -> None:
    task = MeasureLogs(directory=str(tmp_path), log_ids=list(range(3)))
    with children.pool(SCAN_MODULE, str(tmp_path), 1) as pool:
        pool.stop()
        with pytest.raises(ChildFailedError):
            list(pool.stream(task, ScanMessage))
