"""The progress of an audit, on a terminal and in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.commands.audit.ledger_progress import LedgerProgress
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import run_bkctl_on_terminal
from tests.snapshot_files import SampleCluster, write_for_server


class Shown:
    is_shown = True

    def __init__(self) -> None:
        self.lines: list[tuple[float, float | None, str | None]] = []

    def update(
        self, done: float, total: float | None = None, note: str | None = None, count: str | None = None
    ) -> None:
        self.lines.append((done, total, count))


def test_ledgers_of_how_many_and_the_rate_are_shown() -> None:
    shown = Shown()
    progress = LedgerProgress(shown, 80_000)
    progress.show(1_000)
    progress.show_parts(3, 8)
    progress.show(90_000)  # more than expected: ledgers were created meanwhile
    assert [(done, total) for done, total, _ in shown.lines] == [(1_000, 80_000), (30_000, 80_000), (90_000, 80_000)]
    texts = [text or "" for _, _, text in shown.lines]
    assert texts[0] == "1,000 of about 80,000 ledgers"
    assert texts[1].startswith("30,000 of about 80,000 ledgers, ")
    assert texts[2].startswith("90,000 of about 90,000 ledgers, ")
    assert all(text.endswith("/s") for text in texts[1:])


def test_an_unknown_number_is_shown_as_unknown() -> None:
    shown = Shown()
    LedgerProgress(shown, None).show(1_000)
    LedgerProgress(shown, None).show_parts(1, 4)
    assert shown.lines[0][2] == "1,000 ledgers"
    assert shown.lines[1] == (1, 4, "1 of 4 parts, number of ledgers unknown")


@pytest.mark.cluster
@pytest.mark.parametrize("tree", [LedgerTree.HIERARCHICAL, LedgerTree.FLAT])
async def test_the_number_of_ledgers_is_known_before_they_are_read(tmp_path: Path, tree: LedgerTree) -> None:
    cluster = SampleCluster(ledgers=20_400, tree=tree, first_ledger_id=2**31 - 10_000)
    write_for_server(tmp_path, cluster)
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        async with await ZooKeeperStore.connect(server.connect_string) as store:
            estimate = await (await open_ledger_store(store, "/ledgers")).estimate_count()
        exit_code, output = run_bkctl_on_terminal("audit", "--metadata-uri", f"zk://{server.connect_string}/ledgers")
    assert 20_400 <= estimate <= 20_410
    assert exit_code == 10
    assert "ledgers, " in output
    assert f"of about {estimate:,}" in output
