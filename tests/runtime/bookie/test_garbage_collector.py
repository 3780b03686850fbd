"""The collector of a real bookie on a real ZooKeeper: what is deleted goes, what is in use stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import NoSuchLedgerError
from tests.runtime.bookie.collected_bookie import collected_bookie, with_settings


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_deleted_ledgers_vanish_and_their_space_comes_back(
    metadata_uri: str, tmp_path: Path, is_transactional: bool
) -> None:
    async with collected_bookie(metadata_uri, tmp_path, with_settings(is_transactional=is_transactional)) as bookie:
        await bookie.write(range(20))
        logs_before = bookie.log_names
        await bookie.delete_metadata(range(15))
        await bookie.require_readable(range(20))

        await bookie.collector.force()

        assert bookie.local_ids() == set(range(15, 20))
        await bookie.require_readable(range(15, 20))
        for ledger_id in range(15):
            with pytest.raises(NoSuchLedgerError):
                await bookie.peer.read(ledger_id, 0)
        assert len(logs_before) >= 4
        assert set(bookie.log_names).isdisjoint(logs_before[:-1])
        metrics = bookie.collector.metrics
        assert metrics.ledgers_deleted_count == 15
        assert metrics.reclaimed_bytes > 4 * 15 * 1000
        assert metrics.copied_entries_count <= 4 * 5
        assert metrics.rounds_failed_count == 0

    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        assert bookie.local_ids() == set(range(15, 20))
        await bookie.require_readable(range(15, 20))
