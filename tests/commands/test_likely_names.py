"""A mistyped ledgers root or bookie id gets the name that was probably meant."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkctl.commands.likely_names import nearest_ids
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.processes import Cluster, run_bkctl

KNOWN = ("127.0.0.1:17535", "b1.example.com:3181", "b2.example.com:3181")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("127.0.0.1:17535x", "127.0.0.1:17535"),
        ("127.0.0.1:1753", "127.0.0.1:17535"),
        ("127.0.0.1:17355", "127.0.0.1:17535"),
        ("127.0.0.1:17553", "127.0.0.1:17535"),
        ("b1.exmple.com:3181", "b1.example.com:3181"),
        ("B1.example.com:31811", "b1.example.com:3181"),
        ("127.0.0.1:17023", None),
        ("127.0.0.1:17534", None),
        ("127.0.0.1:17635", None),
        ("127.0.0.1:175", None),
        ("b3.example.com:3181", None),
        ("", None),
    ],
)
def test_only_one_slip_is_corrected(typed: str, meant: str | None) -> None:
    assert nearest_ids(typed, KNOWN) == ([] if meant is None else [meant])


@pytest.mark.cluster
def test_a_mistyped_root_gets_the_nearest_one_before_a_new_cluster(tmp_path: Path) -> None:
    server = asyncio.run(EmbeddedZooKeeper.start(str(tmp_path)))  # of hundreds not all are looked at
    try:
        root = f"zk+hierarchical://{server.connect_string}/ledgers"
        assert run_bkctl("-u", root, "cluster", "init").exit_code == 0
        for words in (("status",), ("audit",), ("metadata", "doctor"), ("cluster", "info")):
            result = run_bkctl("-u", f"{root}x", *words)
            assert result.exit_code == 4
            near = "there is no BookKeeper cluster at /ledgersx: did you mean /ledgers?"
            assert result.stderr == f"error: {near} To create a new one there: bkctl -u {root}x cluster init\n"
            other = run_bkctl("-u", f"zk+hierarchical://{server.connect_string}/quite-another-name", *words).stderr
            assert "/quite-another-name: this ZooKeeper has /ledgers. To create a new one there: bkctl -u " in other
    finally:
        asyncio.run(server.stop())


@pytest.mark.cluster
def test_a_mistyped_bookie_id_gets_the_nearest_ones(cluster: Cluster) -> None:
    bookie_id, *others = (each.id for each in cluster.bookies)
    right = cluster.run("autorecovery", "maintenance", "end", bookie_id)
    assert (right.exit_code, right.stderr) == (4, f"error: bookie {bookie_id} is not in maintenance\n")
    typed = f"{bookie_id}x"
    for words in (
        *(("bookie", verb, typed) for verb in ("show", "state", "info", "restart-check", "undrain", "ready")),
        ("bookie", "drain", typed, "-n"),
        ("recover", typed, "-n"),
        ("recover", others[0], "--to", typed, "-n"),
        ("decommission", typed, "-n"),
        ("cookie", "show", typed),
        ("cookie", "delete", typed, "-n"),
        ("autorecovery", "maintenance", "end", typed, "-n"),
        ("ledger", "list", "--bookie", typed),
        ("audit", "--what-if", typed),
    ):
        if words[:2] == ("recover", others[0]):
            cluster.stop_bookie(others[0])
        result = cluster.run(*words)
        assert (result.exit_code, f"; did you mean {bookie_id}?" in result.stderr) == (4, True), (words, result)
    unlike = cluster.run("bookie", "show", "unlike-any-other")
    assert (unlike.exit_code, unlike.stderr) == (4, "error: no bookie unlike-any-other in this cluster\n")
    several = cluster.run("bookie", "show", typed, "unlike-any-other").stderr.splitlines()
    assert several[0].startswith(f"error: no bookie {typed} in this cluster; did you mean {bookie_id}")


@pytest.mark.cluster
def test_a_mistyped_command_of_recover_is_not_called_a_bookie(cluster: Cluster) -> None:
    bookie_id = cluster.bookies[0].id
    for typed, meant in (
        (("ledgers", "3"), "ledger 3"),
        (("legder", "3", "4"), "ledger 3 4"),
        (("3",), "ledger 3"),
        (("bookie", bookie_id), f"failed-bookie {bookie_id}"),
        (("failed-bookies", bookie_id), f"failed-bookie {bookie_id}"),
    ):
        result = cluster.run("recover", *typed, "-n")
        said = f"error: no bookie {typed[0]} in this cluster; did you mean bkctl recover {meant}?\n"
        assert (result.exit_code, result.stderr) == (4, said), typed
    for unlike in ("unlike-any-other", "bookie1"):
        result = cluster.run("recover", unlike, "-n")
        assert (result.exit_code, f"bookie {unlike} is unknown: no cookie" in result.stderr) == (4, True), result
