"""A drain whose certificate expires while connections to most bookies are open: one bookie starts again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.secured_clusters import OurCluster
from tests.interop.security_files import TestAuthority
from tests.interop.security_modes import OPERATOR_ROLE, Mode, sides_of
from tests.processes import start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster
SIZES = ("-E", "2", "-W", "2", "-A", "2")
LEDGERS = 60
RATE = "5KiB"
"""Per second: the drain takes four minutes."""
UNITS = f"0:{OPERATOR_ROLE}"


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path / "files" / "tls")


@pytest.fixture
def cluster(metadata_uri: str, tmp_path: Path, authority: TestAuthority) -> Iterator[OurCluster]:
    """Two bookies with ledgers, and a third one as the only target."""
    sides = sides_of(Mode.ROLE, tmp_path / "files", authority=authority)
    cluster = OurCluster(tmp_path / "cluster", metadata_uri, sides)
    try:
        cluster.up(2)
        written = cluster.run("ledger", "write-test", "--ledgers", str(LEDGERS), "--entries", "20", *SIZES)
        assert written.exit_code == 0, written.stderr
        cluster.add()
        yield cluster
    finally:
        cluster.stop()


def test_the_drain_ends_at_once_and_goes_on_with_a_new_certificate(
    cluster: OurCluster, authority: TestAuthority, tmp_path: Path
) -> None:
    """The bookies with open connections accept the client, so that each ledger could be read, and then not written."""
    leaving, _, target = cluster.running
    errors, jobs = tmp_path / "errors", tmp_path / "state" / "jobs"
    words = ("bookie", "drain", leaving, "--yes")
    began = time.monotonic()
    planned = cluster.run(*words, "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    valid_s = 4.0 + 4 * (time.monotonic() - began)  # a busy machine, too, needs less until the drain copies
    authority.issue("client", units=UNITS, valid_s=valid_s)
    expires = time.monotonic() + valid_s
    with errors.open("wb") as file:
        variables = {
            "BKCTL_METADATA_URI": cluster.metadata_uri,
            "BKCTL_STATE_DIR": str(jobs.parent),
            **cluster.sides.variables,
        }
        process = start_bkctl(*words, "--copy-rate", RATE, stdout=file, stderr=file, variables=variables)
    try:
        wait_until(lambda: [*jobs.glob("*.rates")], "it begins to copy", process=process, tell=errors.read_text)
        wait_until(lambda: time.monotonic() > expires + 1.0, process=process, tell=errors.read_text)
        cluster.kill(target)
        cluster.up(3)
        exit_code = process.wait(300)
    finally:
        process.kill()
        process.wait()
    said = errors.read_text()
    assert exit_code == 11, said
    own = authority.file("client.pem")
    assert said.splitlines()[-1] == (
        f"error: bookie {target}: it rejects the certificate of this client, {own} "
        "(bookie_client.tls.certificate_file): expired"
    )
    ended = re.search(rf"stopped before the end: (\d+) of {LEDGERS} ledgers finished", said)
    assert ended is not None, said
    assert int(ended[1]) < LEDGERS / 2
    resume = re.search(r"--resume (\S+)", said)
    assert resume is not None, said
    authority.issue("client", units=UNITS)
    resumed = cluster.run(*words, "--resume", resume[1], "--copy-rate", "10MiB")
    assert resumed.exit_code == 0, resumed.stderr
