"""The progress of an audit, on a terminal and in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.audit.file import LedgerProgress
from bkctl.commands.progress import ProgressBar
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.commands.test_progress import ManualClock
from tests.processes import run_bkctl_on_terminal
from tests.snapshot_files import SampleCluster, write_for_server


def test_ledgers_of_how_many_are_shown() -> None:
    clock = ManualClock()
    bar = ProgressBar("auditing", clock)
    progress = LedgerProgress(bar, 80_000)
    progress.show(1_000)
    assert bar.lines(120)[0].endswith(" 1,000 of about 80,000 ledgers")
    clock.now_s += 10
    progress.show_parts(3, 8)
    first, second = bar.lines(120)
    assert first.endswith(" 30,000 of about 80,000 ledgers")
    assert second == "elapsed 0:10, about 0:17 left, 3,000/s"
    progress.show(90_000)  # more than expected: ledgers were created meanwhile
    assert bar.lines(120)[0].endswith(" 90,000 of about 90,000 ledgers")
    progress = LedgerProgress(bar, 7)
    for _ in range(2):
        progress.note_examined()
    assert bar.lines(120)[0].endswith(" 2 of about 7 ledgers")


def test_an_unknown_number_is_shown_as_unknown() -> None:
    bar = ProgressBar("auditing", ManualClock())
    LedgerProgress(bar, None).show(1_000)
    assert bar.lines(120)[0] == "auditing 1,000 ledgers"
    LedgerProgress(bar, None).show_parts(1, 4)
    assert bar.lines(120)[0].endswith(" 1 of 4 parts, number of ledgers unknown")


@pytest.mark.cluster
@pytest.mark.parametrize("tree", [LedgerTree.HIERARCHICAL, LedgerTree.FLAT])
async def test_the_number_of_ledgers_is_known_before_they_are_read(tmp_path: Path, tree: LedgerTree) -> None:
    cluster = SampleCluster(ledgers=7_400, tree=tree, first_ledger_id=2**31 - 1_000)
    write_for_server(tmp_path, cluster)
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        async with await ZooKeeperStore.connect(server.connect_string) as store:
            estimate = await (await open_ledger_store(store, "/ledgers")).estimate_count()
        exit_code, output = run_bkctl_on_terminal(
            *("audit", "--metadata-uri", f"zk://{server.connect_string}/ledgers"),
            BKCTL_ZOOKEEPER_SCAN_OPERATIONS_PER_S_MAX="300",  # a ledger is a tenth of an operation
        )
    assert 7_400 <= estimate <= 7_410
    assert exit_code == 10
    assert " left, " in output
    assert f"of about {estimate:,}" in output
