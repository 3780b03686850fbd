"""Files that an operator names, among them devices and pipes that never end."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from bkctl.storage.adapters.given_files import SMALL_BYTES_MAX, read_given_file
from tests.processes import bkctl_command, bkctl_environment, run_bkctl


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size in (0, 1, SMALL_BYTES_MAX):
        path.write_bytes(b"x" * size)
        assert read_given_file(str(path)) == b"x" * size
    path.write_bytes(b"x" * (SMALL_BYTES_MAX + 1))
    with pytest.raises(OSError, match="more than 1 MiB") as raised:
        read_given_file(str(path))
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))


def test_a_pipe_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"secret\n")
    os.close(writing)
    assert read_given_file(f"/dev/fd/{reading}") == b"secret\n"
    os.close(reading)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ledger", "import", "/dev/zero", "--create-only"),
        ("ledger", "read", "1", "--password-file", "/dev/zero"),
        ("cookie", "create", "b1", "--from-file", "/dev/zero"),
        ("bookie", "list", "--conf", "/dev/zero"),
    ],
)
def test_a_device_that_never_ends_is_refused(arguments: tuple[str, ...], metadata_uri: str) -> None:
    """In 4 GiB of memory, so that a command that reads on ends."""
    assert run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri).exit_code == 0
    limited = ["bash", "-c", 'ulimit -v 4194304; exec "$@"', "bash", *bkctl_command(*arguments)]
    environment = bkctl_environment(BKCTL_METADATA_URI=metadata_uri)
    ended = subprocess.run(limited, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == (13 if "--conf" in arguments else 2), ended
    assert "/dev/zero" in ended.stderr
    assert "it has more than" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
