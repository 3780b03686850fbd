"""``bkctl ledger close --accept-loss`` on Java bookies: a Java client reads what is left, and fails at a hole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.protocol.status import Status
from tests.interop.java import JavaClient, JavaError
from tests.interop.java_cluster import JavaCluster

PASSWORD = "secret"
NO_SUCH_ENTRY_CODE = -13


async def test_java_reads_what_is_left_and_gets_an_error_at_a_hole(
    new_metadata_uri: Callable[[], str], tmp_path: Path
) -> None:
    with JavaCluster(str(tmp_path / "bookies"), new_metadata_uri()) as cluster:
        survivor, *lost = cluster.start_bookies(5)[:3]
        java = JavaClient(cluster.metadata_uri, str(tmp_path / "client.log"))
        try:
            async with await LedgerClient.connect(cluster.metadata_uri) as client:
                whole, holed = [
                    await open_ledger(client, [survivor, *lost], entry_ids) for entry_ids in ((0, 1, 2), (0, 2))
                ]
                for each in lost:
                    await asyncio.to_thread(cluster.stop, each)
                await asyncio.to_thread(cluster.wait_until, lambda: not set(lost) & set(cluster.registered("writable")))
                named = [word for each in lost for word in ("--accept-loss", each)]
                words = ["ledger", "close", str(whole), str(holed), "--grace", "0s", *named, "--confirm", "2"]
                done = await asyncio.to_thread(cluster.run, *words, "-o", "json")
                assert done.exit_code == 0, done
                assert {row["ledger_id"]: row["holes"] for row in done.json()["losses"]} == {
                    str(whole): None,
                    str(holed): "1",
                }
                members = (await client.ports.ledgers.read(whole)).value.last_segment.ensemble
                assert not set(lost) & set(members)

            with pytest.raises(JavaError) as raised:
                await java.read(holed, password=PASSWORD)
            assert raised.value.code == NO_SUCH_ENTRY_CODE
            await asyncio.to_thread(cluster.stop, survivor)  # so that Java reads the new copies
            assert await java.read(whole, password=PASSWORD) == [b"entry %d" % each for each in range(3)]
            gone = await asyncio.to_thread(cluster.run, "decommission", *lost, "--yes")
            assert gone.exit_code == 0, gone
        finally:
            java.stop()


async def open_ledger(client: LedgerClient, members: list[str], entry_ids: tuple[int, ...]) -> int:
    """Entries that the first member has, and the others had."""
    metadata = new_ledger(tuple(members), 3, 2, DigestType.CRC32C, PASSWORD.encode())
    ledger_id, _ = await client.ports.ledgers.create(metadata)
    secret = credentials_of(ledger_id, metadata)
    adds = [(each, secret.codec.encode(each, -1, 7 * (each + 1), b"entry %d" % each)) for each in entry_ids]
    for each in members:
        added = await client.ports.bookies.add_many(each, ledger_id, secret.master_key, adds)
        assert set(added) == {Status.OK}
    return ledger_id
