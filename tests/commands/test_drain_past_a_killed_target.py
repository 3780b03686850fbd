"""A drain whose only target is killed with -9 in the middle, and started again: every ledger moves all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from tests.commands.test_live_decommission import require_all_copies
from tests.processes import Cluster, start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster
SIZES = ("-E", "2", "-W", "2", "-A", "2")
LEDGERS, ENTRIES = 12, 20


@pytest.fixture
def cluster(metadata_uri: str, tmp_path: Path) -> Iterator[Cluster]:
    """Two bookies with ledgers, and a third one without."""
    cluster = Cluster(str(tmp_path / "cluster"), metadata_uri)
    try:
        cluster.up(2)
        words = ("--ledgers", str(LEDGERS), "--entries", str(ENTRIES), "--entry-size", "2KiB", *SIZES)
        written = cluster.run("ledger", "write-test", *words)
        assert written.exit_code == 0, written.stderr
        cluster.add_bookie()
        yield cluster
    finally:
        cluster.stop()


async def ensembles(metadata_uri: str) -> list[tuple[str, ...]]:
    async with await LedgerClient.connect(metadata_uri) as client:
        ledger_ids = [ledger_id async for ledger_id, _ in client.ports.ledgers.read_all()]
        return [(await client.ports.ledgers.read(each)).value.last_segment.ensemble for each in ledger_ids]


def moved_to(cluster: Cluster, bookie_id: str) -> int:
    return sum(bookie_id in each for each in asyncio.run(ensembles(cluster.metadata_uri)))


async def count_copies(metadata_uri: str) -> int:
    async with await LedgerClient.connect(metadata_uri) as client:
        return await require_all_copies(client)


def test_the_ledgers_that_failed_are_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    leaving, _, target = (bookie.id for bookie in cluster.bookies)
    words = ("bookie", "drain", leaving, "--yes", "--accept-risk", "--copy-rate", "64KiB")
    settings, errors = tmp_path / "bkctl.toml", tmp_path / "errors"
    settings.write_text("[replication]\nregistration_wait_s = 15.0\n")  # longer than a start takes
    variables = {"BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_CONFIG": str(settings)}
    with open(errors, "wb") as stderr, open(tmp_path / "result", "wb") as result:
        drain = start_bkctl(*words, stdout=result, stderr=stderr, variables=variables)
    try:
        wait_until(lambda: 0 < moved_to(cluster, target) < LEDGERS, process=drain, tell=errors.read_text)
        cluster.kill_bookie(target)
        wait_until(lambda: target not in cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout)
        assert drain.poll() is None, errors.read_text()
        cluster.start_bookie(target)
        exit_code = drain.wait(300)
    finally:
        drain.kill()
        drain.wait()
    assert exit_code == 0, errors.read_text()
    assert moved_to(cluster, target) == LEDGERS
    assert asyncio.run(count_copies(cluster.metadata_uri)) == LEDGERS * ENTRIES * 2
