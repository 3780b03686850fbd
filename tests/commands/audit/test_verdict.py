"""``bkctl audit`` for people: the verdict first, what to do, totals; ``--sort``, ``--limit`` and ``--compare``."""

from __future__ import annotations

import html
import json
import random
import re
import shlex
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import BkctlResult, Cluster, run_bkctl, run_bkctl_on_terminal
from tests.until import wait_until

pytestmark = pytest.mark.cluster

OK, USAGE, NOT_FOUND, CONFLICT, FINDINGS, INTEGRITY = 0, 2, 4, 5, 10, 12
B1, B2, B3, DOWN, DOWN_TOO = "b1:3181", "b2:3181", "b3:3181", "b4:3181", "b5:3181"
TOPIC = b"tenant/shop/persistent/orders"
FIRST_TABLE, SECOND_TABLE = 0, 1


class AuditedCluster:
    """Three bookies, and two that are down; four ledgers, of which one has no live copy and two miss one."""

    def __init__(
        self, uri: str, store: ZooKeeperStore, ledgers: LedgerStore, directory: Path, of_bookie: bytes
    ) -> None:
        self.uri = uri
        self.store = store
        self.ledgers = ledgers
        self.directory = directory
        self._of_bookie = of_bookie

    async def register(self, bookie_id: str) -> None:
        """A bookie that answers."""
        await self.store.create(self.path(bookie_id), self._of_bookie)

    async def ledger(
        self, ledger_id: int, *bookies: str, length: int = 1000, name: bytes = TOPIC, copies: int | None = None
    ) -> None:
        size = copies or len(bookies)
        labels = (("application", b"pulsar"), ("pulsar/managed-ledger", name))
        metadata = new_ledger(bookies, size, 2 if size > 2 else 1, DigestType.CRC32C, b"", custom_metadata=labels)
        await self.ledgers.create(to_closed(metadata, 9, length), ledger_id=ledger_id)

    def path(self, bookie_id: str) -> str:
        return Paths(parse_metadata_uri(self.uri).root).writable_bookie(bookie_id)

    def audit(self, *arguments: str) -> BkctlResult:
        return run_bkctl("audit", *arguments, BKCTL_METADATA_URI=self.uri)


@pytest.fixture
async def audited(metadata_uri: str, tmp_path: Path, of_bookie: bytes) -> AsyncIterator[AuditedCluster]:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        cluster = AuditedCluster(metadata_uri, store, ledgers, tmp_path, of_bookie)
        for bookie_id in (B1, B2, B3):
            await cluster.register(bookie_id)
        for bookie_id in (B1, B2, B3, DOWN, DOWN_TOO):
            await store.create(Paths(uri.root).cookie(bookie_id), make_parents=True)
        await cluster.ledger(1, DOWN, DOWN_TOO)
        await cluster.ledger(2, B1, B2, DOWN, length=5000, name=b"tenant/shop/persistent/carts")
        await cluster.ledger(3, B2, B3, DOWN)
        await cluster.ledger(4, B1, B2, B3)
        yield cluster


def tables_of(text: str) -> dict[str, list[str]]:
    """Rows of each table by its title; the part before the first table has the title ""."""
    head, *tables = text.split("\n\n")
    return {"": head.splitlines()} | {part.splitlines()[0]: part.splitlines()[3:] for part in tables}


async def test_the_verdict_is_the_first_line_and_the_counters_are_in_wide_alone(audited: AuditedCluster) -> None:
    done = audited.audit("-o", "table")
    assert done.exit_code == FINDINGS
    tables = tables_of(done.stdout)
    assert tables[""] == ["critical: 1 ledger has no live copy; start b4:3181 or b5:3181"]
    assert list(tables) == ["", "Findings", "Ledgers that miss copies or cannot be read", "Totals"]
    first, second, third, _ = tables["Findings"]
    assert first.startswith("critical ")
    assert "topic persistent://tenant/shop/orders (1)" in first
    assert first.endswith("   bkctl bookie show b4:3181 b5:3181")
    assert second.startswith("critical ")
    nothing_repairs = (
        "2 ledgers have too few live copies: bookie b4:3181 is not registered, and nothing repairs the ledgers"
    )
    assert nothing_repairs in second
    assert "topic persistent://tenant/shop/carts (1), topic persistent://tenant/shop/orders (1)" in second
    assert second.endswith("   bkctl recover failed-bookie b4:3181")
    assert third.endswith("   bkctl autorecovery start"), "as in the status"
    assert tables["Totals"][0] == "ledgers   4: 1 replicated, 2 under-replicated, 1 unavailable"
    wide = audited.audit("-o", "wide").stdout
    assert wide.splitlines()[0] == tables[""][0]
    assert any(line.split()[:1] == ["unreplaceable"] for line in tables_of(wide)["Counts"])
    assert "Replication by bookie" in wide


async def test_the_totals_are_a_table_also_on_a_narrow_terminal(audited: AuditedCluster) -> None:
    _, screen = run_bkctl_on_terminal("audit", "--metadata-uri", audited.uri, COLUMNS="60", NO_COLOR="1")
    totals = screen.split("\n\nTotals\n")[1].splitlines()
    assert totals[0].split() == ["OF", "TOTAL"]
    assert totals[2].startswith("ledgers   4: 1 replicated, 2 under-replicated, 1 ")


async def test_started_bookies_end_the_first_finding_and_recovery_the_second(audited: AuditedCluster) -> None:
    await audited.register(DOWN_TOO)
    done = audited.audit("-o", "table")
    assert tables_of(done.stdout)[""] == [
        "critical: 1 ledger has one live copy left: bookie b4:3181 is not registered, and nothing repairs the ledgers"
    ]
    await audited.register(DOWN)
    assert audited.audit("-o", "json").json()["verdict"] == "no auditor is elected, so lost bookies are not noticed"
    await AuditorElection(audited.store, parse_metadata_uri(audited.uri).root, B1, lambda _: None).campaign()
    done = audited.audit("-o", "table")
    assert done.exit_code == OK
    assert tables_of(done.stdout)[""] == ["ok: all 4 ledgers have every copy"]
    assert list(tables_of(done.stdout)) == ["", "Findings", "Totals"], "the ack quorum of ledger 1 is information"


async def test_the_status_and_the_audit_name_the_same_bookies_to_start(audited: AuditedCluster) -> None:
    """Ledger 1 has all copies on both that are down, ledger 5 one copy of each entry."""
    await audited.ledger(5, DOWN, DOWN_TOO, B1, copies=1)
    sentence = f"2 ledgers have entries without a live copy; start {DOWN} and {DOWN_TOO}"
    body = audited.audit("-o", "json").json()
    assert body["verdict"] == sentence
    status = run_bkctl("status", "-o", "json", BKCTL_METADATA_URI=audited.uri).json()
    (finding,) = (each for each in status["findings"] if each["part"] == "no_live_copy")
    assert (finding["finding"], finding["command"]) == (sentence, body["findings"][0]["command"])


async def test_json_has_the_verdict_and_the_findings_and_all_it_had(audited: AuditedCluster) -> None:
    body = audited.audit("-o", "json").json()
    assert body["verdict"] == "1 ledger has no live copy; start b4:3181 or b5:3181"
    assert body["severity"] == "critical"
    assert [(each["severity"], each["part"], each["ledgers"], each["command"]) for each in body["findings"]] == [
        ("critical", "no_live_copy", 1, "bkctl bookie show b4:3181 b5:3181"),
        ("critical", "under_replicated", 2, "bkctl recover failed-bookie b4:3181"),
        ("warning", "no_auditor", None, "bkctl autorecovery start"),
        ("information", "ack_quorum_one", 1, None),
    ]
    assert body["findings"][0]["owners"] == [{"owner": "topic persistent://tenant/shop/orders", "ledgers": 1}]
    assert (body["unavailable"], body["under_replicated"], body["replicated"]) == (1, 2, 1)
    assert body["changes"] is None
    assert body["under_replicated_ledgers"][0]["no_copy_bookies"] == [DOWN, DOWN_TOO]


async def test_sort_and_limit(audited: AuditedCluster) -> None:
    assert audited.audit("-o", "name").stdout.split() == ["1", "2", "3"]
    assert audited.audit("-o", "name", "--sort", "payload_bytes:desc", "--limit", "2").stdout.split() == ["2", "1"]
    rows = audited.audit("-o", "json", "--sort", "payload_bytes:desc").json()["under_replicated_ledgers"]
    assert [row["ledger_id"] for row in rows] == ["2", "1", "3"]
    csv = audited.audit("-o", "csv", "--sort", "ledger_id:desc", "--no-headers").stdout.splitlines()
    assert [line.split(",")[0] for line in csv] == ["3", "2", "1"]
    listed = tables_of(audited.audit("-o", "table", "--sort", "ledger_id:desc", "--limit", "1").stdout)
    (row, more) = listed["Ledgers that miss copies or cannot be read"]
    assert row.split()[0] == "3"
    assert more == "... and 2 more of 3"
    wrong = audited.audit("--sort", "nothing")
    assert (wrong.exit_code, wrong.stdout) == (USAGE, "")
    assert "cannot sort by 'nothing'" in wrong.stderr


@pytest.mark.battery
async def test_a_stored_report_is_shown_alike_and_spark_gives_the_same(audited: AuditedCluster) -> None:
    out = str(audited.directory / "report")
    plain = audited.audit("--out", out, "-o", "table").stdout
    assert run_bkctl("audit", "show", out, "-o", "table").stdout == plain
    of_run = {"seconds", "judged_at", "out"}
    by_spark = audited.audit("--spark", "--cores", "1", "-o", "json").json()
    shown = run_bkctl("audit", "show", out, "-o", "json").json()
    assert {key: by_spark[key] for key in by_spark.keys() - of_run} == {
        key: shown[key] for key in shown.keys() - of_run
    }


async def test_a_bookie_in_maintenance_is_not_to_be_recovered(audited: AuditedCluster) -> None:
    await audited.register(DOWN_TOO)
    arguments = ("--for", "1h", "--accept-risk", "--metadata-uri", audited.uri)
    started = run_bkctl("autorecovery", "maintenance", "start", DOWN, *arguments)
    assert started.exit_code == OK, started
    (finding,) = (each for each in audited.audit("-o", "json").json()["findings"] if each["part"] == "under_replicated")
    assert "2 ledgers have too few live copies: bookie b4:3181 is in maintenance until" in finding["finding"]
    assert finding["command"] == "bkctl autorecovery maintenance list"


def test_the_printed_commands_end_the_findings_of_a_real_cluster(start_cluster: Callable[..., Cluster]) -> None:
    """Two of five bookies die, which have the only copies of a ledger; one is started, the other recovered."""
    cluster = start_cluster(5, session_ms=2000)
    for _ in range(2):
        written = cluster.run("ledger", "write-test", "--ledgers", "20", "--entries", "5", "-E", "2", "-W", "2")
        assert written.exit_code == OK, written
    first, second = cluster.run("ledger", "show", "0", "-o", "json").json()["ensembles"][0]["ensemble"]
    for bookie_id in (first, second):
        cluster.kill_bookie(bookie_id)

    def finding() -> dict[str, Any]:
        body = cluster.run("audit", "-o", "json").json()
        return body["findings"][0] if body["findings"] else {}

    wait_until(lambda: finding().get("part") == "no_live_copy", "both sessions end")
    told = finding()
    assert cluster.run(*told["command"].split()[1:]).exit_code == OK
    assert told["finding"].endswith(f"; start {' or '.join(sorted((first, second)))}")
    to_start, other = first, second
    cluster.start_bookie(to_start)
    wait_until(lambda: finding().get("part") == "at_risk", "the bookie is registered")
    assert finding()["command"] == f"bkctl recover failed-bookie {other}"
    recovered = cluster.run(*finding()["command"].split()[1:], "--yes")
    assert recovered.exit_code == OK, recovered
    body = cluster.run("audit", "-o", "json").json()
    assert [each["part"] for each in body["findings"]] == ["no_auditor", "bookies_unreferenced"], "of this cluster"


# --- an earlier report ---------------------------------------------------------------------------------------------


async def test_what_changed_since_an_earlier_report(audited: AuditedCluster) -> None:
    old = audited.directory / "old"
    audited.audit("--out", str(old))
    await audited.register(DOWN_TOO)
    await audited.store.delete(audited.path(B3))
    await audited.ledger(5, B1, B3, DOWN)
    new = audited.directory / "new"
    done = audited.audit("--compare", str(old), "--out", str(new), "-o", "table")
    assert done.exit_code == FINDINGS
    tables = tables_of(done.stdout)
    newly = "1 new ledger that misses copies or cannot be read"
    expected = f": 1 bookie gone, 1 bookie new or back, {newly}, 2 ledgers worse and 1 ledger better"
    assert tables[""][SECOND_TABLE].endswith(expected)
    assert [line.split()[:4] for line in tables["Changed ledgers"]] == [
        ["5", "new", "-", "at-risk"],
        ["3", "worse", "under-replicated", "at-risk"],
        ["4", "worse", "replicated", "under-replicated"],
        ["1", "better", "unavailable", "under-replicated"],
    ]
    assert ["under_replicated", "2", "3"] in [line.split() for line in tables["Changed counts"]]
    page = (new / "report.html").read_text()
    assert f"{newly}, 2 ledgers worse and 1 ledger better." in page
    again = run_bkctl("audit", "show", str(new), "--compare", str(old / "report.json"), "-o", "json").json()["changes"]
    assert (again["new"], again["worse"], again["better"], again["healed"]) == (1, 2, 1, 0)
    assert (again["bookies_gone"], again["bookies_back"]) == ([B3], [DOWN_TOO])
    assert [row["ledger_id"] for row in again["ledgers"]] == ["5", "3", "4", "1"]
    back = run_bkctl("audit", "show", str(old), "--compare", str(new), "-o", "json").json()["changes"]
    assert (back["new"], back["worse"], back["better"], back["healed"]) == (0, 1, 1, 2)


@pytest.mark.parametrize("is_compared", [False, True])
async def test_commands_of_the_page_are_for_the_same_cluster(audited: AuditedCluster, is_compared: bool) -> None:
    """Pasted elsewhere, they would be for another cluster, or for none."""
    config = audited.directory / "<b>of ops & me's.toml"
    config.write_text(f'[contexts.prod]\nmetadata_uri = "{audited.uri}"\n')
    given = ("--config", str(config), "--context", "prod")
    old, new = audited.directory / "old", audited.directory / "new"
    run_bkctl(*given, "audit", "--out", str(old))
    compared = ("--compare", str(old)) if is_compared else ()
    body = run_bkctl(*given, "audit", "--out", str(new), *compared, "-o", "json").json()
    source = (new / "report.html").read_text()
    assert "<b>of" not in source
    page = html.unescape(source)
    commands = [each["command"] for each in body["findings"] if each["command"]]
    carried = f"bkctl --config {shlex.quote(str(config))} --context prod"
    assert all(each.startswith(carried) and f"<code>{each}</code>" in page for each in commands)
    assert f"<code>{carried} ledger explain 1</code>" in page
    assert f'title="Why: {carried} ledger explain 1"' in page
    assert re.findall(r"bkctl (?!--config ).*", page) == []


async def test_reports_that_cannot_be_compared_are_refused(audited: AuditedCluster) -> None:
    old = audited.directory / "old"
    audited.audit("--out", str(old))
    file = old / "report.json"
    body = json.loads(file.read_text())
    file.write_text(json.dumps(body | {"apiVersion": "bkctl/v9"}))
    other_format = audited.audit("--compare", str(old), "--out", str(audited.directory / "new"))
    assert (other_format.exit_code, other_format.stdout) == (INTEGRITY, "")
    assert f"error: {file} is not the report of an audit, or is damaged: " in other_format.stderr
    assert other_format.stderr.count("\n") == 1
    body["summary"]["instance_id"] = "other"
    file.write_text(json.dumps(body))
    other_cluster = audited.audit("--compare", str(file))
    assert (other_cluster.exit_code, other_cluster.stdout) == (CONFLICT, "")
    assert f"error: {file} is the report of the cluster with the instance id other, but this one has " in (
        other_cluster.stderr
    )
    assert not (audited.directory / "new").exists()
    printed = audited.directory / "printed.json"
    printed.write_text(audited.audit("-o", "json").stdout)
    other_kind = audited.audit("--compare", str(printed))
    assert (other_kind.exit_code, other_kind.stdout) == (INTEGRITY, "")
    assert other_kind.stderr.endswith(
        "; a report is a directory that bkctl audit --out DIR wrote, or its report.json\n"
    )
    missing = audited.audit("--compare", str(audited.directory / "nothing"))
    assert (missing.exit_code, missing.stdout) == (NOT_FOUND, "")
