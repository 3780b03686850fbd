"""``bkctl bookie init``: what a first start would create, and the checks of a start without the start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.metadata.bookies.cookies import decode_cookie
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.journal.format import encode_fence_record
from tests.commands.cookie.conftest import ID, BookieHost
from tests.processes import BkctlResult, free_port, run_bkctl
from tests.runtime.bookie.small_disk import SmallDisk, small_disk

LOOPBACK = "127.0.0.1"
NOT_LOCKED = {"index": "not checked", "journals": "not checked"}


class NewBookie(BookieHost):
    """A bookie with a port of its own, which nothing uses."""

    def __init__(self, directory: Path, metadata_uri: str) -> None:
        super().__init__(directory, metadata_uri)
        self.port = free_port()

    def init(self, *arguments: str, **variables: str) -> BkctlResult:
        words = ("bookie", "init", "--port", str(self.port), *arguments, *self.arguments)
        return self.operator.run(*words, **variables)

    def check(self, exit_code: int = 0, *arguments: str) -> dict[str, dict[str, Any]]:
        """The checks by name; nothing may change."""
        before = self.tree()
        result = self.init("--check", "-o", "json", *arguments)
        assert result.exit_code == exit_code, result
        assert self.tree() == before
        body = result.json()
        assert body["would_start"] is (exit_code == 0)
        return {row["name"]: row for row in body["checks"]}


@pytest.fixture
def host(tmp_path: Path, metadata_uri: str) -> NewBookie:
    return NewBookie(tmp_path, metadata_uri)


def results(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The results that are not "ok"."""
    return {name: row["result"] for name, row in checks.items() if row["result"] != "ok" and name != "file limits"}


def test_init_does_what_a_first_start_does(host: NewBookie) -> None:
    checks = host.check()
    assert results(checks) == {}
    assert list(checks) == [
        *("user", "TLS and logins", "connections to bookies", "port"),
        *("metadata", "cluster", "cookies", "registration", "locks", "index", "journals", "disks"),
        *("directories", "file limits"),
    ]
    assert checks["cookies"]["detail"].startswith("new bookie")
    assert host.ledgers[1] in checks["directories"]["detail"]
    before = host.tree()
    plan = host.init("--dry-run", "-o", "json")
    assert plan.exit_code == 0, plan.stderr
    assert [item["path"] for item in plan.json()["items"]] == [
        *(str(host.version(name)) for name in ("j", "l1", "l2")),
        f"{host.root}/cookies/{ID}",
    ]
    assert host.tree() == before
    made = host.init("-o", "json")
    assert made.exit_code == 0, made.stderr
    assert made.json()["ledger_directories"] == list(host.ledgers)
    stored = host.stored()
    assert stored is not None
    assert decode_cookie(stored).bookie_id == ID
    assert {host.version(name).read_bytes() for name in ("j", "l1", "l2")} == {stored}
    assert results(host.check()) == {}
    host.boot(1)
    assert host.stored() == stored
    assert results(host.check()) == {}


def test_init_refuses_what_is_there(host: NewBookie) -> None:
    assert host.init().exit_code == 0
    before = host.tree()
    again = host.init()
    assert (again.exit_code, "has its cookie already" in again.stderr) == (5, True)
    assert host.tree() == before
    stored = host.stored()
    host.plant(None)
    for name in ("j", "l1", "l2"):
        host.version(name).unlink()
    (host.directory / "l2" / "current" / "0.log").write_bytes(b"data")
    foreign = host.init()
    assert (foreign.exit_code, "without a cookie" in foreign.stderr or "VERSION" in foreign.stderr) == (3, True)
    (host.directory / "l2" / "current" / "0.log").unlink()
    host.name_in_ledgers(7)
    named = host.init()
    assert (named.exit_code, "1 ledger" in named.stderr) == (3, True), named.stderr
    host.drop_ledgers(7)
    host.plant(stored)
    emptied = host.init()
    assert emptied.exit_code == 3, emptied.stderr
    assert not host.version("j").exists()


def test_an_interrupted_init_is_finished_by_the_next(host: NewBookie) -> None:
    assert host.init().exit_code == 0
    stored = host.stored()
    host.plant(None)
    host.version("l2").unlink()
    again = host.init()
    assert again.exit_code == 0, again.stderr
    assert host.stored() == stored
    assert host.version("l2").read_bytes() == stored


def test_each_check_says_why_the_bookie_would_not_start(host: NewBookie) -> None:
    host.boot(1)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, host.port))
        taken.listen()
        checks = host.check(5)
        assert results(checks) == {"port": "failed"}
        assert f"port {host.port} is in use by process {os.getpid()}" in checks["port"]["detail"]
        admin = ("--set", "httpServerEnabled=true", "--set", f"httpServerPort={host.port}")
        host.port = 0
        checks = host.check(5, *admin)
        assert results(checks) == {"admin port": "failed"}
        assert f"in use by process {os.getpid()}" in checks["admin port"]["detail"]
    host.version("l2").write_bytes(b"4\njunk\n")
    assert results(host.check(3)) == {"cookies": "failed"}
    stored = host.stored()
    assert stored is not None
    host.version("l2").write_bytes(stored)
    (host.directory / "l1" / "current" / "ldb-locations.seal").unlink()
    checks = host.check(12)
    assert results(checks) == {"index": "failed", "journals": "not checked"}
    assert "ldb-locations" in checks["index"]["detail"]


def test_a_start_that_would_fail_fails_the_check_and_the_other_way_round(host: NewBookie) -> None:
    """Damage of the index is seen by both, and by neither when it is repaired."""
    host.boot(1, 2)
    seal = host.directory / "l2" / "current" / "ldb-ledgers.seal"
    whole = seal.read_bytes()
    seal.write_bytes(b"junk")
    assert results(host.check(12)) == {"index": "failed", "journals": "not checked"}
    started = host.operator.run("bookie", "start", "--port", str(host.port), *host.arguments)
    assert started.exit_code != 0
    assert "ldb-ledgers" in started.stderr
    seal.write_bytes(whole)
    assert results(host.check()) == {}
    host.boot(1, 2)


def journaled(host: NewBookie) -> Path:
    """Leave records that only the journal has, as a killed bookie does; the journal's newest file."""
    host.boot(2)
    storage = LedgerStorage.open(OsFileSystem(), open_plyvel, host.config().storage, int(time.time() * 1000))
    with contextlib.closing(storage):
        storage.replay()
        storage.journal_of(2).write_group([encode_fence_record(2)])
    return max((host.directory / "j" / "current").glob("*[0-9a-f].txn"), key=lambda path: int(path.stem, 16))


@pytest.mark.parametrize("damage", ["header", "record"])
def test_a_damaged_journal_fails_the_check_as_it_fails_the_start(host: NewBookie, damage: str) -> None:
    journal = journaled(host)
    checks = host.check()
    assert results(checks) == {}
    assert "can be replayed" in checks["journals"]["detail"]
    whole = journal.read_bytes()
    with journal.open("r+b") as file:
        if damage == "header":
            file.write(b"garbage")
        else:
            file.seek(512)
            file.write((-5).to_bytes(4, "big", signed=True))
    checks = host.check(12)
    assert results(checks) == {"journals": "failed"}
    started = host.operator.run("bookie", "start", "--port", str(host.port), *host.arguments)
    assert started.exit_code != 0
    assert checks["journals"]["detail"] in started.stderr
    journal.write_bytes(whole)
    assert results(host.check()) == {}
    os.remove(journal)
    assert "is missing" in host.check(12)["journals"]["detail"]


def test_a_running_bookie(host: NewBookie) -> None:
    with host.running() as process:
        before = host.stored()
        result = host.init("--check", "-o", "json", "--port", "0")
        checks = {row["name"]: row for row in result.json()["checks"]}
        assert result.exit_code == 5
        assert results(checks) == {"registration": "warning", "locks": "failed", **NOT_LOCKED}
        assert f"process {process.pid}" in checks["locks"]["detail"]
        assert host.stored() == before
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_no_cluster_and_no_metadata(host: NewBookie) -> None:
    empty = ("-u", f"zk+hierarchical://{host.operator.uri.servers}{host.root}-none")
    assert results(host.check(4, *empty)) == {"cluster": "failed", "cookies": "not checked"}
    nowhere = ("-u", "zk+hierarchical://127.0.0.1:1/ledgers", "--timeout", "1s")
    checks = host.check(6, *nowhere)
    assert results(checks) == {"metadata": "failed", "cluster": "not checked", "cookies": "not checked"}


def test_a_file_in_place_of_a_directory(host: NewBookie) -> None:
    (host.directory / "l1").write_bytes(b"")
    checks = host.check(3)
    assert checks["directories"]["result"] == "failed"


def full_disk(disk: SmallDisk, *, has_files: bool = True) -> None:
    """Leave no byte on it, and maybe no file."""
    with contextlib.suppress(OSError), (disk.path / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    if not has_files:
        numbers = os.statvfs(disk.path)
        count = numbers.f_files - numbers.f_ffree
        subprocess.run(["mount", "-o", f"remount,nr_inodes={count}", str(disk.path)], check=True)


@pytest.mark.parametrize("name", ["j", "l1"])
def test_a_new_bookie_on_a_full_disk(tmp_path: Path, metadata_uri: str, name: str) -> None:
    with small_disk(tmp_path / name) as disk:
        host = NewBookie(tmp_path, metadata_uri)
        full_disk(disk)
        checks = host.check(1)
        assert results(checks) == {"disks": "warning", "directories": "failed"}
        assert checks["directories"]["detail"].endswith(
            f"/{name}: a start could not write there: No space left on device"
        )
        for option in ((), ("--dry-run",)):
            made = host.init(*option)
            assert (made.exit_code, "a start could not write there" in made.stderr) == (1, True), made
        assert os.listdir(disk.path) == ["ballast"]
        assert host.stored() is None
        started = host.operator.run("bookie", "start", "--port", str(host.port), *host.arguments)
        assert (started.exit_code, "No space left on device" in started.stderr) == (2, True)


@pytest.mark.parametrize("name", ["j", "l1"])
def test_a_used_bookie_on_a_full_disk_would_start_as_read_only(tmp_path: Path, metadata_uri: str, name: str) -> None:
    with small_disk(tmp_path / name) as disk:
        host = NewBookie(tmp_path, metadata_uri)
        host.boot(1)
        full_disk(disk)
        assert results(host.check()) == {"disks": "warning"}
        with host.running():
            pass
        full_disk(disk, has_files=False)
        # A journal needs no new file before the first add.
        assert results(host.check(0 if name == "j" else 1)) == {"disks": "warning"} | (
            {} if name == "j" else {"directories": "failed"}
        )


def test_the_table_does_not_repeat_the_error(host: NewBookie) -> None:
    (host.directory / "l1").write_bytes(b"")
    result = host.init("--check", "-o", "table")
    assert "see the error below" in result.stdout
    assert (result.stdout + result.stderr).count(result.stderr.removeprefix("error: ").strip()) == 1


def test_a_lock_that_cannot_be_opened_is_not_in_use(host: NewBookie) -> None:
    host.boot(1)
    lock = host.directory / "l1" / "current" / "bkctl.lock"
    lock.unlink()
    lock.mkdir()
    checks = host.check(1)
    assert results(checks) == {"locks": "failed", **NOT_LOCKED}
    assert checks["index"]["detail"] == "the directories cannot be locked"


def test_read_only_mode_allows_the_check_alone(host: NewBookie) -> None:
    assert host.init("--check", BKCTL_READ_ONLY="1").exit_code == 0
    refused = host.init(BKCTL_READ_ONLY="1")
    assert (refused.exit_code, "read-only mode" in refused.stderr) == (3, True)


@pytest.mark.parametrize("option", [("--dry-run",), ("--plan-out", "p"), ("--apply", "p")])
def test_a_check_has_no_plan(host: NewBookie, option: tuple[str, ...]) -> None:
    result = host.init("--check", *option)
    assert (result.exit_code, "--check changes nothing" in result.stderr) == (2, True)


def test_without_a_cluster_there_is_nothing_to_initialize(tmp_path: Path) -> None:
    result = run_bkctl("bookie", "init", "--ledger-dir", str(tmp_path / "l"), "--journal-dir", str(tmp_path / "j"))
    assert (result.exit_code, "no cluster specified" in result.stderr) == (13, True), result.stderr
    assert list(tmp_path.iterdir()) == []
