"""A parent that gives no standard streams: the command does its work, and answers with its exit code."""

from __future__ import annotations

import subprocess

import pytest

from bkctl.exit_codes import ExitCode
from tests.processes import COMMAND_TIMEOUT_S, bkctl_command, bkctl_environment


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(closed: str) -> None:
    command = bkctl_command("-u", "zk://127.0.0.1:1/ledgers", "--timeout", "100ms", "bookie", "list")
    finished = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=bkctl_environment(),
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == ExitCode.METADATA_UNAVAILABLE
    assert finished.stdout == ""
    assert finished.stderr.startswith("error: no ZooKeeper server responds") is ("2>&-" not in closed)


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)])
def test_a_result_that_nobody_takes_is_no_failure(arguments: tuple[str, ...]) -> None:
    finished = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *bkctl_command(*arguments)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=bkctl_environment(),
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
