"""What commands say of bookies that run and refuse this client: their copies are unknown, neither bad nor good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.net.loop import LoopClock
from tests.interop.secured_clusters import OurCluster
from tests.interop.security_modes import BOOKIE_ROLE, OPERATOR_ROLE, Mode, sides_of
from tests.processes import start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster
SIZES = ("-E", "3", "-W", "3", "-A", "3")
"""The answer of one bookie proves where such a ledger ends, but its entries need all three."""
REFUSES = "it does not accept the role of this client's certificate"


@pytest.fixture
def accepting(metadata_uri: str, tmp_path: Path) -> Iterator[OurCluster]:
    """Three bookies that accept the role of this client."""
    sides = sides_of(Mode.ROLE, tmp_path / "files")
    cluster = OurCluster(tmp_path / "cluster", metadata_uri, sides)
    try:
        cluster.up(3)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(accepting: OurCluster) -> OurCluster:
    """Three bookies with a ledger; the first two have accepted only other bookies since they were restarted."""
    write(accepting, *SIZES)
    refuse_this_client(accepting, *accepting.running[:2])
    return accepting


def write(cluster: OurCluster, *sizes: str) -> str:
    """A ledger of six entries."""
    written = cluster.run("ledger", "write-test", "--entries", "6", *sizes)
    assert written.exit_code == 0, written.stderr
    (ledger_id,) = cluster.run("ledger", "list", "-o", "name").stdout.split()
    return ledger_id


def refuse_this_client(cluster: OurCluster, *bookie_ids: str) -> None:
    """Restart bookies so that they accept only the role of other bookies."""
    settings = Path(cluster.sides.variables["BKCTL_CONFIG"])
    all_roles = settings.read_text()
    settings.write_text(all_roles.replace(f'"{OPERATOR_ROLE}"', f'"{BOOKIE_ROLE}"'))
    for each in bookie_ids:
        cluster.stop(each)
        cluster.start_bookie(each)
    settings.write_text(all_roles)


async def left_open(metadata_uri: str, ledger_id: int) -> None:
    """As if its writer had been killed."""
    async with await LedgerClient.connect(metadata_uri) as client:
        closed = await client.ports.ledgers.read(ledger_id)
        opened = msgspec.structs.replace(closed.value, state=LedgerState.OPEN, last_entry_id=-1, length=0)
        await client.ports.ledgers.write(ledger_id, opened, closed.version)


async def mark(metadata_uri: str, ledger_id: int, bookie_id: str) -> None:
    async with await LedgerClient.connect(metadata_uri) as client:
        marks = UnderReplicationMarks(client.store, client.ports.ledgers.root, LoopClock())
        await marks.mark(ledger_id, (bookie_id,))


def test_copies_on_bookies_that_refuse_are_unknown(cluster: OurCluster) -> None:
    first, second, third = cluster.running
    (ledger_id,) = cluster.run("ledger", "list", "-o", "name").stdout.split()

    explained = cluster.run("ledger", "explain", ledger_id, "-o", "table")
    them = f"{min(first, second)} and {max(first, second)}"
    headline = f"ledger {ledger_id} is replicated by the registrations, but its copies on {them} are unknown: nothing "
    assert (explained.exit_code, explained.stdout.startswith(headline)) == (10, True), explained.stdout

    checked = cluster.run("bookie", "restart-check", third, "-o", "json")
    details = {each["reason"]: each["detail"] for each in checked.json()["reasons"]}
    assert f"refuse this client ({min(first, second)}, {max(first, second)})" in str(details), details
    assert "not running" not in str(details)

    asyncio.run(mark(cluster.metadata_uri, int(ledger_id), first))
    planned = cluster.run("autorecovery", "repair-marks", "--deep", "--dry-run", "-o", "json")
    assert planned.exit_code == 11, planned
    (finding,) = planned.json()["findings"]
    assert finding["severity"] == "warning"
    assert finding["finding"].startswith("copies of 1 marked ledger are unknown: "), finding
    assert f"{first}: {REFUSES}" in finding["finding"]
    assert f"{second}: {REFUSES}" in finding["finding"]
    marked = cluster.run("autorecovery", "repair-marks", "--deep", "--yes", "-o", "json")
    (row,) = marked.json()["items"]
    assert (marked.exit_code, row["state"]) == (11, "copies not checked"), marked
    assert row["reason"].startswith("12 of 18 copies are unknown: "), row
    assert REFUSES in row["reason"]

    cluster.kill(first)
    verified = cluster.run("recover", "ledger", ledger_id, "--yes", "-o", "table")
    assert verified.exit_code in {1, 9}, verified
    verdict = verified.stdout.splitlines()[0]
    assert "bad cop" not in verdict, verdict
    assert "12 copies are unknown, not read: " in verdict, verdict
    assert f"6 (the bookie does not answer: start {first})" in verdict
    assert REFUSES in verdict


def test_a_ledger_that_this_client_cannot_close_is_not_fenced(cluster: OurCluster) -> None:
    first, second, _ = cluster.running
    (ledger_id,) = cluster.run("ledger", "list", "-o", "name").stdout.split()
    asyncio.run(left_open(cluster.metadata_uri, int(ledger_id)))

    explained = cluster.run("ledger", "explain", ledger_id, "-o", "json").json()
    assert (explained["closable"], explained["missing_answers"]) == (False, sorted([first, second]))
    needs = [each for each in explained["problems"] if each.startswith("it cannot be closed now: this client needs ")]
    assert [REFUSES in each for each in needs] == [True], explained
    assert not any("if it is gone" in each for each in explained["next_steps"])

    planned = cluster.run("ledger", "close", ledger_id, "--dry-run", "-o", "json").json()
    refused = f"bookie {min(first, second)}: {REFUSES}"
    summary = "\n".join(planned["summary"])
    assert f"ledger {ledger_id} cannot be closed now: {refused}" in summary, summary
    assert "will fence" not in summary
    closed = cluster.run("ledger", "close", ledger_id, "--yes", "--grace", "0s", "-o", "table")
    assert closed.exit_code == 11, closed
    assert closed.stdout.startswith(f"warning: ledger {ledger_id} is not closed: {refused}"), closed
    assert "it was left as it is" in closed.stdout
    assert cluster.run("ledger", "show", ledger_id, "-o", "json").json()["state"] == "open"


def test_a_ledger_that_can_be_closed_without_a_bookie_that_refuses(accepting: OurCluster) -> None:
    ledger_id = write(accepting, "-E", "3", "-W", "3", "-A", "2")
    asyncio.run(left_open(accepting.metadata_uri, int(ledger_id)))
    refuse_this_client(accepting, accepting.running[0])

    closed = accepting.run("ledger", "close", ledger_id, "--yes", "--grace", "0s", "-o", "json")

    assert closed.exit_code == 0, closed
    (row,) = closed.json()["ledgers"]
    assert (row["outcome"], row["last_entry_id"]) == ("closed", "5")


def test_an_open_ledger_whose_bookies_all_refuse_is_not_read(accepting: OurCluster) -> None:
    ledger_id = write(accepting, *SIZES)
    asyncio.run(left_open(accepting.metadata_uri, int(ledger_id)))
    refuse_this_client(accepting, *accepting.running)
    for words in ((), ("--follow", "-o", "jsonl"), ("0-5",)):
        refused = accepting.run("ledger", "read", ledger_id, *words)
        assert (refused.exit_code, REFUSES in refused.stderr) == (11, True), (words, refused)
        assert "from the bookies that answer" not in refused.stderr


def test_bookies_that_begin_to_refuse_while_the_writer_has_time(accepting: OurCluster, tmp_path: Path) -> None:
    ledger_id = write(accepting, *SIZES)
    asyncio.run(left_open(accepting.metadata_uri, int(ledger_id)))
    *refusing, third = accepting.running
    began = time.monotonic()
    accepting.stop(third)
    accepting.start_bookie(third)
    grace_s = 5 + 5 * round(time.monotonic() - began)  # on a busy machine, too, two bookies start again within it
    out = tmp_path / "close.txt"
    with out.open("wb") as file:
        words = ("ledger", "close", ledger_id, "--yes", "--grace", f"{grace_s}s", "-o", "table")
        variables = {"BKCTL_METADATA_URI": accepting.metadata_uri, **accepting.sides.variables}
        closing = start_bkctl(*words, stdout=file, stderr=file, variables=variables)
    wait_until(lambda: "waits until" in out.read_text(), process=closing, tell=out.read_text)

    refuse_this_client(accepting, *refusing)

    assert closing.wait() == 11, out.read_text()
    assert f"ledger {ledger_id} is not closed: bookie " in out.read_text()
    assert REFUSES in out.read_text()
    assert accepting.run("ledger", "show", ledger_id, "-o", "json").json()["state"] == "open"
