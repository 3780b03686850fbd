"""Kill -9 in the middle, two at once, and real bookies before and after."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.metadata.backup.archive import ArchiveReader
from bkctl.runtime.metadata.backup.restore import ClusterRestore, read_archive, read_restore_target
from bkctl.runtime.metadata.cluster.operation_lock import operation_lock_path
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.commands.cluster.conftest import Operator, command_after, commands_after
from tests.operation_locks import end_locks
from tests.processes import BkctlProcess, Cluster, DevCluster, run_bkctl
from tests.runtime.metadata.trees import PlantedNode
from tests.until import wait_until

pytestmark = pytest.mark.cluster

LEDGERS = 60
SLOWLY = "scan_operations_per_s_max = 25.0"
"""So that there is a middle to kill it in: the change takes more than two seconds."""


def ledger_paths(tree: dict[str, PlantedNode]) -> set[str]:
    return {path for path in tree if path.startswith("00/0000/L")}


def data_of(tree: dict[str, PlantedNode]) -> dict[str, bytes]:
    return {path: node.data for path, node in tree.items() if not path.startswith("idgen-long")}


@pytest.fixture
def instance_id(operator: Operator) -> str:
    """Of a cluster with many ledgers, on which commands work slowly."""
    operator.succeed("cluster", "init")
    operator.add_ledgers(LEDGERS)
    operator.configure(SLOWLY)
    return operator.instance_id()


def kill_when(process: BkctlProcess, condition: Callable[[], bool]) -> None:
    """kill -9 as soon as the condition holds."""
    wait_until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, f"it had ended before, with code {process.returncode}"
    process.send_signal(signal.SIGKILL)
    process.wait()


def is_half_done(operator: Operator) -> bool:
    return 0 < len(operator.children("/00/0000")) < LEDGERS


@pytest.mark.battery
def test_a_format_killed_in_the_middle(operator: Operator, instance_id: str) -> None:
    kill_when(operator.begin("cluster", "format", "--confirm", instance_id), lambda: is_half_done(operator))
    half_done = operator.tree()
    assert half_done["INSTANCEID"].data.decode() != instance_id, "no bookie with old data starts now"
    assert 0 < len(ledger_paths(half_done)) < LEDGERS
    operator.configure("")
    operator.on_store(lambda store: end_locks(store, operator.root))
    again = operator.succeed("cluster", "format", "--confirm", operator.instance_id())
    whole, part = operator.backups()
    assert (again.json()["backup"], again.json()["earlier_backup"]) == (part, whole)
    assert f"to undo: bkctl cluster nuke, then bkctl cluster restore {whole}\n" in again.stderr
    assert f"{part} has only what that left" in again.stderr
    assert sorted(operator.tree()) == ["", "INSTANCEID", "LAYOUT", "available", "available/readonly"]
    after_the_format = operator.succeed("cluster", "nuke", "--confirm", operator.instance_id())
    assert after_the_format.json()["earlier_backup"] is None, "that format has ended"
    operator.succeed("cluster", "restore", operator.backups()[0], "--confirm", instance_id)
    assert len(ledger_paths(operator.tree())) == LEDGERS, "the backup of before the first one has everything"


def test_a_nuke_killed_in_the_middle(operator: Operator, instance_id: str) -> None:
    before = operator.tree()
    kill_when(operator.begin("cluster", "nuke", "--confirm", instance_id), lambda: is_half_done(operator))
    operator.configure("")
    assert "available" not in operator.tree()
    assert operator.instance_id() == instance_id
    operator.succeed("cluster", "nuke", "--confirm", instance_id)
    assert operator.tree() == {}
    operator.succeed("cluster", "restore", operator.backups()[0], "--confirm", instance_id)
    assert data_of(operator.tree()) == data_of(before)


@pytest.mark.battery
def test_a_restore_killed_in_the_middle(operator: Operator, instance_id: str, tmp_path: Path) -> None:
    before, path, other = operator.tree(), str(tmp_path / "backup"), str(tmp_path / "other")
    operator.configure("")
    operator.succeed("cluster", "backup", path)
    operator.succeed("cluster", "backup", other)
    operator.succeed("cluster", "nuke", "--confirm", instance_id)
    operator.configure(SLOWLY)
    kill_when(operator.begin("cluster", "restore", path, "--confirm", instance_id), lambda: is_half_done(operator))
    operator.configure("")
    operator.on_store(lambda store: end_locks(store, operator.root))
    assert "available" not in operator.tree(), "a bookie that registered now would delete its ledgers"
    init = operator.run("cluster", "init", "--if-not-exists")
    assert init.exit_code == 3
    assert "is unfinished" in init.stderr
    assert operator.run("cluster", "backup", str(tmp_path / "part")).exit_code == 3
    mixed_up = operator.run("cluster", "restore", other, "--confirm", instance_id)
    assert mixed_up.exit_code == 5
    assert "a restore of another backup" in mixed_up.stderr
    report = operator.succeed("cluster", "restore", path, "--confirm", instance_id).json()
    assert 0 < report["ledgers_there_already"] < LEDGERS
    assert report["ledgers_there_already"] + report["ledgers_created"] == LEDGERS
    assert data_of(operator.tree()) == data_of(before)


@pytest.mark.battery
@pytest.mark.parametrize("verb", ["nuke", "restore"])
def test_a_command_that_was_stopped_for_longer_than_its_session(
    operator: Operator, instance_id: str, tmp_path: Path, verb: str
) -> None:
    """A laptop that was closed: the lock is gone, a part is done, and the sentence says what comes next."""
    path = str(tmp_path / "backup")
    command = ["cluster", verb, *([path] if verb == "restore" else []), "--confirm", instance_id]
    if verb == "restore":
        operator.configure("")
        operator.succeed("cluster", "backup", path)
        operator.succeed("cluster", "nuke", "--confirm", instance_id)
        operator.configure(SLOWLY)
    told = tmp_path / "told"
    with told.open("w") as stderr:
        process = operator.begin(*command, "--timeout", "2s", stderr=stderr)
    wait_until(lambda: is_half_done(operator) or process.poll() is not None)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: operator.on_store(lambda store: store.exists(operation_lock_path(operator.root))) is None)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 6
    assert f"'cluster {verb}' may be partly done: run it again when ZooKeeper answers" in told.read_text()
    assert "name another cluster" not in told.read_text()
    operator.configure("")
    operator.succeed(*command)


def test_a_backup_killed_in_the_middle_leaves_no_archive(operator: Operator, instance_id: str, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    process = operator.begin("cluster", "backup", str(path))
    kill_when(process, lambda: any(tmp_path.glob("backup.*.tmp")))
    assert not path.exists()
    operator.configure("")
    operator.succeed("cluster", "backup", str(path))


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        ("nuke", signal.SIGTERM),
        pytest.param("format", signal.SIGINT, marks=pytest.mark.battery),
        pytest.param("nuke", signal.SIGINT, marks=pytest.mark.battery),
    ],
)
def test_a_signal_in_the_middle_says_what_is_left_and_both_ways_on(
    operator: Operator, instance_id: str, tmp_path: Path, verb: str, number: signal.Signals
) -> None:
    said = tmp_path / "said"
    with said.open("w") as stderr:
        process = operator.begin("cluster", verb, "--confirm", instance_id, stderr=stderr)
    wait_until(lambda: is_half_done(operator))
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert '"result":"interrupted"' in (operator.state / "audit.jsonl").read_text().splitlines()[-1]
    (whole,) = operator.backups()
    assert re.search(r"stopped before the end: about \d+ of 6\d nodes .* no bookie can start until", said.read_text())
    assert f"bkctl cluster restore {whole}\n" in said.read_text()
    operator.configure("")
    again = operator.run(*command_after("to finish: ", said.read_text()))
    assert again.exit_code == 0, again
    assert again.json()["earlier_backup"] == whole
    for words in commands_after("to undo: ", again.stderr):
        confirm = operator.instance_id() if words[1] == "nuke" else instance_id
        operator.succeed(*words, "--confirm", confirm)
    assert len(ledger_paths(operator.tree())) == LEDGERS


def test_a_restore_that_is_stopped_says_how_to_continue(operator: Operator, instance_id: str, tmp_path: Path) -> None:
    before, path, said = operator.tree(), str(tmp_path / "backup"), tmp_path / "said"
    operator.configure("")
    operator.succeed("cluster", "backup", path)
    operator.succeed("cluster", "nuke", "--confirm", instance_id)
    operator.configure(SLOWLY)
    with said.open("w") as stderr:
        process = operator.begin("cluster", "restore", path, "--confirm", instance_id, stderr=stderr)
    wait_until(lambda: is_half_done(operator))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert re.search(r"stopped before the end: \d+ of 6\d nodes of the backup", said.read_text())
    operator.configure("")
    operator.succeed(*command_after("to continue: ", said.read_text()))
    assert data_of(operator.tree()) == data_of(before)


@pytest.mark.parametrize("second", ["format", pytest.param("nuke", marks=pytest.mark.battery)])
def test_two_at_once(operator: Operator, instance_id: str, second: str) -> None:
    operator.configure(
        "scan_operations_per_s_max = 20.0"
    )  # it lasts until the second has been heard, also on a busy machine
    first = operator.begin("cluster", "nuke", "--confirm", instance_id)
    wait_until(lambda: "available" not in operator.children(""))
    operator.configure("")
    late = operator.run("cluster", second, "--confirm", instance_id)
    assert late.exit_code == 5, late.stderr
    assert "another operation is changing this cluster: 'cluster nuke' by" in late.stderr
    assert f"process {first.pid}," in late.stderr
    assert first.wait(60) == 0
    assert operator.tree() == {}


@pytest.mark.battery
def test_the_life_of_a_cluster_with_real_bookies(cluster: Cluster, tmp_path: Path) -> None:
    environment = {"BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_STATE_DIR": str(tmp_path / "state")}

    def run(*arguments: str, code: int = 0) -> dict[str, object]:
        result = run_bkctl(*arguments, timeout_s=120, **environment)
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.stdout}{result.stderr}"
        if code == 3:
            assert "nothing was changed: 3 bookies" in result.stderr
        parsed: dict[str, object] = result.json() if code == 0 else {}
        return parsed

    run("ledger", "write-test", "--ledgers", "5", "--entries", "20")
    instance_id = str(run("cluster", "instance-id")["instance_id"])
    path = str(tmp_path / "backup")
    assert run("cluster", "backup", path)["ledgers"] == 5
    for arguments in (("format",), ("nuke",), ("restore", path)):
        run("cluster", *arguments, "--confirm", instance_id, code=3)
    _stop_bookies(cluster)
    run("cluster", "nuke", "--confirm", instance_id)
    run("cluster", "instance-id", code=4)
    report = run("cluster", "restore", path, "--confirm", instance_id)
    assert (report["ledgers_created"], report["first_new_ledger_id"]) == (5, "4294967296")
    for bookie in cluster.bookies:
        cluster.start_bookie(bookie.id)
    assert run("cluster", "info")["writable_bookies_count"] == 3
    run("ledger", "verify", "--all")
    for ledger_id in run("ledger", "list")["items"]:  # type: ignore[attr-defined]
        result = run_bkctl("ledger", "read", str(ledger_id["ledger_id"]), timeout_s=120, **environment)
        assert result.exit_code == 0
    written = run("ledger", "write-test", "--entries", "3")["items"]
    assert [item["ledger_id"] for item in written] == ["4294967296"]  # type: ignore[attr-defined]
    _stop_bookies(cluster)
    run("cluster", "format", "--confirm", instance_id)
    assert run("cluster", "instance-id")["instance_id"] != instance_id
    assert run("ledger", "list")["items"] == []


@pytest.mark.battery
def test_no_bookie_joins_a_cluster_that_is_half_restored(
    start_dev_cluster: Callable[[int], DevCluster], tmp_path: Path
) -> None:
    cluster = start_dev_cluster(3)
    environment = {"BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_STATE_DIR": str(tmp_path / "state")}
    path = str(tmp_path / "backup")
    written = run_bkctl("ledger", "write-test", "--entries", "20", timeout_s=120, **environment)
    [ledger] = written.json()["items"]
    assert run_bkctl("cluster", "backup", path, timeout_s=120, **environment).exit_code == 0
    instance_id = run_bkctl("cluster", "instance-id", timeout_s=120, **environment).json()["instance_id"]
    _stop_bookies(cluster)
    nuked = run_bkctl("cluster", "nuke", "--confirm", instance_id, timeout_s=120, **environment)
    assert nuked.exit_code == 0
    asyncio.run(_restore_but_for_the_end(cluster.metadata_uri, path))
    bookie = cluster.bookies[0]
    started = run_bkctl("dev", "cluster", "start", bookie.id, "--dir", cluster.directory)
    assert started.exit_code != 0
    restored = run_bkctl("cluster", "restore", path, "--confirm", instance_id, timeout_s=120, **environment)
    assert restored.exit_code == 0, restored.stderr
    for each in cluster.bookies:
        cluster.start_bookie(each.id)
    verified = run_bkctl("ledger", "verify", ledger["ledger_id"], timeout_s=120, **environment)
    assert verified.exit_code == 0


async def _restore_but_for_the_end(metadata_uri: str, path: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        with ArchiveReader(OsFileSystem(), path) as reader:
            archive = await read_archive(reader, LoopClock())
            target = await read_restore_target(store, uri.root, archive)
            operation = ClusterRestore(store, archive, target, before_each=lambda: None, keep=lambda _path, _node: None)
            async for _ in operation.run(reader):
                pass


def _stop_bookies(cluster: Cluster) -> None:
    """In order, so that they are registered no longer."""
    for bookie in cluster.bookies:
        os.kill(bookie.pid, signal.SIGTERM)
    wait_until(lambda: cluster.run("cluster", "info").json()["writable_bookies_count"] == 0)
