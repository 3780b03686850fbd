"""Options of ``bkctl recover failed-bookie``: targets, ledgers, and what happens to open ledgers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.replication.plan.store import JobFile, JobWork
from bkctl.storage.adapters.sqlite import create_database
from tests.commands.cluster.conftest import Operator
from tests.processes import Cluster, run_bkctl
from tests.runtime.replication.test_job_file import START
from tests.zookeeper_permissions import Permissions

DEAD = "b1:3181"
TOPIC = (("application", b"pulsar"), ("pulsar/managed-ledger", b"t/n/persistent/a"))


def planted(ensemble: tuple[str, ...]) -> LedgerMetadata:
    metadata = new_ledger(ensemble, len(ensemble), len(ensemble), DigestType.CRC32C, b"")
    return msgspec.structs.replace(metadata, custom_metadata=TOPIC, ctime_ms=1_700_000_000_000)


def cookie_of(bookie_id: str) -> bytes:
    return encode_cookie(Cookie(bookie_id=bookie_id, journal_directories=("/j",), ledger_directories=("/l",)))


async def plant(store: MetadataStore, root: str, *ledgers: LedgerMetadata) -> None:
    """Ledgers 0, 1, ..."""
    for number, metadata in enumerate(ledgers):
        data = encode_ledger_metadata(metadata)
        await store.create(f"{root}/00/0000/L{number:04d}", data, make_parents=True)


@pytest.fixture
def operator(tmp_path: Path, metadata_uri: str) -> Iterator[Operator]:
    """Two empty ledgers and an open one on b1, which is down. Other bookies are only registered; b5 is read-only."""
    operator = Operator(tmp_path, metadata_uri)
    operator.succeed("cluster", "init")
    closed = to_closed(planted((DEAD, "b2:3181")), -1, 0)

    async def add(store: MetadataStore) -> None:
        await plant(store, operator.root, closed, closed, planted((DEAD, "b2:3181")))
        cookies = {
            f"cookies/{each}": cookie_of(each) for each in (DEAD, *(f"b{number}:3181" for number in range(2, 7)))
        }
        available = [*(f"available/b{number}:3181" for number in (2, 3, 4)), "available/readonly/b5:3181"]
        nodes = dict.fromkeys(available, b"") | cookies
        await asyncio.gather(
            *(store.create(f"{operator.root}/{path}", data, make_parents=True) for path, data in nodes.items()),
        )

    operator.on_store(add)
    yield operator
    operator.end()


def ensemble_of(operator: Operator, ledger_id: int) -> list[str]:
    shown = operator.succeed("ledger", "show", str(ledger_id), "-o", "json").json()
    ensemble: list[str] = shown["ensembles"][-1]["ensemble"]
    return ensemble


def test_a_wrong_target_or_ledger_is_refused(operator: Operator) -> None:
    for arguments, exit_code, sentence in (
        (["--ledger", "0", "--ledger", "seventeen"], 2, "'seventeen' is not a ledger id"),
        (["--ledger", "0", "--ledger", "99"], 4, "ledger 99"),
        (["--to", DEAD], 3, f"bookie {DEAD} cannot be a target: its ledgers are moved"),
        (["--to", "b3:3181", "--to", "b5:3181"], 3, "bookie b5:3181 cannot be a target: it is read-only"),
        (["--to", "b6:3181"], 3, "bookie b6:3181 cannot be a target: it is not registered"),
        (["--to", "b7:3181"], 4, "bookie b7:3181 is unknown: no cookie, and it is not registered"),
        (["--to", "b/7"], 2, "'b/7' is not a valid bookie id"),
    ):
        result = operator.run("recover", DEAD, *arguments, "--yes")
        assert (result.exit_code, sentence in result.stderr) == (exit_code, True), result
    assert [ensemble_of(operator, ledger_id)[0] for ledger_id in (0, 1, 2)] == [DEAD] * 3


def test_a_wrong_job_file_or_rate_is_refused(operator: Operator) -> None:
    other = operator.directory / "other"
    other.write_text("hello\n")
    (empty := operator.directory / "empty").write_text("")
    (older := operator.directory / "older").write_text(OLD_START)
    for arguments, reason in (
        (("--resume", str(operator.directory / "absent")), "there is no job file"),
        (("--resume", str(other)), f"{other} is not a job file of bkctl"),
        (("--resume", str(empty)), "has no complete plan, so the job had copied nothing: start it again without"),
        (("--resume", str(older)), "is a job file of an older bkctl: continue it with the bkctl that began it, or"),
        (("--resume", str(operator.directory)), "cannot open the job file"),
        (("--resume", str(other), "--ledger", "1"), "leave out --to and --ledger"),
        (("--copy-rate", "quick"), "'quick' is not a rate"),
    ):
        result = operator.run("recover", DEAD, "--yes", *arguments)
        assert (result.exit_code != 0, reason in result.stderr) == (True, True), result
    assert other.read_text() == "hello\n"


OLD_START = (
    '{"record":"start","version":1,"job_id":"a1","command":"recover failed-bookie","root":"/ledgers",'
    '"instance_id":"7f3a","bookie_ids":["b1:3181"],"only_targets":[],"is_of_ledgers":false,"open_ledgers":"skip",'
    '"placement":"strict","verify":"sample","started_ms":1}'
)
"""First line of a job file that bkctl wrote before these were databases."""


def write_job(
    operator: Operator, path: Path, *bookie_ids: str, instance_id: str | None = None, is_of_ledgers: bool = False
) -> Path:
    """The file of a job that was killed; returns the path of its rates."""
    instance_id = instance_id or operator.instance_id()
    start = msgspec.structs.replace(START, root=operator.root, instance_id=instance_id, bookie_ids=bookie_ids)
    start = msgspec.structs.replace(start, is_of_ledgers=is_of_ledgers)
    JobFile.create(create_database(str(path)), start, [JobWork(1, 9)]).close()  # ledger 9 was deleted since
    (rates := Path(f"{path}.rates")).write_text("copy-rate = none\n")
    return rates


@pytest.mark.parametrize("command", [("recover", DEAD), ("decommission", "b9:3181", "--if-exists")])
def test_a_job_with_nothing_left_to_do_leaves_no_file(operator: Operator, command: tuple[str, ...]) -> None:
    path = operator.directory / "job"
    rates = write_job(operator, path, command[1], is_of_ledgers=True)
    operator.succeed(*command, "--resume", str(path), "--dry-run")
    assert (path.exists(), rates.exists()) == (True, True)
    done = operator.succeed(*command, "--resume", str(path), "--yes", "-o", "json").json()
    assert (done["ledgers"], path.exists(), rates.exists()) == (0, False, False)


def test_a_continued_job_reports_ledgers_that_it_did_not_plan(operator: Operator) -> None:
    path = operator.directory / "job"
    write_job(operator, path, DEAD)
    result = operator.run("recover", DEAD, "--resume", str(path), "--yes", "-o", "json")
    assert result.exit_code == 1, result
    (row,) = result.json()["failures"]
    assert (row["reason"], row["ledger_ids"]) == ("not in the plan of the continued job", ["0", "1", "2"])


def test_a_job_file_stays_only_while_it_is_of_use(operator: Operator) -> None:
    """A run that moves all ledgers of its bookies finishes earlier jobs for them; others stay for 30 days."""
    (directory := operator.state / "jobs").mkdir(parents=True)
    write_job(operator, directory / "killed.sqlite", DEAD)
    write_job(operator, directory / "wider.sqlite", DEAD, "b6:3181")
    write_job(operator, directory / "elsewhere.sqlite", DEAD, instance_id="another cluster")
    (directory / "garbage.sqlite").write_text("hello\n")
    (directory / "empty.sqlite").write_text("")
    write_job(operator, directory / "old.sqlite", "b6:3181")
    here = {"root": operator.root, "instance_id": operator.instance_id(), "bookie_ids": [DEAD]}
    for name in ("json killed.jsonl", "json old.jsonl"):  # of an older bkctl
        (directory / name).write_text(json.dumps(json.loads(OLD_START) | here) + "\n{}\n")
        (directory / f"{name}.rates").write_text("")
    (directory / "json garbage.jsonl").write_text("hello\n")
    (directory / "json empty.jsonl").write_text("")
    days_ago = {"old.sqlite": 31, "elsewhere.sqlite": 29, "json old.jsonl": 31}
    for name, days in days_ago.items():
        os.utime(directory / name, (time.time() - days * 86_400,) * 2)

    def jobs() -> list[str]:
        return sorted(path.stem for path in directory.iterdir() if path.suffix in {".jsonl", ".sqlite"})

    others = ["elsewhere", "empty", "garbage", "json empty", "json garbage"]
    operator.succeed("recover", DEAD, "--dry-run")
    assert jobs() == [*others, "json killed", "json old", "killed", "old", "wider"]
    operator.succeed("recover", DEAD, "--yes", "--ledger", "0")
    assert jobs() == [*others, "json killed", "killed", "wider"]

    async def delete_open(store: MetadataStore) -> None:
        await store.delete(f"{operator.root}/00/0000/L0002", -1)

    operator.on_store(delete_open)
    operator.succeed("recover", DEAD, "--yes")
    assert jobs() == [*others, "wider"]
    assert {path.name for path in directory.iterdir() if path.suffix == ".rates"} == {
        f"{name}.sqlite.rates" for name in ("elsewhere", "wider")
    }
    operator.succeed("decommission", "b9:3181", DEAD, "b6:3181", "--if-exists", "--yes")
    assert jobs() == others


def test_only_the_given_ledgers_move_and_only_to_the_given_bookies(operator: Operator) -> None:
    arguments = ("recover", DEAD, "--ledger", "0x1", "--to", "b4:3181", "-o", "json")
    saved = str(operator.directory / "plan.json")
    plan = operator.succeed(*arguments, "--plan-out", saved).json()
    assert (plan["ledgers"], plan["ledgers_scanned"], plan["targets"]) == (1, 1, ["b4:3181"])
    assert [item["ledger_id"] for item in plan["items"]] == ["1"]
    other = operator.run("recover", DEAD, "--ledger", "1", "--to", "b3:3181", "--apply", saved, "--yes")
    assert (other.exit_code, "the saved plan no longer fits" in other.stderr) == (5, True), other
    done = operator.succeed(*arguments, "--apply", saved, "--yes").json()
    assert (done["ledgers_repaired"], done["failures"], done["fenced"]) == (1, [], [])
    assert ensemble_of(operator, 1) == ["b4:3181", "b2:3181"]
    assert ensemble_of(operator, 0) == [DEAD, "b2:3181"]
    again = operator.succeed(*arguments, "--yes")
    assert (again.json()["ledgers"], "none of 1 ledger needs to be moved" in again.stderr) == (0, True), again


@contextlib.contextmanager
def unreadable(operator: Operator) -> Iterator[str]:
    """The path of ledger 1, which this user may not read meanwhile."""
    path = f"{operator.root}/00/0000/L0001"
    permissions = Permissions(str(operator.uri))
    permissions.limit(path)
    try:
        yield path
    finally:
        permissions.lift(path)
        permissions.close()


@pytest.mark.parametrize("words", [("recover",), ("decommission",)])
def test_one_ledger_that_may_not_be_read_is_left(operator: Operator, words: tuple[str, ...]) -> None:
    async def delete_open(store: MetadataStore) -> None:
        await store.delete(f"{operator.root}/00/0000/L0002", -1)

    operator.on_store(delete_open)
    with unreadable(operator) as path:
        why = f"(ledger 1): {path}: no permission: the node's ACL is for other users"
        planned = operator.run(*words, DEAD, "-o", "json", "-n")
        assert planned.exit_code == 10, planned
        plan = planned.json()
        assert (plan["ledgers"], plan["ledgers_unreadable"]) == (1, 1)
        skipped = f"will skip 1 ledger, which may reference {DEAD}: the metadata cannot be read {why}"
        assert any(each["finding"].startswith(skipped) for each in plan["findings"]), plan["findings"]
        left = operator.run(*words, DEAD, "-o", "json", "--yes")
        assert left.exit_code == 11, left
        report = left.json()
        assert f"1 has metadata that cannot be read ({path}: no permission: " in report["verdict"]
        assert "--unreadable" not in left.stdout + left.stderr, "it may be in order"
        assert DEAD not in ensemble_of(operator, 0)
        only = operator.run("recover", DEAD, "-n")
        assert (only.exit_code, "none of 1 ledger that can be read" in only.stdout) == (10, True), only
        other = operator.run("recover", "b9:3181", "-n")
        assert (other.exit_code, "no ledger that can be read references it" in other.stderr) == (4, True), other
    again = shlex.split(report["verdict"].partition("then continue with: bkctl ")[2])
    operator.succeed(*again)
    assert DEAD not in ensemble_of(operator, 1)
    assert operator.run("recover", DEAD, "-n").exit_code == (0 if words == ("recover",) else 4)


def test_one_ledger_that_may_not_be_read_does_not_end_an_audit(operator: Operator) -> None:
    with unreadable(operator) as path:
        audit_and_check(operator, path)


def audit_and_check(operator: Operator, path: str) -> None:
    audited = operator.run("audit", "-o", "json")
    assert audited.exit_code == 10, audited
    report = audited.json()
    assert (report["ledgers"], report["unreadable"], report["empty"]) == (3, 1, 1)
    [finding] = [each for each in report["findings"] if each["part"] == "unreadable"]
    assert finding["finding"].startswith("the metadata of 1 ledger cannot be read, so its copies are unknown: 1 (")
    assert f"{path}: no permission: the node's ACL is for other users" in finding["finding"]
    doctor = operator.run(*finding["command"].split()[1:], "-o", "json").json()["findings"]
    assert any(each["path"] == path and "setAcl" in each["cure"] for each in doctor)
    checked = operator.run("bookie", "restart-check", "b2:3181", "-o", "table")
    assert checked.exit_code == 10, checked
    assert f"{path}: no permission: the node's ACL is for other users" in checked.stdout + checked.stderr, checked


def test_a_plan_says_what_is_fenced_and_what_cannot_be_moved(operator: Operator) -> None:
    planned = operator.run("recover", DEAD, "--dry-run", "--to", "b2:3181", "-o", "json")
    assert planned.exit_code == 0, planned
    plan: dict[str, Any] = planned.json()
    by_id = {item["ledger_id"]: item for item in plan["items"]}
    assert (by_id["2"]["owner"], by_id["2"]["created"]) == ("topic persistent://t/n/a", "2023-11-14T22:13:20.000Z")
    assert (by_id["2"]["bytes"], by_id["0"]["bytes"], by_id["0"]["owner"]) == (None, 0, None)
    assert by_id["0"]["problem"].startswith("too few bookies to copy to: 1 needed, 0 found")
    assert (plan["ledgers_without_target"], plan["ledgers_fenced_first"], plan["ledgers_of_unknown_size"]) == (3, 1, 1)
    summary = "\n".join(plan["summary"])
    assert (
        "will fence and close 1 open ledger, which stops the writers, unless these replace the bookie within "
        in summary
    )
    assert "30 s: 2 (topic persistent://t/n/a, " in summary
    (blocked,) = plan["findings"]
    assert blocked["severity"] == "warning"
    assert blocked["finding"].startswith("3 ledgers cannot be recovered completely: too few bookies to copy to")
    remedy = "b2:3181 cannot take them: name others with --to, or leave it out"
    assert blocked["finding"].endswith(f"; {remedy}")
    left = operator.run("recover", DEAD, "--ledger", "0", "--to", "b2:3181", "--yes", "-o", "table")
    assert left.exit_code == 1, left
    end = f"1 has no bookie to copy to ({remedy}); then continue with: bkctl recover {DEAD} --ledger 0 --yes"
    assert end in left.stdout, left
    operator.succeed("recover", DEAD, "--ledger", "0", "--yes")

    skipping = operator.run("recover", DEAD, "--dry-run", "--open-ledgers", "skip", "-o", "json").json()
    assert "will leave the last segment of 1 open ledger as it is: 2 (topic" in "\n".join(skipping["summary"])
    fencing = operator.run("recover", DEAD, "--dry-run", "--open-ledgers", "fence", "-o", "json").json()
    assert "will fence and close 1 open ledger first, which stops the writers: 2 (" in "\n".join(fencing["summary"])


@pytest.mark.battery
def test_open_ledgers_are_left_alone_or_fenced_after_the_wait(cluster: Cluster, tmp_path: Path) -> None:
    """Real bookies: an open ledger without entries, and one whose recovery was interrupted."""
    cluster.up(4)
    dead, *others = [bookie.id for bookie in cluster.bookies]
    ledgers = [planted((dead, *others[:2])), to_in_recovery(planted((dead, *others[:2])))]
    uri = parse_metadata_uri(cluster.metadata_uri)

    async def add() -> None:
        async with await ZooKeeperStore.connect(uri.servers) as store:
            await plant(store, uri.root, *ledgers)

    asyncio.run(add())
    cluster.stop_bookie(dead)
    config = tmp_path / "config.toml"
    config.write_text("[replication]\nopen_ledger_wait_s = 0.2\n")

    def recover(*arguments: str) -> tuple[int, Any]:
        command = ("recover", dead, "--yes", "-o", "json", *arguments)
        result = run_bkctl(*command, BKCTL_METADATA_URI=cluster.metadata_uri, BKCTL_CONFIG=str(config))
        return result.exit_code, result.json()

    planned = cluster.run("recover", dead, "--dry-run", "--open-ledgers", "skip").json()["summary"]
    assert planned[0].startswith(f"will recover 1 of 2 ledgers from {dead}: 1 fragment, "), planned
    exit_code, report = recover("--open-ledgers", "skip")
    assert (exit_code, report["ledgers_repaired"], report["ledgers_failed"]) == (9, 1, 1), report
    (left,) = report["failures"]
    assert left["ledgers"] == [
        {
            "ledger_id": "0",
            "owner": "topic persistent://t/n/a",
            "entries": [],
            "detail": f"its last segment is open and references {dead}",
        }
    ]
    assert report["fenced"] == [{"ledger_id": "1", "owner": "topic persistent://t/n/a"}]
    planned = cluster.run("recover", dead, "--dry-run", "--open-ledgers", "skip").json()["summary"]
    assert planned[0] == f"will recover nothing now: 1 ledger of {dead} cannot be moved", planned

    exit_code, report = recover()
    assert (exit_code, report["ledgers"], report["failures"]) == (0, 1, []), report
    assert report["fenced"] == [{"ledger_id": "0", "owner": "topic persistent://t/n/a"}]
    shown = cluster.run("ledger", "show", "0", "-o", "json").json()
    assert (shown["state"], dead in shown["ensembles"][-1]["ensemble"]) == ("closed", False)


def test_a_second_bookie_that_is_up_is_taken_for_a_target(operator: Operator) -> None:
    """In Java's ``recover`` the argument after the failed bookie names the bookie to copy to."""
    result = operator.run("recover", DEAD, "b3:3181", "--dry-run")
    assert f"to copy to it: bkctl recover failed-bookie {DEAD} --to b3:3181" in result.stderr
    assert f"--to {DEAD}" not in result.stderr
    first = operator.run("recover", "b3:3181", DEAD, "--dry-run")
    assert f"; to recover only the others: bkctl recover failed-bookie {DEAD}" in first.stderr
    assert "--to" not in first.stderr
