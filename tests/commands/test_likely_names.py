"""A mistyped ledgers root or bookie id gets the name that was probably meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bkctl.commands.likely_names import nearest_ids
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
@pytest.mark.parametrize("words", [("status",), ("audit",), ("metadata", "doctor"), ("cluster", "info")])
def test_a_mistyped_root_gets_the_nearest_one_before_a_new_cluster(
    start_cluster: Callable[[int], Cluster], words: tuple[str, ...]
) -> None:
    uri = start_cluster(1).metadata_uri
    servers, root = uri.rsplit("/", 1)
    result = run_bkctl("-u", f"{servers}/{root}x", *words)
    assert result.exit_code == 4
    new = f"bkctl -u {servers}/{root}x cluster init"
    near = f"there is no BookKeeper cluster at /{root}x: did you mean /{root}? To create a new one there: {new}"
    assert result.stderr == f"error: {near}\n"
    other = run_bkctl("-u", f"{servers}/quite-another-name", *words).stderr
    assert "/quite-another-name: this ZooKeeper has " in other
    assert ". To create a new one there: bkctl -u " in other


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
