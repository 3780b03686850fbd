"""A bookie that ZooKeeper refuses a new registration: its mode is unchanged, it serves on, and the reason is said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes import Cluster, is_alive
from tests.until import wait_until
from tests.zookeeper_permissions import Permissions

pytestmark = pytest.mark.cluster


@pytest.fixture
def permissions(cluster: Cluster) -> Iterator[Permissions]:
    found = Permissions(cluster.metadata_uri)
    yield found
    found.close()


LIMITS = [
    ("", (), False),
    ("", ("create",), False),
    ("/readonly", (), False),
    ("", (), True),
    ("/readonly", (), True),
]
"""Which node is limited, what is allowed there, and whether the bookie is read-only: the first or the second step of a
change is refused."""


@pytest.mark.parametrize(("below", "allowed", "is_read_only"), LIMITS)
def test_the_mode_is_unchanged(
    cluster: Cluster, permissions: Permissions, below: str, allowed: tuple[str, ...], is_read_only: bool
) -> None:
    bookie = cluster.bookies[0]
    was, other = ("read-only", "writable") if is_read_only else ("writable", "read-only")
    if is_read_only:
        assert cluster.run("bookie", "set-mode", was, bookie.id, "--reason", "sdb", "--yes").exit_code == 0
    before = permissions.registered(), cluster.run("bookie", "state", bookie.id).json()
    path = permissions.available + below
    permissions.limit(path, read=True, **dict.fromkeys(allowed, True))
    for _ in range(2):
        refused = cluster.run("bookie", "set-mode", other, bookie.id, "--yes")
        assert refused.exit_code == 11, refused
        assert f"bookie {bookie.id}: the mode is unchanged: {path}: no permission" in refused.stderr
        assert "in the settings of this bookie" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert is_alive(bookie.pid)
    state = cluster.run("bookie", "state", bookie.id).json()
    for key in ("mode", "reasons", "set_since", "set_reason"):
        assert state[key] == before[1][key]
    assert permissions.registered() == before[0]
    permissions.lift(path)
    assert cluster.run("bookie", "set-mode", other, bookie.id, "--yes").exit_code == 0

    def is_well() -> bool:
        state = cluster.run("bookie", "state", bookie.id).json()
        return (state["mode"], state["registered"], state["troubles"]) == (other, True, [])

    wait_until(is_well, "the bookie is well")


def test_a_drain_and_a_rebuild_end_with_the_reason(cluster: Cluster, permissions: Permissions) -> None:
    bookie = cluster.bookies[0]
    permissions.limit(permissions.available, read=True)
    drained = cluster.run("bookie", "drain", bookie.id, "--yes")
    assert drained.exit_code == 11, drained
    assert f"the mode is unchanged: {permissions.available}: no permission" in drained.stderr
    rebuilt = cluster.run("bookie", "index", "rebuild", "--online", bookie.id, "--yes")
    assert rebuilt.exit_code != 0
    assert f"{permissions.available}: no permission" in rebuilt.stderr
    assert is_alive(bookie.pid)
    assert cluster.run("bookie", "state", bookie.id).json()["mode"] == "writable"
    assert permissions.registered() == ({each.id for each in cluster.bookies}, set())


def test_a_bookie_that_may_not_register_again_serves_on(cluster: Cluster, permissions: Permissions) -> None:
    bookie = cluster.bookies[0]
    permissions.end_registration(bookie.id, bookie.pid)

    def troubles() -> str:
        return str(cluster.run("bookie", "state", "--ledger-dir", f"{bookie.directory}/ledgers").json()["troubles"])

    reason = f"not registered in ZooKeeper, so clients cannot find this bookie: {permissions.available}: no permission"
    wait_until(lambda: reason in troubles(), "the state says why")
    assert is_alive(bookie.pid)
    permissions.lift(permissions.available)
    wait_until(lambda: bookie.id in permissions.registered()[0], "it is registered again")
    wait_until(lambda: troubles() == "[]", "the state says that it is over")
