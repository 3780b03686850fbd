"""``bkctl audit --what-if`` against a real ZooKeeper: what is counted, and which names are refused."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import BkctlResult, run_bkctl

pytestmark = pytest.mark.cluster

B1, B2, B3, DOWN = "b1:3181", "b2:3181", "b3:3181", "b4:3181"


@pytest.fixture
async def config(metadata_uri: str, tmp_path: Path, of_bookie: bytes) -> AsyncIterator[Path]:
    """Three bookies, two of them in one rack, and a fourth that is down and has a cookie; three ledgers."""
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        for bookie_id in (B1, B2, B3):
            await store.create(Paths(uri.root).writable_bookie(bookie_id), of_bookie)
        await store.create(Paths(uri.root).cookie(DOWN), make_parents=True)
        both = new_ledger((B1, B2), 2, 2, DigestType.CRC32C, b"")
        await ledgers.create(to_closed(both, 9, 1000), ledger_id=1)
        await ledgers.create(both, ledger_id=2)
        await ledgers.create(to_closed(new_ledger((B3, DOWN), 2, 2, DigestType.CRC32C, b""), 9, 1000), ledger_id=3)
        (tmp_path / "racks").write_text(f"{B1} /r1\n{B2} /r1\n{B3} /r2\n")
        config = tmp_path / "bkctl.toml"
        config.write_text(
            f'metadata_uri = "{metadata_uri}"\n[client.placement]\nrack_table_file = "{tmp_path}/racks"\n'
        )
        yield config


def audit(config: Path, *arguments: str) -> BkctlResult:
    return run_bkctl("audit", "--config", str(config), *arguments)


async def test_losses_of_bookies_racks_and_both(config: Path) -> None:
    texts = (f"{B3},{DOWN}", f"rack:/r1,{B3}", f"{B3},{DOWN}")
    result = audit(config, *(word for text in texts for word in ("--what-if", text)), "-o", "json")
    assert result.exit_code == 10, result
    numbers = ("lost", "unreadable", "unwritable", "unreplaceable")
    found = {loss["name"]: tuple(loss[f"{each}_ledgers"] for each in numbers) for loss in result.json()["losses"]}
    assert found == {
        B1: (0, 0, 1, 0),
        B2: (0, 0, 1, 0),
        B3: (0, 1, 0, 0),
        DOWN: (0, 0, 0, 0),
        "/r1": (2, 0, 1, 1),
        "/r2": (0, 1, 0, 0),
        f"{B3},{DOWN}": (1, 0, 0, 0),
        f"rack:/r1,{B3}": (2, 1, 1, 1),
    }
    assert result.json()["misplaced"] == 2


async def test_the_tables_show_what_has_an_effect(config: Path) -> None:
    text = audit(config, "-o", "wide").stdout
    (table,) = (part for part in text.split("\n\n") if part.startswith("Ledgers that one more loss would affect"))
    assert [line.split()[0] for line in table.splitlines()[3:]] == [B1, B2, B3, "/r1", "/r2"]
    assert "Ledgers that break placement rules" in text


async def test_below_the_findings_is_what_was_asked_for_alone(config: Path) -> None:
    title = "Ledgers that one more loss would affect"
    assert title not in audit(config, "-o", "table").stdout
    text = audit(config, "-o", "table", "--what-if", f"{B3},{DOWN}").stdout
    (table,) = (part for part in text.split("\n\n") if part.startswith(title))
    assert [line.split()[:3] for line in table.splitlines()[3:]] == [[f"{B3},{DOWN}", "2", "1"]]


@pytest.mark.parametrize(
    ("value", "exit_code", "sentence"),
    [
        ("b9:3181", 4, "bookie b9:3181 is unknown: it is not registered and has no cookie"),
        ("rack:/r9", 2, "--what-if rack:/r9: no bookie is in rack /r9: the racks are /r1, /r2"),
        ("a,,b", 2, "--what-if 'a,,b' has an empty name: write bookie ids, or rack:/PATH, with commas between"),
    ],
)
async def test_unknown_names_are_refused(config: Path, value: str, exit_code: int, sentence: str) -> None:
    result = audit(config, "--what-if", value)
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", f"error: {sentence}\n")


async def test_a_node_of_racks_that_was_not_asked_for_does_not_stop_the_audit(
    metadata_uri: str, tmp_path: Path
) -> None:
    uri = parse_metadata_uri(f"{metadata_uri}/ledgers")
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
        await store.create(f"{metadata_root(metadata_uri)}/bookies", b"not racks")
    found = run_bkctl("audit", "--metadata-uri", f"{metadata_uri}/ledgers", "-o", "json")
    assert (found.exit_code, found.json()["racks"], found.json()["misplaced"]) == (10, [], None), "without an auditor"
    assert found.stderr.startswith("warning: racks are unknown: cannot use the node ")
    config = tmp_path / "bkctl.toml"
    config.write_text(f'[client.placement]\npulsar_bookies_path = "{metadata_root(metadata_uri)}/bookies"\n')
    asked = run_bkctl("audit", "--metadata-uri", f"{metadata_uri}/ledgers", "--config", str(config))
    assert (asked.exit_code, asked.stdout) == (13, "")


def metadata_root(metadata_uri: str) -> str:
    return parse_metadata_uri(metadata_uri).root
