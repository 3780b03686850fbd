"""Whatever the umask, only the user of a bookie has access to what it writes: entries and master keys."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.bookie.admin_bookie import wait_said
from tests.processes import LOOPBACK, bkctl_command, bkctl_environment, free_port, run_bkctl

pytestmark = pytest.mark.cluster


def wrong_modes(directory: Path) -> Iterator[str]:
    for path in directory.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not path.is_symlink() and mode != (0o700 if path.is_dir() else 0o600):
            yield f"{path}: {mode:o}"


@pytest.mark.parametrize("umask", [0, pytest.param(0o777, marks=pytest.mark.battery)])
def test_data_of_a_bookie_is_its_users_alone(metadata_uri: str, tmp_path: Path, umask: int) -> None:
    made = run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    port, log, data = free_port(), tmp_path / "log", tmp_path / "data"
    words = (
        *("bookie", "start", "--metadata-uri", metadata_uri, "--port", str(port), "--bookie-id", f"{LOOPBACK}:{port}"),
        *("--advertised-address", LOOPBACK, "--set", "allowLoopback=true", "--set", "diskUsageThreshold=0.99"),
        *("--journal-dir", str(data / "journal"), "--ledger-dir", str(data / "ledgers")),
    )
    data.mkdir()
    data.chmod(0o755)
    with log.open("wb") as output:
        process = subprocess.Popen(bkctl_command(*words), stderr=output, env=bkctl_environment(), umask=umask)
    try:
        wait_said(log, f"listening on port {port}", process)
        written = run_bkctl("ledger", "write-test", *["-E", "1", "-W", "1", "-A", "1"], BKCTL_METADATA_URI=metadata_uri)
        assert written.exit_code == 0, written.stderr
        assert list(wrong_modes(data)) == []
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    assert list(wrong_modes(data)) == []
    ledgers = data / "ledgers"
    rebuilt = subprocess.run(
        bkctl_command(
            *(
                "storage",
                "index",
                "rebuild",
                "--yes",
                "--journal-dir",
                str(data / "journal"),
                "--ledger-dir",
                str(ledgers),
            )
        ),
        env=bkctl_environment(),
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert list(wrong_modes(data)) == []
    assert stat.S_IMODE(data.stat().st_mode) == 0o755, "a directory that was there keeps its mode"
