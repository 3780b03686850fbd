"""Logs on a real cluster that lose a writer, or their nodes in ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Cluster, run_bkctl, start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster

ANSWERED = 300
USAGE, INTERRUPTED = 2, 130


def operate(cluster: Cluster, state: Path, *arguments: str, code: int = 0) -> str:
    """stdout and stderr of a command."""
    environment = {"BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_STATE_DIR": str(state)}
    result = run_bkctl(*arguments, timeout_s=120, **environment)
    assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def stop_bookies(cluster: Cluster) -> None:
    for bookie in cluster.bookies:
        os.kill(bookie.pid, signal.SIGTERM)
    wait_until(lambda: cluster.run("cluster", "info").json()["writable_bookies_count"] == 0)


def test_a_follower_reads_on_over_writers_that_take_over_and_trims(cluster: Cluster, tmp_path: Path) -> None:
    state, out, source = tmp_path / "state", tmp_path / "out", tmp_path / "lines"
    operate(cluster, state, "log", "create", "followed", "--roll-size", "64")
    with out.open("w") as stdout:
        command = ("log", "read", "followed", "--follow", "-o", "jsonl")
        follower = start_bkctl(*command, stdout=stdout, variables={"BKCTL_METADATA_URI": cluster.metadata_uri})
    written: list[str] = []
    for turn in range(3):  # each append is a writer of its own, which rolls after a few lines
        lines = [f"line {turn} {number}" for number in range(10)]
        source.write_text("".join(f"{line}\n" for line in lines))
        operate(cluster, state, "log", "append", "followed", "--from-file", str(source))
        written.extend(lines)
        wait_until(lambda: len(followed(out)) >= len(written), tell=out.read_text)
        assert followed(out) == list(enumerate(written))
        operate(cluster, state, "log", "trim", "followed", "--before", str(len(written)), "--confirm", "followed")
    follower.send_signal(signal.SIGINT)
    assert follower.wait(120) == INTERRUPTED


def test_a_line_that_is_typed_reaches_a_follower_before_the_next_one(cluster: Cluster, tmp_path: Path) -> None:
    out, pipe = tmp_path / "out", tmp_path / "pipe"
    operate(cluster, tmp_path / "state", "log", "create", "typed", "-E", "3", "-W", "2", "-A", "2")
    os.mkfifo(pipe)
    environment = {"BKCTL_METADATA_URI": cluster.metadata_uri}
    with out.open("w") as stdout:
        command = ("log", "read", "typed", "--follow", "-o", "jsonl")
        follower = start_bkctl(*command, stdout=stdout, variables=environment)
    writer = start_bkctl("log", "append", "typed", "--from-file", str(pipe), variables=environment)
    with pipe.open("wb", buffering=0) as lines:
        for number in range(3):
            lines.write(b"line %d\n" % number)
            wait_until(lambda: len(followed(out)) > number, tell=out.read_text)  # noqa: B023  called at once
    assert writer.wait(120) == 0
    follower.kill()
    follower.wait()
    assert followed(out) == [(number, f"line {number}") for number in range(3)]


@pytest.mark.parametrize("options", [("-o", "json"), ("-o", "yaml"), ("--sort", "position")])
def test_a_follower_of_a_log_refuses_what_needs_its_end(options: tuple[str, ...]) -> None:
    refused = run_bkctl("log", "read", "any", "--follow", *options, BKCTL_METADATA_URI="zk://127.0.0.1:1/ledgers")
    assert refused.exit_code == USAGE, refused
    assert refused.stderr.startswith("error: --follow writes ")


def followed(out: Path) -> list[tuple[int, str]]:
    """Positions and texts of the whole lines that a follower has written."""
    rows = [json.loads(line) for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [(int(row["position"]), row["payload"]) for row in rows]


def test_what_a_killed_writer_has_acknowledged_is_there_for_the_next_one(cluster: Cluster, tmp_path: Path) -> None:
    state, out, pipe = tmp_path / "state", tmp_path / "out", tmp_path / "pipe"
    operate(cluster, state, "log", "create", "a")
    os.mkfifo(pipe)
    environment = {"BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_STATE_DIR": str(state)}
    with out.open("w") as stdout:
        command = ("log", "append", "a", "--from-file", str(pipe), "-o", "jsonl")
        writer = start_bkctl(*command, stdout=stdout, variables=environment)

    def answered() -> list[dict[str, Any]]:
        return [json.loads(line) for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    sent = 0
    with pipe.open("wb", buffering=0) as lines:
        while len(answered()) < ANSWERED:
            assert writer.poll() is None
            lines.write(b"".join(b"line %d\n" % number for number in range(sent, sent + 100)))
            sent += 100
        writer.kill()
        writer.wait()
    acknowledged = [each["position"] for each in answered()]
    assert acknowledged == list(range(len(acknowledged)))
    last = tmp_path / "last"
    last.write_text("last\n")
    operate(cluster, state, "log", "append", "a", "--from-file", str(last))
    read = operate(cluster, state, "log", "read", "a", "-o", "jsonl").splitlines()
    payloads = [json.loads(line)["payload"] for line in read]
    assert payloads == [*(f"line {number}" for number in range(len(payloads) - 1)), "last"]
    assert len(payloads) > len(acknowledged)


def test_logs_in_backup_nuke_restore_and_format(cluster: Cluster, tmp_path: Path) -> None:
    state, lines = tmp_path / "state", tmp_path / "lines"
    lines.write_text("one\ntwo\n")

    def run(*arguments: str, code: int = 0) -> str:
        return operate(cluster, state, *arguments, code=code)

    older, backup = str(tmp_path / "older"), str(tmp_path / "backup")
    run("cluster", "backup", older)
    for name in ("a", "b"):
        run("log", "create", name)
        run("log", "append", name, "--from-file", str(lines))
    run("cluster", "backup", backup)
    instance_id = run("cluster", "instance-id", "-o", "name").strip()
    stop_bookies(cluster)
    logs = "/bkctl/logs/"
    assert logs in run("cluster", "nuke", "--dry-run")
    run("cluster", "nuke", "--confirm", instance_id)
    plan = run("cluster", "restore", backup, "--dry-run")
    assert "will restore logs that are missing: a, b" in plan
    run("cluster", "restore", backup, "--confirm", instance_id)
    for bookie in cluster.bookies:
        cluster.start_bookie(bookie.id)
    assert run("log", "read", "a", "--format", "raw") == "onetwo"
    run("log", "append", "b", "--from-file", str(lines))
    assert run("log", "read", "b", "--format", "raw") == "onetwoonetwo"
    run("log", "show", "a")
    stop_bookies(cluster)
    assert logs in run("cluster", "format", "--dry-run")
    run("cluster", "format", "--confirm", instance_id)
    run("log", "show", "a", code=4)
    run("cluster", "nuke", "--confirm", run("cluster", "instance-id", "-o", "name").strip())
    assert "restore logs" not in run("cluster", "restore", older, "--confirm", instance_id)
    run("log", "show", "a", code=4)
