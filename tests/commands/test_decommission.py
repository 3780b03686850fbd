"""``bkctl decommission`` against real processes: bookies that still run, and bookies that only were silent."""

from __future__ import annotations

from tests.processes import Cluster


def test_the_plan_of_a_running_bookie_is_shown_with_a_warning(cluster: Cluster) -> None:
    written = cluster.run("ledger", "write-test", "--ledgers", "2", "--entries", "3", "-E", "3", "-W", "3")
    assert written.exit_code == 0, written
    bookie_id = cluster.bookies[0].id
    before = cluster.run("ledger", "show", "0").stdout

    planned = cluster.run("decommission", bookie_id, "--dry-run", "-o", "json")

    assert planned.exit_code == 0, planned
    assert f"bookie {bookie_id} is registered; stop it before you decommission it" in planned.stderr
    plan = planned.json()
    assert (plan["is_registered"], plan["has_cookie"], plan["ledgers"], plan["ledgers_without_target"]) == (
        True,
        True,
        2,
        2,
    )
    assert bookie_id not in plan["targets"]
    refused = cluster.run("decommission", bookie_id, "--yes")
    assert refused.exit_code == 3
    assert f"bookie {bookie_id} is up and serving; stop it first" in refused.stderr
    assert cluster.run("ledger", "show", "0").stdout == before
    assert cluster.run("cookie", "show", bookie_id).exit_code == 0

    unknown = cluster.run("decommission", "nobody:1", "--dry-run")
    assert unknown.exit_code == 4
