"""Messages to a real notification socket, and none without one."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from pathlib import Path

import pytest

from bkctl.runtime.net.systemd import Systemd
from tests.service_manager import NotifySocket


def test_fields_arrive_at_a_path_and_at_an_abstract_name(tmp_path: Path) -> None:
    for name in (tmp_path / "notify", f"@bkctl-test-{uuid.uuid4()}"):
        with NotifySocket(name) as manager:
            systemd = Systemd({"NOTIFY_SOCKET": manager.name})
            assert systemd.is_present
            systemd.notify(READY=1, STATUS="read-only\n(a=b)")
            systemd.notify(WATCHDOG=1)
            assert manager.received() == [{"READY": "1", "STATUS": "read-only (a=b)"}, {"WATCHDOG": "1"}]


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_a_socket_there_is_no_service_manager(environment: dict[str, str]) -> None:
    systemd = Systemd(environment | {"WATCHDOG_USEC": "1000000"})
    assert (systemd.is_present, systemd.watchdog_s) == (False, None)
    systemd.notify(READY=1)


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "1500000"}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_that_of_this_process(variables: dict[str, str], watchdog_s: float | None) -> None:
    assert Systemd({"NOTIFY_SOCKET": "@nothing", **variables}).watchdog_s == watchdog_s


def test_what_cannot_be_sent_is_sent_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    systemd.notify(READY=1, STATUS="old")
    systemd.notify(STATUS="new")
    with NotifySocket(tmp_path / "notify") as manager:
        systemd.notify(WATCHDOG=1)
        systemd.notify(WATCHDOG=1)
        assert manager.received() == [{"READY": "1", "STATUS": "new", "WATCHDOG": "1"}, {"WATCHDOG": "1"}]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["cannot notify systemd (No such file or directory); trying again with the next message"]


def test_a_full_socket_blocks_nothing(tmp_path: Path) -> None:
    with NotifySocket(tmp_path / "notify") as manager:
        systemd = Systemd({"NOTIFY_SOCKET": manager.name})
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
            with contextlib.suppress(BlockingIOError):
                while True:
                    other.sendto(b"X=1", manager.name)
            systemd.notify(READY=1)
        assert not any("READY" in each for each in manager.received())
        systemd.notify(WATCHDOG=1)
        assert manager.received() == [{"READY": "1", "WATCHDOG": "1"}]
