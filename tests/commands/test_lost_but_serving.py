"""A bookie that serves without a registration is not lost: no command accepts the loss of what it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.commands.ledger.test_accept_loss import Planted, planted
from tests.zookeeper_permissions import Permissions

__all__ = ["planted"]
pytestmark = pytest.mark.cluster


async def test_what_a_bookie_has_that_serves_is_not_accepted_as_lost(planted: Planted, tmp_path: Path) -> None:
    serving, other = planted.ids[:2]
    still_open, closed = await planted.open_ledger([other, serving], 2, 1), await planted.open_ledger([serving], 1, 1)
    for ledger_id in (still_open, closed):
        await planted.put(ledger_id, serving, range(3))
    assert (await planted.close(closed, consent=["--yes"])).exit_code == 0
    ids = tmp_path / "ids"
    ids.write_text(f"{closed}\n")
    permissions = await asyncio.to_thread(Permissions, planted.cluster.metadata_uri)
    try:
        await asyncio.to_thread(permissions.end_registration, serving, planted.cluster.bookie(serving).pid)
        accepted = ("decommission", serving, "--accept-loss", serving, "--from-file", str(ids), "--yes")
        absent = f"bookie {serving} is not registered, but"
        for refused, said in (
            (await planted.close(still_open, serving), f"it serves and may have entries of ledger {still_open}"),
            (await planted.run(*accepted), "a bookie answers at its address"),
        ):
            assert (refused.exit_code, f"{absent} {said}" in refused.stderr) == (3, True), refused
    finally:
        await asyncio.to_thread(permissions.lift, permissions.available)
        await asyncio.to_thread(permissions.close)
    await planted.stop(serving)
    assert (await planted.close(still_open, serving)).exit_code == 0
    assert (await planted.run(*accepted)).exit_code == 0
