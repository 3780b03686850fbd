"""``bkctl tls check`` at live Java bookies: what they show, and whether they serve this client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.java import RELEASES
from tests.interop.secured_clusters import SecuredCluster, secured_cluster
from tests.interop.security_files import TestAuthority
from tests.interop.security_modes import OPERATOR_ROLE, Mode, sides_of
from tests.processes import LOOPBACK

QUARTER_S = 90 * 86_400.0


def findings(cluster: SecuredCluster, exit_code: int) -> dict[str, tuple[str, str]]:
    result = cluster.run("tls", "check", "--bookie", cluster.running[0], "-o", "json")
    assert result.exit_code == exit_code, result.stdout + result.stderr
    return {row["check"]: (row["severity"], row["finding"]) for row in result.json()["items"]}


@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[-1]])
def test_a_java_bookie_with_roles(new_metadata_uri: Callable[[], str], tmp_path: Path, release: str) -> None:
    authority = TestAuthority(tmp_path / "tls")
    sides = sides_of(Mode.ROLE, tmp_path / "files", authority=authority)
    authority.issue("bookie", units="0:bookie", valid_s=QUARTER_S)
    with secured_cluster(release, sides, tmp_path / "cluster", new_metadata_uri, count=1) as cluster:
        good = findings(cluster, 0)
        assert good["protocol"][1].startswith("TLSv1.")
        assert good["chain"][1] == f"verified with {authority.file('ca.pem')}"
        assert LOOPBACK in good["names"][1]
        assert good["access"][1] == "it serves this client"
        authority.issue("client", units="0:reader")
        severity, sentence = findings(cluster, 10)["access"]
        assert (severity, "role" in sentence) == ("critical", True), sentence
        TestAuthority(tmp_path / "other").issue("client", units=f"0:{OPERATOR_ROLE}")
        for name in ("client.pem", "client.key"):
            (tmp_path / "other" / name).replace(authority.file(name))
        refused = findings(cluster, 10)
        bad = {check: sentence for check, (severity, sentence) in refused.items() if severity == "critical"}
        assert len(bad) == 1, refused
        own = f"the certificate of this client, {authority.file('client.pem')} (bookie_client.tls.certificate_file)"
        assert own in next(iter(bad.values()))
        authority.file("ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
        assert "not signed by a CA in bookie_client.tls.ca_file" in findings(cluster, 10)["handshake"][1]
