"""Rack tables and rack scripts on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.net.rack_files import OsRackFiles


def script(directory: Path, body: str) -> str:
    path = directory / "rack-of"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_a_table_is_text(tmp_path: Path) -> None:
    path = tmp_path / "racks"
    path.write_text("b1 /r1\n")
    assert await OsRackFiles().read_table(str(path)) == "b1 /r1\n"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        await OsRackFiles().read_table(str(path))
    with pytest.raises(ConfigurationError, match=r"cannot read the rack table .*: No such file"):
        await OsRackFiles().read_table(str(tmp_path / "none"))


async def test_a_script_gets_the_hosts_and_prints_racks(tmp_path: Path) -> None:
    path = script(tmp_path, 'for host; do echo "/rack-of-$host"; done')
    assert await OsRackFiles().run_script(path, ["h1", "h 2"]) == "/rack-of-h1\n/rack-of-h 2\n"


async def test_a_script_that_fails_is_a_wrong_setting(tmp_path: Path) -> None:
    failing = script(tmp_path, "echo no such host >&2; exit 3")
    with pytest.raises(ConfigurationError, match="failed with exit code 3: no such host"):
        await OsRackFiles().run_script(failing, ["h1"])
    with pytest.raises(ConfigurationError, match=r"cannot run the rack script .*: No such file"):
        await OsRackFiles().run_script(str(tmp_path / "none"), ["h1"])


async def test_a_script_that_hangs_is_ended(tmp_path: Path) -> None:
    path = script(tmp_path, "exec sleep 600")
    with pytest.raises(ConfigurationError, match=r"ran for more than 0\.2 s"):
        await OsRackFiles(timeout_s=0.2).run_script(path, ["h1"])
