"""An entry log that is gone while the index is whole: nothing of it is denied, and the runbook brings it all back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkctl.runtime.errors import BookieIOError, NoSuchEntryError
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import BkctlResult, run_bkctl
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.integrity.test_lost_disk import fill, settings
from tests.runtime.bookie.integrity.test_repair import MakeTrio, make_trio
from tests.until import until

__all__ = ["make_trio"]

pytestmark = pytest.mark.cluster

FINDINGS_EXIT_CODE = 10
ENTRY_COUNTS = {1: 30, 2: 10}


async def test_a_log_that_is_gone_is_made_up_for_by_the_other_bookies(
    make_trio: MakeTrio, metadata_uri: str, store: ZooKeeperStore, tmp_path: Path
) -> None:
    """docs/runbooks/lost-entries.md, with a closed and an open ledger in the log."""

    def storage(*words: str) -> BkctlResult:
        directories = ("--journal-dir", str(tmp_path / "journal"), "--ledger-dir", str(tmp_path / "ledgers"))
        return run_bkctl("storage", *words, *directories, BKCTL_STATE_DIR=str(tmp_path / "state"))

    async with make_trio("") as trio:
        await fill(trio)
        (tmp_path / "ledgers" / "current" / "0.log").unlink()
        victim = BookieUnderTest(tmp_path, metadata_uri, store, *settings("flushInterval=3600000"))
        async with victim.running() as (process, peer):
            for ledger_id, entry_count in ENTRY_COUNTS.items():
                for entry_id in (0, entry_count - 1, -1):
                    with pytest.raises(BookieIOError):
                        await peer.read(ledger_id, entry_id)
                with pytest.raises(NoSuchEntryError):
                    await peer.read(ledger_id, entry_count)  # the index is whole: this is a fact
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0

        checked = await asyncio.to_thread(storage, "check")
        assert checked.exit_code == FINDINGS_EXIT_CODE
        assert "there is no such log: 40 entries of 2 ledgers (1, 2) were in it" in checked.stdout
        assert "bkctl help lost-entries" in checked.stdout
        rebuilt = await asyncio.to_thread(storage, "index", "rebuild", "--locations", "--yes")
        assert rebuilt.exit_code == 0, rebuilt.stderr

        async with victim.running() as (process, peer):
            await until(lambda: "integrity check complete" in victim.said())
            for ledger_id, entry_count in ENTRY_COUNTS.items():
                for entry_id in range(entry_count):
                    assert await peer.read(ledger_id, entry_id) == peer.body(ledger_id, entry_id)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0
        assert (await asyncio.to_thread(storage, "check", "--deep")).exit_code == 0
