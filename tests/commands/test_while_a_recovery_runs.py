"""What the screens say of a bookie that a command recovers, and what is left to do if it comes back meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from tests.commands.test_advice import ensemble_of, findings, succeed, write
from tests.processes import COMMAND_TIMEOUT_S, Cluster, start_bkctl
from tests.until import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

MOVES = "a command is moving the ledgers of"
WATCH = "bkctl status --watch"
RATES = re.compile(r"the byte rates in (.+\.rates) can be changed")


def lost_bookie(cluster: Cluster) -> tuple[str, str]:
    """A bookie that is down, with many ledgers of two copies, and the ledger of which it has the only one."""
    single = write(cluster, 1)
    (bookie_id,) = ensemble_of(cluster, single)
    write(cluster, 2, ledgers=20)
    cluster.stop_bookie(bookie_id)
    return bookie_id, single


def recover_slowly(
    cluster: Cluster, bookie_id: str, tmp_path: Path, meanwhile: Callable[[], None]
) -> tuple[int, str, str]:
    """Exit code, output and messages of a recovery that ends only after ``meanwhile``."""
    output, errors = tmp_path / "out", tmp_path / "err"
    with output.open("wb") as out, errors.open("wb") as err:
        words = ("recover", bookie_id, "--yes", "--copy-rate", "64", "-o", "table")
        variables = {"BKCTL_METADATA_URI": cluster.metadata_uri}
        process = start_bkctl(*words, stdout=out, stderr=err, variables=variables)
    try:
        wait_until(lambda: MOVES in json.dumps(findings(cluster)))
        meanwhile()
    finally:
        rates = wait_until(lambda: RATES.search(errors.read_text()))
        assert rates is not None
        Path(rates[1]).write_text("copy-rate = none\n")
        ended = process.wait(COMMAND_TIMEOUT_S)
    return ended, output.read_text(), errors.read_text()


def test_nothing_says_to_recover_it_again_and_its_return_is_no_loss(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(4)
    bookie_id, single = lost_bookie(cluster)

    def meanwhile() -> None:
        says_that_one_runs(cluster, bookie_id, single)
        cluster.start_bookie(bookie_id)

    ended, end, errors = recover_slowly(cluster, bookie_id, tmp_path, meanwhile)
    assert ended in {1, 9}, (end, errors)
    drain = f"{bookie_id} serves again: bkctl bookie drain {bookie_id} moves what is left there"
    assert drain in end.splitlines()[0], end
    assert "accept" not in end
    assert "start" not in end
    succeed(cluster, "bookie", "drain", bookie_id, "-n")
    its_loss_is_not_accepted(cluster, bookie_id, single, tmp_path)


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_accepted_loss_that_ends_meanwhile_is_left(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, is_ended: bool
) -> None:
    cluster = start_cluster(4)
    bookie_id, single = lost_bookie(cluster)

    async def accept(note: GivenUpNote | None) -> None:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            notes = RecoveryNotes(client.store, client.ports.ledgers.root).given_up
            await (notes.remove(single) if note is None else notes.put(single, note))

    asyncio.run(accept(GivenUpNote(written_ms=1, member_since={bookie_id: None}, user="ops")))

    def meanwhile() -> None:
        if is_ended:
            asyncio.run(accept(None))

    ended, end, errors = recover_slowly(cluster, bookie_id, tmp_path, meanwhile)
    assert ended == (9 if is_ended else 0), (end, errors)
    assert (f"start {bookie_id}" in end) is is_ended


def says_that_one_runs(cluster: Cluster, bookie_id: str, lost: str) -> None:
    for command in (("status",), ("audit",), ("metadata", "doctor")):
        result = cluster.run(*command, "-o", "json")
        assert "bkctl recover failed-bookie" not in result.stdout, (command, result)
        assert MOVES in result.stdout, (command, result)
        assert WATCH in result.stdout, (command, result)
    found = cluster.run("audit", "-o", "json").json()["findings"]
    (moved,) = [each for each in found if MOVES in each["finding"]]
    assert (moved["severity"], moved["command"]) == ("warning", WATCH)
    left = succeed(cluster, "ledger", "list", "--bookie", bookie_id, "-o", "name").stdout.split()
    ledger_id = next(each for each in left if each != lost)
    steps = cluster.run("ledger", "explain", ledger_id, "-o", "json").json()["next_steps"]
    assert f"bookie {bookie_id} is not registered; {MOVES} {bookie_id}: {WATCH}" in steps


def its_loss_is_not_accepted(cluster: Cluster, bookie_id: str, ledger_id: str, directory: Path) -> None:
    """Not with the ledgers that were lost while it was down, and not with none, as are left now."""
    file = directory / "lost-ledgers"
    words = ("decommission", bookie_id, "--accept-loss", bookie_id, "--from-file", str(file), "--yes")
    for ids, reason in (
        (f"{ledger_id}\n", f"bookie {bookie_id} serves, so what it has is not lost"),
        ("", f"{file} names no ledger, so there is no loss to accept"),
    ):
        file.write_text(ids)
        refused = cluster.run(*words)
        assert (refused.exit_code, reason in refused.stderr) == (3, True), refused
    assert bookie_id in succeed(cluster, "bookie", "list", "--state", "writable", "-o", "name").stdout.split()
