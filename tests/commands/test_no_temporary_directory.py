"""A machine without a writable temporary directory: the error says what to set."""

from __future__ import annotations

import asyncio
import os
import pwd
import tempfile
from pathlib import Path

import pytest

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.net.local_socket import listen_unix
from bkctl.spark_reports.deployment import SparkDeployment
from bkctl.spark_reports.session import spark_context


@pytest.fixture
def no_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """None that Python would take can be written to."""

    def candidates() -> list[str]:
        return ["/proc/not-there"]

    for name in ("TMPDIR", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", candidates)


@pytest.mark.usefixtures("no_temporary_directory")
async def test_the_socket_of_a_long_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set RUNTIME_DIRECTORY or TMPDIR to one"):
        await listen_unix(asyncio.Protocol, str(tmp_path / ("x" * 120)))


@pytest.mark.usefixtures("no_temporary_directory")
def test_spark() -> None:
    with pytest.raises(ConfigurationError, match="set TMPDIR to a writable one"), spark_context(SparkDeployment()):
        pass


def test_spark_and_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = next(each for each in range(60_000, 65_000) if each not in {user.pw_uid for user in pwd.getpwall()})
    monkeypatch.setattr(os, "getuid", lambda: unknown)
    with (
        pytest.raises(ConfigurationError, match=f"user id {unknown} has none in /etc/passwd"),
        spark_context(SparkDeployment()),
    ):
        pass
