"""A drain whose only target is killed with -9 in the middle, and started again: every ledger moves all the same."""

from __future__ import annotations

import asyncio
import time
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
    """Two bookies with ledgers."""
    cluster = Cluster(str(tmp_path / "cluster"), metadata_uri)
    try:
        cluster.up(2)
        words = ("--ledgers", str(LEDGERS), "--entries", str(ENTRIES), "--entry-size", "2KiB", *SIZES)
        written = cluster.run("ledger", "write-test", *words)
        assert written.exit_code == 0, written.stderr
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
    leaving, began = cluster.bookies[0].id, time.monotonic()
    target = cluster.add_bookie()
    wait_s = 8.0 + 5 * (time.monotonic() - began)  # the end of its session, and much longer than its next start takes
    words = ("bookie", "drain", leaving, "--yes", "--accept-risk", "--copy-rate", "16KiB")  # takes half a minute
    settings, errors, state = tmp_path / "bkctl.toml", tmp_path / "errors", tmp_path / "state"
    settings.write_text(f"[replication]\nregistration_wait_s = {wait_s}\n")
    own = {"BKCTL_CONFIG": str(settings), "BKCTL_STATE_DIR": str(state)}
    variables = {"BKCTL_METADATA_URI": cluster.metadata_uri, **own}
    with open(errors, "wb") as stderr, open(tmp_path / "result", "wb") as result:
        drain = start_bkctl(*words, stdout=result, stderr=stderr, variables=variables)
    try:
        wait_until(lambda: 0 < moved_to(cluster, target) < LEDGERS, process=drain, tell=errors.read_text)
        for consent in ("-n", "-y"):
            refused = cluster.run("bookie", "set-mode", "writable", leaving, consent)
            assert (refused.exit_code, "'bookie drain' by" in refused.stderr) == (5, True), refused
        cluster.kill_bookie(target)
        (rates,) = (state / "jobs").glob("*.rates")
        rates.write_text("copy-rate = none\n")
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
