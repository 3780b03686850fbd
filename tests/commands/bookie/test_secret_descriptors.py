"""Secrets in file descriptors that are open when bkctl starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.processes import bkctl_command, bkctl_environment, run_bkctl

pytestmark = pytest.mark.cluster


def test_only_a_descriptor_that_bkctl_was_started_with_is_read(metadata_uri: str, tmp_path: Path) -> None:
    """bkctl opens some of its own before it reads secrets: a pipe of its event loop never ends."""
    made = run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    config, password = tmp_path / "bkctl.toml", tmp_path / "password"
    password.write_text("sesame\n")

    def list_bookies(number: int, redirection: str) -> tuple[int, str]:
        config.write_text(f'[bookie_client.sasl]\nusername = "operator"\npassword = "fd:{number}"\n')
        command = bkctl_command("bookie", "list", "--config", str(config), "--metadata-uri", metadata_uri)
        found = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=bkctl_environment(),
            timeout=60,
            check=False,
        )
        return found.returncode, found.stderr

    for number in range(3, 10):
        said = (
            f"error: cannot read bookie_client.sasl.password from the file descriptor {number}: it is not open: start "
            f"bkctl with {number}<FILE\n"
        )
        assert list_bookies(number, "") == (13, said)
    code, said = list_bookies(7, f"7<{password}")
    assert (code, "fd:7" in said) == (0, False), said
