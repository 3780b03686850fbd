"""A drain and a recovery whose only target serves, but does not accept the role of this client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.secured_clusters import OurCluster
from tests.interop.security_modes import BOOKIE_ROLE, OPERATOR_ROLE, Mode, sides_of
from tests.until import wait_until

pytestmark = pytest.mark.cluster
SIZES = ("-E", "2", "-W", "2", "-A", "2")


@pytest.fixture
def cluster(metadata_uri: str, tmp_path: Path) -> Iterator[OurCluster]:
    """Two bookies with ledgers, and a third one that accepts only other bookies."""
    sides = sides_of(Mode.ROLE, tmp_path / "files")
    cluster = OurCluster(tmp_path / "cluster", metadata_uri, sides)
    try:
        cluster.up(2)
        written = cluster.run("ledger", "write-test", "--ledgers", "2", "--entries", "5", *SIZES)
        assert written.exit_code == 0, written.stderr
        settings = Path(sides.variables["BKCTL_CONFIG"])
        all_roles = settings.read_text() + "\n[replication]\nregistration_wait_s = 1.0\n"
        settings.write_text(all_roles.replace(f'"{OPERATOR_ROLE}"', f'"{BOOKIE_ROLE}"'))
        assert settings.read_text() != all_roles
        cluster.add()
        settings.write_text(all_roles)
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("words", [("bookie", "drain"), ("decommission",), ("recover",)], ids=" ".join)
def test_no_permission_at_all_targets(cluster: OurCluster, words: tuple[str, ...]) -> None:
    leaving, other, refusing = cluster.running
    if words == ("recover",):
        cluster.kill(leaving)
        wait_until(lambda: leaving not in cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout)
    accepted = () if words == ("recover",) else ("--accept-risk",)  # the target is known not to answer
    planned = cluster.run(*words, leaving, "-n", "-o", "json", *accepted).json()
    assert planned["targets"] == [other], planned
    assert any(each.endswith(", to copy to 1 bookie") for each in planned["summary"]), planned
    (finding,) = [each for each in planned["findings"] if "refuses this client" in each["finding"]]
    assert finding["finding"].startswith(f"bookie {refusing} refuses this client, so nothing can be copied to or from")
    ended = cluster.run(*words, leaving, "--yes", *accepted)
    assert ended.exit_code == 11, ended.stderr
    assert f"bookie {refusing}: it does not accept the role of this client's certificate" in ended.stderr
