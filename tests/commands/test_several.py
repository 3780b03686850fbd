"""Commands for several ids: each in its turn, under one plan and one confirmation, with the worst exit code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bkctl.commands.bookie.admin_state import change_plan, joined_plan
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.admin.api import StateAnswer
from bkctl.runtime.errors import RefusedError
from tests.processes import BkctlResult, Cluster, DevCluster, TerminalSession, is_alive


def succeed(cluster: Cluster, *arguments: str) -> BkctlResult:
    result = cluster.run(*arguments, "-o", "json")
    assert result.exit_code == 0, f"bkctl {' '.join(arguments)}: {result}"
    return result


def test_looks_at_several_are_one_list(cluster: Cluster) -> None:
    ids = [bookie.id for bookie in cluster.bookies]
    for words, key in (
        (("bookie", "show"), "id"),
        (("bookie", "state"), "bookie_id"),
        (("bookie", "ready"), "bookie"),
        (("bookie", "gc", "status"), "bookie_id"),
        (("cookie", "show"), "bookie_id"),
    ):
        found = succeed(cluster, *words, *ids, ids[0]).json()
        assert [item[key] for item in found["items"]] == ids, words
        assert str(found["kind"]).endswith("List")
        one = succeed(cluster, *words, ids[0]).json()
        assert set(one) - {"apiVersion", "kind"} == set(found["items"][0])
    metrics = succeed(cluster, "bookie", "metrics", *ids, "--grep", "process_cpu_seconds").json()["items"]
    assert [item["bookie_id"] for item in metrics] == ids
    text = cluster.run("bookie", "metrics", *ids, "--grep", "process_cpu_seconds", "-o", "table").stdout
    header, _, *rows = (line.split()[0] for line in text.splitlines())
    assert (header, rows) == ("BOOKIE", ids)
    text = cluster.run("bookie", "state", *ids, "-o", "table").stdout
    assert [line.split()[1] for line in text.splitlines() if line.startswith("bookie_id")] == ids
    assert cluster.run("bookie", "state", *ids, "-o", "name").stdout.split() == ids
    header, *rows = cluster.run("cookie", "show", *ids, "-o", "csv").stdout.splitlines()
    assert (header.split(",")[0], [row.split(",")[0] for row in rows]) == ("bookie_id", ids)
    raw = cluster.run("cookie", "show", *ids, "--raw")
    assert (raw.exit_code, "--raw prints one cookie" in raw.stderr) == (2, True)


def test_the_exit_code_is_the_worst_and_the_others_are_shown(cluster: Cluster) -> None:
    first, second, third = (bookie.id for bookie in cluster.bookies)
    succeed(cluster, "ledger", "write-test", "--ledgers", "2", "--entries", "3", "-E", "3", "-W", "3", "-A", "2")
    cluster.stop_bookie(second)
    ready = cluster.run("bookie", "ready", first, "nobody:1", second, third)
    assert (ready.exit_code, [item["bookie"] for item in ready.json()["items"]]) == (7, [first, third])
    assert ready.stderr.endswith("error: 2 of 4 failed\n")
    shown = cluster.run("bookie", "show", "nobody:1", first)
    assert (shown.exit_code, [item["id"] for item in shown.json()["items"]]) == (4, [first])
    assert "error: no bookie nobody:1 in this cluster\n" in shown.stderr
    shown = cluster.run("ledger", "show", "0", "9999", "1")
    assert (shown.exit_code, [item["ledger_id"] for item in shown.json()["items"]]) == (4, ["0", "1"])
    assert "error: ledger 9999: there is no such ledger\n" in shown.stderr
    explained = cluster.run("ledger", "explain", "0", "1")
    assert (explained.exit_code, [each["ledger_id"] for each in explained.json()["items"]]) == (10, ["0", "1"])
    mixed = cluster.run("ledger", "explain", "77", "0")
    assert (mixed.exit_code, len(mixed.json()["items"])) == (10, 1), "findings are worse than a ledger that is gone"
    tested = cluster.run("bookie", "sanity", first, second, third)
    assert (tested.exit_code, [each["bookie_id"] for each in tested.json()["items"]]) == (7, [first, third])


def test_changes_of_several_have_one_plan_and_one_confirmation(cluster: Cluster) -> None:
    first, second, third = ids = [bookie.id for bookie in cluster.bookies]
    planned = succeed(cluster, "bookie", "set-mode", "read-only", *ids, "-n").json()
    assert ([item["path"] for item in planned["items"]], len(planned["summary"])) == (ids, 3)
    words = ("bookie", "set-mode", "read-only", first, second, "-o", "json")
    with TerminalSession(*words, BKCTL_METADATA_URI=cluster.metadata_uri) as session:
        session.wait_for(f"bookie set-mode {first}, {second}: continue?")
        session.type("y\n")
        assert session.exit_code() == 0, session.screen
    assert session.screen.count("continue?") == 1
    rest = succeed(cluster, "bookie", "set-mode", "read-only", *ids, "-y").json()["items"]
    assert [(each["bookie_id"], each["changed"]) for each in rest] == [(first, False), (second, False), (third, True)]
    again = succeed(cluster, "bookie", "set-mode", "read-only", *ids).json()["items"]
    assert [each["changed"] for each in again] == [False] * 3
    levels = succeed(cluster, "bookie", "log-level", "debug", *ids)
    assert [each["level"] for each in levels.json()["items"]] == ["debug"] * 3
    assert levels.stderr.count("to undo: bkctl bookie log-level info ") == 3
    assert len(succeed(cluster, "bookie", "gc", "run", *ids).json()["items"]) == 3
    assert [each["major_suspended"] for each in succeed(cluster, "bookie", "gc", "suspend", *ids).json()["items"]] == [
        *(True, True, True)
    ]
    assert [each["changed"] for each in succeed(cluster, "bookie", "gc", "confirm", *ids).json()["items"]] == [
        *(False, False, False)
    ]
    *_, together = succeed(cluster, "bookie", "stop", second, third, "-n").json()["summary"]
    assert f"cannot be read meanwhile: bkctl bookie restart-check {second} {third}" in together
    stopped = succeed(cluster, "bookie", "stop", second, third, "-y").json()["items"]
    assert [each["bookie_id"] for each in stopped] == [second, third]
    assert [is_alive(bookie.pid) for bookie in cluster.bookies] == [True, False, False]
    refused = cluster.run("bookie", "stop", first, second, "-y")
    assert (refused.exit_code, is_alive(cluster.bookies[0].pid)) == (7, True), "before the plan, nothing is changed"

    typed = cluster.run("cookie", "delete", second, third, "-y")
    assert (typed.exit_code, "--yes is not enough: use --confirm 2" in typed.stderr) == (3, True)
    live = cluster.run("cookie", "delete", second, first, "--confirm", "2")
    assert (live.exit_code, f"bookie {first} is registered" in live.stderr) == (3, True)
    deleted = succeed(cluster, "cookie", "delete", second, third, "--confirm", "2").json()["items"]
    assert [each["bookie_id"] for each in deleted] == [second, third]
    assert succeed(cluster, "cookie", "list").json()["items"][0]["bookie_id"] == first


def test_a_java_bookie_that_does_not_name_its_cluster_is_not_said_to_be_in_another() -> None:
    def plan(name: str, root: str) -> Plan:
        state = StateAnswer(
            bookie_id=name,
            metadata_root=root,
            running=True,
            stopping=False,
            mode="writable",
            accepts_recovery_writes=True,
        )
        return change_plan(state, {"action": "set-mode"})

    with pytest.raises(RefusedError, match="b1:1 and java:1 are not known to belong to the same cluster: run a"):
        joined_plan([plan("b1:1", "/ledgers"), plan("java:1", "")])
    with pytest.raises(RefusedError, match="belong to different clusters"):
        joined_plan([plan("b1:1", "/ledgers"), plan("b2:1", "/others")])
    assert joined_plan([plan("java:1", ""), plan("java:2", "")]).subject == "java:1, java:2"


def test_bookies_of_a_development_cluster_are_killed_and_started_together(
    start_dev_cluster: Callable[[int], DevCluster],
) -> None:
    dev_cluster = start_dev_cluster(3)
    directory = ("--dir", dev_cluster.directory)
    names = ["bookie-2", "bookie-3"]
    killed = dev_cluster.run("dev", "cluster", "kill", *names, *directory)
    assert [(item["name"], item["state"]) for item in killed.json()["items"]] == [(each, "stopped") for each in names]
    unknown = dev_cluster.run("dev", "cluster", "kill", "bookie-1", "bookie-9", *directory)
    assert unknown.exit_code == 4
    assert is_alive(dev_cluster.bookies[0].pid), "an unknown name is found before the first is killed"
    started = dev_cluster.run("dev", "cluster", "start", *names, *directory)
    assert (started.exit_code, [each["state"] for each in started.json()["bookies"]]) == (0, ["running"] * 3)
