"""The status for an operator whose own certificate has expired: no permission, as other commands say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.secured_clusters import OurCluster
from tests.interop.security_files import TestAuthority
from tests.interop.security_modes import Mode, sides_of

pytestmark = pytest.mark.cluster


def test_an_expired_certificate_of_the_operator_has_the_code_of_no_permission(
    metadata_uri: str, tmp_path: Path
) -> None:
    authority = TestAuthority(tmp_path / "tls")
    cluster = OurCluster(tmp_path / "cluster", metadata_uri, sides_of(Mode.ROLE, tmp_path / "f", authority=authority))
    try:
        cluster.up(3)
        assert cluster.run("status").exit_code == 10  # no auditor
        authority.issue("client", units="0:operator;1:cluster", valid_s=-60.0)
        for words in (("bookie", "list"), ("bookie", "info"), ("status",)):
            refused = cluster.run(*words, "-o", "json")
            assert refused.exit_code == 11, (words, refused)
        found = {each["part"]: each for each in refused.json()["findings"]}
        assert "it rejects the certificate of this client" in found["bookies_refusing"]["finding"]
    finally:
        cluster.stop()
