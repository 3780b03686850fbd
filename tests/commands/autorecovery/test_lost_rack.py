"""A real daemon on two racks of real bookies: the last bookie of one rack is killed, and returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.orphans import OrphanKiller
from tests.processes import BkctlResult, Cluster, run_bkctl
from tests.recovery_daemons import RecoveryDaemon
from tests.until import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

SHAPES = {"2": 4, "3": 4}
"""Ledgers of this ensemble size, with write quorums of 2. On two racks, one of 3 always breaks a rule."""
SETTINGS = {
    "BKCTL_AUTORECOVERY_LOST_BOOKIE_DELAY_S": "0",
    "BKCTL_AUTORECOVERY_IS_MISPLACED_MARKED": "true",
    "BKCTL_AUTORECOVERY_PLACEMENT_CHECK_INTERVAL_S": "1",
}


class TwoRacks:
    """Three bookies in one rack, one in the other, and what ZooKeeper and the commands say of them."""

    def __init__(self, cluster: Cluster, znodes: KazooClient, directory: Path) -> None:
        *others, lonely = [bookie.id for bookie in cluster.bookies]
        table = directory / "racks.txt"
        table.write_text("".join(f"{each} /r1\n" for each in others) + f"{lonely} /r2\n")
        self.cluster, self.znodes, self.lonely = cluster, znodes, lonely
        self._table = str(table)
        self.paths = Paths(parse_metadata_uri(cluster.metadata_uri).root)
        racks = {"BKCTL_CLIENT_PLACEMENT_RACK_TABLE_FILE": self._table}
        self.daemon = RecoveryDaemon(cluster.metadata_uri, directory / "daemon", **SETTINGS, **racks)
        self.ids: list[int] = []

    def run(self, *arguments: str) -> BkctlResult:
        """Run a command that must succeed."""
        uri, table = self.cluster.metadata_uri, self._table
        result = run_bkctl(*arguments, BKCTL_METADATA_URI=uri, BKCTL_CLIENT_PLACEMENT_RACK_TABLE_FILE=table)
        assert result.exit_code == 0, result
        return result

    def succeed(self, *arguments: str) -> Any:
        """The output of a command."""
        return self.run(*arguments).json()

    def write(self) -> None:
        """Write the ledgers."""
        for size, count in SHAPES.items():
            shape = ("-E", size, "-W", "2", "--ledgers", str(count), "--entries", "20", "--no-read-back")
            written = self.succeed("ledger", "write-test", *shape)
            self.ids += [int(each["ledger_id"]) for each in written["items"]]

    def stored(self) -> list[tuple[frozenset[str], int]]:
        """Bookies and version of each ledger."""
        found = []
        for ledger_id in self.ids:
            path = f"{self.paths.root}/{LedgerTree.HIERARCHICAL.ledger_path(ledger_id)}"
            data, stat = self.znodes.get(path)
            found.append((frozenset(decode_ledger_metadata(data).bookies()), stat.version))
        return found

    def has_settled(self, *, is_on_lonely: bool) -> bool:
        """Whether all ledgers name the lonely bookie, or none, and no mark and no lock is left."""
        assert self.daemon.is_running, self.daemon.log
        nodes = (self.paths.under_replicated_ledgers, self.paths.replication_locks)
        return all((self.lonely in bookies) is is_on_lonely for bookies, _ in self.stored()) and not any(
            self.znodes.get_children(path) for path in nodes
        )

    def status(self) -> tuple[int, Any]:
        """Copies that broke the rules, and the placement task of the auditor, once it is elected (again)."""

        def shown() -> tuple[int, Any] | None:
            found = self.succeed("autorecovery", "status", "-o", "json")
            tasks = [each for each in found["tasks"] if each["task"] == "placement"]
            return (found["daemons"][0]["copies_breaking_placement"], tasks[0]) if tasks else None

        status = wait_until(shown, "the auditor has a placement task", tell=lambda: self.daemon.log)
        assert status is not None
        return status

    def wait_for_checks(self, count: int) -> Any:
        """The placement task after so many more checks."""
        wanted = self.status()[1]["runs"] + count
        wait_until(lambda: self.status()[1]["runs"] >= wanted, f"{count} checks of placement:\n{self.daemon.log}")
        return self.status()[1]

    def require_full_copies(self) -> None:
        """Every entry is read from every bookie that should have it."""
        checked = self.succeed("ledger", "verify", *map(str, self.ids))
        assert {each["ledger_id"] for each in checked["items"]} == set(map(str, self.ids))


@pytest.fixture
def racks(start_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[TwoRacks]:
    cluster = start_cluster(4)
    znodes = KazooClient(parse_metadata_uri(cluster.metadata_uri).servers)
    found = TwoRacks(cluster, znodes, tmp_path)
    found.write()
    with OrphanKiller() as orphans, contextlib.ExitStack() as ends:
        ends.callback(znodes.close)
        ends.callback(znodes.stop)
        znodes.start()
        found.daemon.start()
        orphans.watch(found.daemon.pid)
        yield found
        assert found.daemon.stop() == 0, found.daemon.log
        assert "Traceback" not in found.daemon.log


def test_the_copies_of_a_rack_go_to_the_other_and_return_once(racks: TwoRacks) -> None:
    on_lonely = sum(racks.lonely in bookies for bookies, _ in racks.stored())
    assert on_lonely == len(racks.ids), "writers use both racks"
    racks.cluster.kill_bookie(racks.lonely)
    wait_until(lambda: racks.has_settled(is_on_lonely=False), f"all copies in the other rack:\n{racks.daemon.log}")
    racks.require_full_copies()
    wait_until(lambda: racks.status()[0] == on_lonely, "status counts each copy that broke a rule")
    moved = racks.stored()
    racks.wait_for_checks(2)
    assert racks.stored() == moved, "no copy moves within the rack that is left"

    racks.cluster.start_bookie(racks.lonely)
    wait_until(lambda: racks.has_settled(is_on_lonely=True), f"copies in both racks:\n{racks.daemon.log}")
    repaired = racks.stored()
    assert [version for _, version in repaired] == [version + 1 for _, version in moved], "each was changed once"
    task = racks.wait_for_checks(3)
    assert racks.has_settled(is_on_lonely=True)
    assert racks.stored() == repaired, "nothing goes back and forth"
    never = SHAPES["3"]
    assert task["result"] == (
        f"{len(racks.ids)} closed ledgers: {never} break placement rules, 0 of them can be improved, 0 were marked"
    )
    assert racks.status()[0] == on_lonely
    assert "MISPLACED" in racks.run("autorecovery", "status", "-o", "table").stdout
    racks.require_full_copies()
