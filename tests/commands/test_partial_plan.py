"""A plan counts what a run copies, also of ledgers that it cannot move completely."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.commands.test_advice import ensemble_of, succeed
from tests.processes import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.battery]


def test_the_plan_counts_what_the_run_copies(start_cluster: Callable[[int], Cluster]) -> None:
    """Of each five bookies with two copies, two neighbours and another one are lost: only its entries are copied."""
    cluster = start_cluster(8)
    sizes = ("-E", "5", "-W", "2", "-A", "1", "--ledgers", "20", "--entries", "20", "-o", "name")
    first = succeed(cluster, "ledger", "write-test", *sizes).stdout.split()[0]
    members = ensemble_of(cluster, first)
    lost = [members[0], members[1], members[3]]
    for each in lost:
        cluster.stop_bookie(each)
    planned = cluster.run("recover", *lost, "-n", "-o", "json").json()
    found = re.search(r"from .*: ([0-9,]+) fragments?, ([0-9,]+) entries,", planned["summary"][0])
    assert found is not None, planned["summary"]
    assert "of them in part" in planned["summary"][0]
    done = cluster.run("recover", *lost, "--yes", "-o", "json")
    assert done.exit_code == 9, done
    assert done.json()["entries"] == int(found[2].replace(",", ""))
