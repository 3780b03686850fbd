"""``bkctl bookie sanity``, ``show``, ``init --check`` and ``format`` for a Java bookie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.offline.format_directories import begin_format, delete_data
from tests.interop.java import JavaBookie
from tests.interop.test_storage_bookies import DATABASES, SORTED, SharedDirectories
from tests.processes import BkctlResult, run_bkctl
from tests.until import wait_until


@pytest.fixture
def shared(tmp_path: Path, metadata_uri: str) -> SharedDirectories:
    return SharedDirectories(tmp_path, metadata_uri)


def bookie(shared: SharedDirectories, *words: str) -> BkctlResult:
    return run_bkctl("bookie", *words, "--conf", shared.conf, BKCTL_STATE_DIR=str(shared.root / "state"))


def directories(shared: SharedDirectories) -> list[str]:
    return [path for letter in "jli" for path in shared.directories(letter).split(",")]


@pytest.mark.parametrize("storage", [DATABASES, SORTED])
def test_a_java_bookie_is_tested_shown_and_formatted(shared: SharedDirectories, storage: str) -> None:
    with shared.java(storage):
        tested = bookie(shared, "sanity", "-o", "json")
        assert tested.exit_code == 0, tested.stderr
        assert (tested.json()["bookie_id"], tested.json()["passed"]) == ("shared", True)
        shown = bookie(shared, "show", "-o", "json")
        assert shown.exit_code == 0, shown.stderr
        body = shown.json()
        assert (body["state"], body["reachable"], body["cookie_problem"]) == ("writable", True, None)
        assert body["ledger_directories"] == shared.directories("l").split(",")
        assert body["free_bytes"] > 0
        for _ in range(4):  # Java chooses the directory of a ledger's index file at random, and each must have one
            shared.write()
        running = bookie(shared, "format", "--confirm", "shared", "--accept-loss", "shared")
        assert (running.exit_code, "stop the bookie first" in running.stderr) == (5, True), running.stderr
    checked = bookie(shared, "init", "--check", "-o", "json")
    results = {row["name"]: row for row in checked.json()["checks"]}
    assert (checked.exit_code, results["cookies"]["result"], results["index"]["result"]) == (12, "ok", "failed")
    assert "storage adopt` with the settings of this bookie" in results["index"]["detail"]
    refused = bookie(shared, "format", "--confirm", "shared")
    assert (refused.exit_code, "ledgers reference bookie shared" in refused.stderr) == (3, True)
    done = bookie(shared, "format", "--confirm", "shared", "--accept-loss", "shared", "--delete-cookie", "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert done.json()["cookie_deleted"] is True
    assert all(os.listdir(path) == [] for path in directories(shared))
    with shared.java(storage):
        shared.written.clear()
        shared.write()
        shared.require_all()


def test_a_java_bookie_does_not_start_on_a_format_that_was_interrupted(shared: SharedDirectories) -> None:
    with shared.java(DATABASES):
        shared.write()
    begin_format(OsFileSystem(), directories(shared))
    delete_data(OsFileSystem(), directories(shared)[:3], lambda: None)
    java = JavaBookie(shared.conf, shared.log)
    try:
        wait_until(lambda: not java.is_running)
    finally:
        java.stop()
    assert "InvalidCookieException" in Path(shared.log).read_text()
    done = bookie(shared, "format", "--confirm", "shared", "--accept-loss", "shared", "--delete-cookie")
    assert done.exit_code == 0, done.stderr
    assert all(os.listdir(path) == [] for path in directories(shared))
