"""A node of ZooKeeper that this user may not read: no permission, in one sentence with its subject."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.processes import Cluster

pytestmark = pytest.mark.cluster


def test_status_and_audit_without_permission_for_the_registrations(cluster: Cluster) -> None:
    uri = parse_metadata_uri(cluster.metadata_uri)
    path = f"{uri.root}/available"
    client = KazooClient(uri.servers)
    client.start()
    try:
        client.set_acls(path, [make_digest_acl("admin", "secret", all=True)])
        status = cluster.run("status", "-o", "json")
        assert status.exit_code == 11, status
        (found,) = [each for each in status.json()["findings"] if each["part"] == "bookies"]
        assert found["finding"].startswith(f"the bookies are unknown: {path}: no permission")
        for _ in range(4):
            audited = cluster.run("audit")
            assert audited.exit_code == 11, audited
            assert audited.stderr.startswith(f"error: {path}: no permission"), audited
            assert audited.stderr.count("\n") == 1, audited
    finally:
        client.add_auth("digest", "admin:secret")
        client.set_acls(path, OPEN_ACL_UNSAFE)
        client.stop()
        client.close()
