"""How a command finds a running bookie, and what it says if none answers; with ``bookie state``."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.commands.bookie.admin_access import registered_address
from bkctl.runtime.admin.calls import AdminAddress
from bkctl.runtime.errors import BookieUnavailableError
from bkctl.runtime.metadata.bookies.service_info import BookieServiceInfo, Endpoint
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.commands.bookie.admin_bookie import AdminBookie, running_bookie
from tests.commands.bookie.registered_server import register_admin_port
from tests.processes import HALTED_SESSION_MS, LOOPBACK, free_port, run_bkctl

pytestmark = pytest.mark.cluster


@pytest.fixture
def bookie(metadata_uri: str, tmp_path: Path) -> Iterator[AdminBookie]:
    with running_bookie(metadata_uri, tmp_path, f"zkTimeout={HALTED_SESSION_MS}") as running:
        yield running


def test_the_state_over_the_socket_and_over_tcp(bookie: AdminBookie) -> None:
    here = bookie.run("state", "-o", "json").json()
    socket = bookie.directory / "bkctl.admin.sock"
    assert (here["kind"], here["bookie_id"]) == ("BookieState", bookie.bookie_id)
    assert (here["state"], here["stage"], here["mode"], here["reasons"]) == ("running", None, "writable", [])
    assert here["ledger_directories"] == [str(bookie.directory)]
    assert here["answered_by"] == f"admin socket {socket}"
    by_id = run_bkctl("bookie", "state", bookie.bookie_id, "-o", "json").json()
    assert by_id["answered_by"] == here["answered_by"]
    remote = bookie.run_over_tcp("state", "-o", "json").json()
    assert remote["answered_by"] == f"admin port 127.0.0.1:{bookie.http_port}"
    volatile = {"answered_by", "uptime_s"}
    assert {k: v for k, v in remote.items() if k not in volatile} == {
        k: v for k, v in here.items() if k not in volatile
    }


@pytest.mark.parametrize("is_first", [True, False])
def test_of_several_bookies_the_advice_is_about_the_one_that_is_out_of_reach(
    bookie: AdminBookie, is_first: bool
) -> None:
    port = free_port()
    register_admin_port(bookie.metadata_uri, "10.0.0.9:3181", LOOPBACK, port)
    ids = ["10.0.0.9:3181", bookie.bookie_id] if is_first else [bookie.bookie_id, "10.0.0.9:3181"]
    asked = run_bkctl("bookie", "log-level", "info", *ids, BKCTL_METADATA_URI=bookie.metadata_uri)
    assert asked.exit_code == 7
    assert asked.stderr == (
        f"error: bookie 10.0.0.9:3181: no process listens on admin port {LOOPBACK}:{port}; it listens where "
        "httpServerHost says: an address that this machine can reach?\n"
    )


def test_a_change_reaches_only_the_bookie_that_was_named(bookie: AdminBookie) -> None:
    """A registration may name the port of another bookie."""
    named = f"{LOOPBACK}:{free_port()}"
    register_admin_port(bookie.metadata_uri, named, LOOPBACK, bookie.http_port)
    sentence = (
        f"error: bookie {named}: bookie {bookie.bookie_id} answers at admin port {LOOPBACK}:{bookie.http_port}; "
        "nothing was changed"
    )
    for words in (
        *(("gc", "run"), ("gc", "suspend"), ("gc", "confirm"), ("log-level", "debug")),
        *(
            ("index", "rebuild", "--online"),
            ("set-mode", "read-only", "--dry-run"),
            ("set-mode", "read-only"),
            ("stop",),
        ),
    ):
        refused = run_bkctl(
            *("bookie", *words, named, "--yes", "--token-file", str(bookie.directory.with_name("token"))),
            BKCTL_METADATA_URI=bookie.metadata_uri,
            BKCTL_ADMIN_TOKEN_HOSTS=LOOPBACK,
        )
        assert (refused.exit_code, refused.stdout) == (7, ""), (words, refused)
        assert sentence in refused.stderr.splitlines(), words
        state = bookie.run("state", "-o", "json").json()
        assert (state["state"], state["mode"], state["jobs"]) == ("running", "writable", []), words


def test_a_bookie_here_is_not_that_of_the_same_id_in_another_cluster(bookie: AdminBookie) -> None:
    other = f"{bookie.metadata_uri}-other"
    assert run_bkctl("cluster", "init", BKCTL_METADATA_URI=other).exit_code == 0
    for words in (("state",), ("log-level", "debug"), ("set-mode", "read-only", "--yes")):
        refused = run_bkctl("bookie", *words, bookie.bookie_id, BKCTL_METADATA_URI=other)
        assert (refused.exit_code, refused.stdout) == (4, ""), (words, refused)
        assert f"no bookie {bookie.bookie_id} in this cluster" in refused.stderr
        root = bookie.metadata_uri.partition("//")[2].partition("/")[2]
        assert f"the bookie of this ID on this machine belongs to the cluster /{root}" in refused.stderr
    asyncio.run(create_cookie(other, bookie.bookie_id))
    down = run_bkctl("bookie", "state", bookie.bookie_id, BKCTL_METADATA_URI=other)
    assert (down.exit_code, down.stdout) == (7, ""), down
    assert f"bookie {bookie.bookie_id}: not registered; the bookie of this ID on this machine" in down.stderr
    register_admin_port(other, bookie.bookie_id, LOOPBACK, free_port())
    refused = run_bkctl("bookie", "state", bookie.bookie_id, BKCTL_METADATA_URI=other)
    assert (refused.exit_code, "no process listens on admin port" in refused.stderr) == (7, True), refused
    assert bookie.run("state", "-o", "json").json()["mode"] == "writable"
    for uri in (bookie.metadata_uri, ""):
        assert run_bkctl("bookie", "state", bookie.bookie_id, BKCTL_METADATA_URI=uri).exit_code == 0


async def create_cookie(metadata_uri: str, bookie_id: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await store.create(Paths(uri.root).cookie(bookie_id), b"", make_parents=True)


def test_the_bookie_of_the_settings(bookie: AdminBookie, tmp_path: Path) -> None:
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={bookie.metadata_uri}\njournalDirectories={tmp_path}/journal\n"
        f"ledgerDirectories={bookie.directory}\n"
    )
    assert run_bkctl("bookie", "state", "-o", "name", "--conf", str(conf)).stdout == f"{bookie.bookie_id}\n"


def test_a_socket_with_a_short_name(metadata_uri: str, tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30)
    with running_bookie(metadata_uri, directory) as bookie:
        assert (bookie.directory / "bkctl.admin.sock").is_symlink()
        assert bookie.run("state", "-o", "name").stdout == f"{bookie.bookie_id}\n"
        found = run_bkctl("bookie", "state", bookie.bookie_id, "-o", "json").json()
        assert found["ledger_directories"] == [str(bookie.directory)]


def test_several_bookies_are_listed(bookie: AdminBookie, metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path / "second") as second:
        refused = run_bkctl("bookie", "state")
        assert refused.exit_code == 2
        for each in (bookie, second):
            assert f"{each.bookie_id} (--ledger-dir {each.directory})" in refused.stderr


def test_a_bookie_that_does_not_run(bookie: AdminBookie, tmp_path: Path) -> None:
    os.kill(bookie.process.pid, signal.SIGKILL)
    bookie.process.wait()
    killed = bookie.run("state")
    assert (killed.exit_code, killed.stdout) == (7, "")
    assert f"no process listens on admin socket {bookie.directory}/bkctl.admin.sock" in killed.stderr
    (bookie.directory / "bkctl.admin.sock").unlink()
    stopped = bookie.run("state")
    assert stopped.exit_code == 7
    assert "it does not run: there is no" in stopped.stderr
    missing = run_bkctl("bookie", "state", "--ledger-dir", str(tmp_path / "nowhere"))
    assert (missing.exit_code, missing.stderr) == (2, f"error: {tmp_path}/nowhere is not a directory\n")


def test_a_hanging_bookie_ends_the_command_in_its_timeout(bookie: AdminBookie) -> None:
    os.kill(bookie.process.pid, signal.SIGSTOP)
    try:
        for result in (bookie.run("state", "--timeout", "300ms"), bookie.run_over_tcp("state", "--timeout", "2s")):
            assert result.exit_code == 7
            assert "no answer from admin" in result.stderr
            assert "(--timeout)" in result.stderr
    finally:
        os.kill(bookie.process.pid, signal.SIGCONT)


def test_a_bookie_without_an_admin_port(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path, "httpServerEnabled=false") as bookie:
        result = bookie.run_over_tcp("state")
        assert result.exit_code == 7
        assert "set httpServerEnabled=true" in result.stderr
        unknown = run_bkctl("bookie", "state", "unknown:1", BKCTL_METADATA_URI=metadata_uri)
        assert unknown.exit_code == 4


@pytest.mark.parametrize(("host", "found"), [("10.0.0.2", "10.0.0.2"), ("0.0.0.0", "b1"), ("::", "b1")])
def test_an_admin_port_on_all_addresses_is_at_the_address_of_the_bookie(host: str, found: str) -> None:
    rpc = Endpoint("bookie", "b1", 3181, "bookie-rpc")
    info = BookieServiceInfo((rpc, Endpoint("httpserver", host, 8080, "http")))
    assert registered_address("b1:3181", info) == AdminAddress(host=found, port=8080)
    with pytest.raises(BookieUnavailableError, match="set httpServerEnabled=true"):
        registered_address("b1:3181", BookieServiceInfo((rpc,)))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("b1:3181", "--ledger-dir", "/"), "use either an ID or --ledger-dir"),
        (("no/id",), "is not a valid bookie id"),
        (("--ledger-dir", "/nowhere"), "/nowhere is not a directory"),
    ],
)
def test_wrong_arguments(words: tuple[str, ...], sentence: str) -> None:
    result = run_bkctl("bookie", "state", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
