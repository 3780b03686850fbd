"""The state file of a development cluster, and which directories may hold one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bkctl.commands.dev.cluster_state import (
    BookieRecord,
    ClusterState,
    read_state,
    require_unused,
    state_path,
    write_state,
)
from bkctl.commands.dev.local_cluster import LocalCluster
from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.processes import identify, write_pid_file
from bkctl.runtime.errors import BookieNotFoundError, ConfigurationError, RefusedError
from tests.processes import BkctlResult, run_bkctl

STATE = ClusterState(
    4000, (BookieRecord("bookie-1", "127.0.0.1:4001", 4001, 4101), BookieRecord("bookie-2", "b", 4002, 4102))
)


def test_state_survives_the_disk(tmp_path: Path) -> None:
    assert read_state(str(tmp_path)) is None
    write_state(str(tmp_path), STATE)
    assert read_state(str(tmp_path)) == STATE
    assert STATE.metadata_uri == "zk+hierarchical://127.0.0.1:4000/ledgers"


def test_bookies_go_by_id_or_directory_name() -> None:
    assert STATE.bookie("b").port == 4002
    assert STATE.bookie("bookie-1").id == "127.0.0.1:4001"
    with pytest.raises(BookieNotFoundError, match=r"no bookie 'x' .* \(known: 127\.0\.0\.1:4001, b\)"):
        STATE.bookie("x")


@pytest.mark.parametrize("data", [b"{}", b'{"zookeeper_port":4000,"bookies":[{"name":"\xff"}]}'])
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, data: bytes) -> None:
    Path(state_path(str(tmp_path))).write_bytes(data)
    with pytest.raises(RefusedError, match="is not the state of a development cluster"):
        read_state(str(tmp_path))


@pytest.mark.parametrize("name", ["../../home", "/home", "", ".", "zookeeper", "bookie-1/.."])
def test_a_state_that_names_other_directories_is_refused(tmp_path: Path, name: str) -> None:
    write_state(str(tmp_path), ClusterState(4000, (BookieRecord(name, "127.0.0.1:4001", 4001),)))
    with pytest.raises(RefusedError, match="is not the directory of a bookie"):
        read_state(str(tmp_path))


def test_a_directory_that_no_cookie_can_name_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written in a cookie"):
        cluster(tmp_path / "a,b").plan(1, None)
    assert list(tmp_path.iterdir()) == []


def test_directories_with_other_things_are_refused(tmp_path: Path) -> None:
    require_unused(str(tmp_path))
    require_unused(str(tmp_path / "absent"))
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RefusedError, match=r"contains other files \(thesis\.tex"):
        require_unused(str(tmp_path))
    with pytest.raises(RefusedError, match="is not a directory"):
        require_unused(str(tmp_path / "thesis.tex"))


def cluster(directory: Path) -> LocalCluster:
    return LocalCluster(str(directory), print)


def test_plan_of_a_new_cluster(tmp_path: Path) -> None:
    plan = cluster(tmp_path / "new").plan(2, 5000)
    assert plan.zookeeper_port == 5000
    assert [(bookie.name, bookie.id, bookie.port) for bookie in plan.bookies] == [
        ("bookie-1", "127.0.0.1:5001", 5001),
        ("bookie-2", "127.0.0.1:5002", 5002),
    ]
    free = cluster(tmp_path / "new").plan(None, None)
    ports = {port for bookie in free.bookies for port in (bookie.port, bookie.admin_port)}
    assert len({0, free.zookeeper_port, *ports}) == 8
    assert not (tmp_path / "new").exists()


def test_plan_of_an_existing_cluster_keeps_what_is_there(tmp_path: Path) -> None:
    write_state(str(tmp_path), STATE)
    assert cluster(tmp_path).plan(None, None) == STATE
    assert cluster(tmp_path).plan(2, 4000) == STATE
    grown = cluster(tmp_path).plan(4, 4000)
    assert grown.bookies[:2] == STATE.bookies
    assert [(bookie.name, bookie.port) for bookie in grown.bookies[2:]] == [("bookie-3", 4003), ("bookie-4", 4004)]


def test_a_bookie_of_an_earlier_version_gets_an_admin_port_unless_it_is_running(tmp_path: Path) -> None:
    records = b'{"name":"bookie-1","id":"b1","port":4001},{"name":"bookie-2","id":"b2","port":4002}'
    Path(state_path(str(tmp_path))).write_bytes(b'{"zookeeper_port":4000,"bookies":[%s]}' % records)
    running = identify(os.getpid())
    assert running is not None
    (tmp_path / "bookie-2").mkdir()
    write_pid_file(str(tmp_path / "bookie-2" / "process.json"), running)
    first, second = cluster(tmp_path).plan(None, None).bookies
    assert first.admin_port not in {0, 4000, 4001, 4002}
    assert second.admin_port == 0
    assert [bookie.admin_port for bookie in cluster(tmp_path).status().bookies] == [None, None]


@pytest.mark.parametrize(
    ("count", "base_port", "sentence"),
    [(1, None, "has 2 bookies"), (2, 5000, "already uses ports from 4000 on")],
)
def test_plans_that_would_change_what_is_there(
    tmp_path: Path, count: int, base_port: int | None, sentence: str
) -> None:
    write_state(str(tmp_path), STATE)
    with pytest.raises(InvalidArgumentError, match=sentence):
        cluster(tmp_path).plan(count, base_port)


def test_ports_end_at_65535(tmp_path: Path) -> None:
    assert cluster(tmp_path).plan(1, 65534).bookies[0].port == 65535
    with pytest.raises(InvalidArgumentError, match="leaves no room for 3 ports below 65536"):
        cluster(tmp_path).plan(2, 65534)


async def test_nothing_to_do_without_a_cluster(tmp_path: Path) -> None:
    for action in (cluster(tmp_path).kill("b"), cluster(tmp_path).start("b"), cluster(tmp_path).down(is_deleting=True)):
        with pytest.raises(NotFoundError, match="no development cluster"):
            await action
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_would_be_done(tmp_path: Path) -> None:
    write_state(str(tmp_path), STATE)

    def dry_run(*words: str) -> BkctlResult:
        return run_bkctl("dev", "cluster", *words, "--dir", str(tmp_path), "--dry-run")

    for verb in ("kill", "start"):
        refused = dry_run(verb, "nope")
        assert (refused.exit_code, refused.stderr[:23]) == (4, "error: no bookie 'nope'")
    assert dry_run("kill", "bookie-2").stderr == "error: bookie b is not running\n"
    assert dry_run("start", "bookie-2").stderr == "would start zookeeper and bookie-2\n"
    assert dry_run("down").stderr == "would stop all servers\n"
    assert dry_run("down", "--delete").stderr == "would stop all servers and delete their data\n"
    process = identify(os.getpid())
    assert process is not None
    (tmp_path / "bookie-2").mkdir()
    write_pid_file(str(tmp_path / "bookie-2" / "process.json"), process)
    assert dry_run("kill", "b").stderr == f"would kill bookie b (pid {os.getpid()})\n"
    assert dry_run("start", "b").stderr == "would start zookeeper\n"


def test_a_missing_cluster_is_reported_with_the_command_that_starts_one(tmp_path: Path) -> None:
    directory = tmp_path / "my cluster"
    with pytest.raises(NotFoundError, match=f"start one with bkctl dev cluster up --dir '{directory}'$"):
        cluster(directory).status()
