"""``bkctl bookie sanity`` and ``bookie show`` with real bookies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import NoNodeError
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import HALTED_SESSION_MS, BookieProcess, Cluster, run_bkctl, start_bkctl
from tests.until import until, wait_until

pytestmark = pytest.mark.cluster


def ledgers(cluster: Cluster) -> str:
    result = cluster.run("ledger", "list", "-o", "name")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def settings_of(bookie: BookieProcess, cluster: Cluster, directory: Path) -> str:
    """A bk_server.conf of the bookie."""
    path = directory / "bk_server.conf"
    path.write_text(
        f"metadataServiceUri={cluster.metadata_uri}\nbookiePort={bookie.port}\nallowLoopback=true\n"
        f"advertisedAddress=127.0.0.1\njournalDirectories={bookie.directory}/journal\n"
        f"ledgerDirectories={bookie.directory}/ledgers\n"
    )
    return str(path)


def test_a_bookie_passes_and_no_ledger_stays(cluster: Cluster, tmp_path: Path) -> None:
    *_, last = cluster.bookies
    result = cluster.run("bookie", "sanity", last.id, "--entries", "7", "-o", "json")
    assert result.exit_code == 0, result.stderr
    body = result.json()
    assert (body["bookie_id"], body["passed"], body["entries"], body["state"]) == (last.id, True, 7, "writable")
    assert ledgers(cluster) == ""
    by_settings = run_bkctl("bookie", "sanity", "--conf", settings_of(last, cluster, tmp_path), "-o", "json")
    assert by_settings.exit_code == 0, by_settings.stderr
    assert (by_settings.json()["bookie_id"], by_settings.json()["entries"]) == (last.id, 10)
    assert int(by_settings.json()["ledger_id"]) == int(body["ledger_id"]) + 1
    planned = cluster.run("bookie", "sanity", last.id, "--dry-run", "-o", "json")
    assert planned.json()["subject"] == last.id
    assert planned.json()["items"][0]["action"] == "create ledger"
    after = cluster.run("bookie", "sanity", last.id, "-o", "json").json()
    assert int(after["ledger_id"]) == int(body["ledger_id"]) + 2, "a dry run creates no ledger"


def test_a_bookie_that_is_down_fails_even_if_others_run(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(3, session_ms=HALTED_SESSION_MS)
    stopped = cluster.bookies[0]
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        frozen = cluster.run("bookie", "sanity", stopped.id)
        assert frozen.exit_code == 7
        assert f"bookie {stopped.id}: no response in time" in frozen.stderr
        assert ledgers(cluster) == ""
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    cluster.down()
    down = cluster.run("bookie", "sanity", stopped.id)
    assert (down.exit_code, f"bookie {stopped.id}: not registered" in down.stderr) == (7, True)
    unknown = cluster.run("bookie", "sanity", "nowhere:3181")
    assert (unknown.exit_code, "no bookie nowhere:3181 in this cluster" in unknown.stderr) == (4, True)


def test_a_start_script_waits_for_a_bookie(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(1)
    [bookie] = cluster.bookies
    cluster.down()
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        waiting = start_bkctl(
            *("bookie", "sanity", bookie.id, "--wait", "10m", "-o", "json"),
            stdout=out,
            stderr=err,
            variables={"BKCTL_METADATA_URI": cluster.metadata_uri},
        )
    said = (tmp_path / "err").read_text
    wait_until(lambda: f"waiting: bookie {bookie.id}: not registered" in said(), process=waiting, tell=said)
    cluster.start_bookie(bookie.id)
    assert waiting.wait(120) == 0, said()
    assert json.loads((tmp_path / "out").read_text())["passed"] is True
    assert said().count("waiting: ") == 1, "a reason is given once"
    cluster.down()
    impatient = cluster.run("bookie", "sanity", bookie.id, "--wait", "1ms")
    assert (impatient.exit_code, "not registered" in impatient.stderr) == (7, True)


def test_a_read_only_bookie_is_asked_and_not_tested(start_cluster: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(1)
    [bookie] = cluster.bookies
    cluster.down()
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = start_bkctl(
            "bookie", "start", "--read-only", "--conf", settings_of(bookie, cluster, tmp_path), stderr=output
        )
    try:
        wait_until(lambda: "listening on port" in log.read_text(), process=process, tell=log.read_text)
        result = cluster.run("bookie", "sanity", bookie.id, "-o", "json")
        assert result.exit_code == 9, result.stderr
        assert "it answers; writing and reading were not tested" in result.stderr
        body = result.json()
        assert (body["state"], body["passed"], body["ledger_id"]) == ("read-only", None, None)
        assert ledgers(cluster) == ""
        os.kill(process.pid, signal.SIGSTOP)
        assert cluster.run("bookie", "sanity", bookie.id).exit_code == 7
        os.kill(process.pid, signal.SIGCONT)
    finally:
        process.kill()
        process.wait(60)


def test_ctrl_c_deletes_the_ledger(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(1, session_ms=HALTED_SESSION_MS)
    bookie = cluster.bookies[0]
    with (tmp_path / "err").open("wb") as err:
        os.kill(bookie.pid, signal.SIGSTOP)
        try:
            running = start_bkctl(
                *("bookie", "sanity", bookie.id, "--wait", "10m"),
                stderr=err,
                variables={"BKCTL_METADATA_URI": cluster.metadata_uri},
            )
            wait_until(lambda: ledgers(cluster) != "", process=running)
            running.send_signal(signal.SIGINT)
            assert running.wait(120) == 130
        finally:
            os.kill(bookie.pid, signal.SIGCONT)
    assert ledgers(cluster) == ""


def test_a_ledger_that_cannot_be_deleted_is_named(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start_cluster(1, session_ms=HALTED_SESSION_MS)
    bookie, uri = cluster.bookies[0], parse_metadata_uri(cluster.metadata_uri)

    async def pin_first_ledger() -> str:
        """Give the test's ledger a child; its id."""
        pinned: list[str] = []

        async def pin() -> bool:
            with contextlib.suppress(NoNodeError):
                for name in await store.children(f"{uri.root}/00/0000"):
                    await store.create(f"{uri.root}/00/0000/{name}/child", b"")
                    pinned.append(name)
            return bool(pinned)

        async with await ZooKeeperStore.connect(uri.servers, ZooKeeperConfig()) as store:
            await until(pin, process=running)
        return pinned[0]

    os.kill(bookie.pid, signal.SIGSTOP)
    try:
        with (tmp_path / "err").open("wb") as err:
            running = start_bkctl(
                *("bookie", "sanity", bookie.id, "--wait", "10m"),
                stderr=err,
                variables={"BKCTL_METADATA_URI": cluster.metadata_uri},
            )
        ledger_id = int(asyncio.run(pin_first_ledger()).removeprefix("L"))
    finally:
        os.kill(bookie.pid, signal.SIGCONT)
    assert running.wait(120) == 9
    assert f"delete it with bkctl ledger delete {ledger_id}" in (tmp_path / "err").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--entries", "0"),
        ("--wait", "0"),
        ("--wait", "soon"),
        ("a/b",),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    result = run_bkctl("bookie", "sanity", *arguments, "-u", "zk+hierarchical://127.0.0.1:1/ledgers")
    assert result.exit_code == 2, result.stderr


def test_show_one_bookie(cluster: Cluster, tmp_path: Path) -> None:
    bookie = cluster.bookies[0]
    result = cluster.run("bookie", "show", bookie.id, "-o", "json")
    assert result.exit_code == 0, result.stderr
    body = result.json()
    listed = {row["id"]: row for row in cluster.run("bookie", "list", "-o", "json").json()["items"]}
    for field, value in listed[bookie.id].items():
        if field not in {"free_bytes", "used_fraction"}:
            assert body[field] == value, field
    assert 0 < body["free_bytes"] <= body["total_bytes"]
    assert body["journal_directories"] == [f"{bookie.directory}/journal"]
    assert body["ledger_directories"] == [f"{bookie.directory}/ledgers"]
    assert body["instance_id"] == cluster.run("cluster", "instance-id", "-o", "name").stdout.strip()
    assert (body["problem"], body["cookie_problem"]) == (None, None)
    table = cluster.run("bookie", "show", bookie.id, "-o", "table").stdout
    assert f"{bookie.directory}/ledgers" in table
    assert "iB" in table
    conf = settings_of(bookie, cluster, tmp_path)
    assert run_bkctl("bookie", "show", "--conf", conf, "-o", "name").stdout.strip() == bookie.id
    cluster.down()
    down = cluster.run("bookie", "show", bookie.id, "-o", "json")
    assert down.exit_code == 0, down.stderr
    assert (down.json()["state"], down.json()["reachable"]) == ("down", None)
    assert down.json()["ledger_directories"] == [f"{bookie.directory}/ledgers"]
    assert cluster.run("bookie", "show", "nowhere:3181").exit_code == 4


@pytest.mark.parametrize("verb", ["sanity", "show"])
def test_without_an_id_and_without_settings(verb: str) -> None:
    result = run_bkctl("bookie", verb, BKCTL_METADATA_URI="zk+hierarchical://127.0.0.1:1/ledgers")
    assert result.exit_code == 13
    assert "specify the ID of a bookie, or the settings of one" in result.stderr
