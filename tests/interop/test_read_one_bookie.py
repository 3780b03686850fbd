"""``bkctl ledger read`` and ``verify`` on Java bookies: one bookie alone, and a last entry that it cannot read."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.ledger.changes import to_closed
from bkctl.runtime.protocol.status import Status
from tests.interop.java import RELEASES
from tests.interop.java_cluster import JavaCluster

TEN = [str(entry_id) for entry_id in range(10)]


def write(cluster: JavaCluster) -> int:
    """A closed ledger of ten entries on one bookie, and one whose writer has died after it."""

    async def do() -> int:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            for is_closed in (True, False):
                writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
                for entry_id in range(10):
                    await writer.append(b"payload of entry %d." % entry_id)
                if is_closed:
                    await writer.close()
            return writer.ledger_id

    return asyncio.run(do())


def break_last_records(directory: Path) -> int:
    """Change the ledger id inside the records of all entries 9, which a Java bookie then cannot read."""
    found = 0
    for log in (directory / "ledgers" / "current").glob("*.log"):
        data = bytearray(log.read_bytes())
        for ledger_id in (0, 1):
            position = data.find(struct.pack(">qq", ledger_id, 9), 1024)
            if position >= 0:
                data[position] ^= 0x55
                found += 1
        log.write_bytes(data)
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_java_bookie_has_is_read_although_it_cannot_read_its_last_entry(
    release: str, new_metadata_uri: Callable[[], str], tmp_path: Path
) -> None:
    with JavaCluster(str(tmp_path / "cluster"), new_metadata_uri(), release=release) as cluster:
        (bookie_id,) = cluster.start_bookies(1)
        last_ledger_id = write(cluster)
        for ledger_id in (str(last_ledger_id - 1), str(last_ledger_id)):
            whole = cluster.run("ledger", "read", ledger_id, "--from-bookie", bookie_id)
            assert (whole.exit_code, [item["entry_id"] for item in whole.json()["items"]]) == (0, TEN), whole
        absent = cluster.run("ledger", "read", "0", "10", "--from-bookie", bookie_id)
        assert (absent.exit_code, "it does not have entry 10 of ledger 0" in absent.stderr) == (4, True)
        cluster.stop(bookie_id)
        assert break_last_records(Path(cluster.directory_of(bookie_id))) == 2
        cluster.restart(bookie_id)

        for ledger_id in ("0", "1"):
            for more in ((), ("--from-bookie", bookie_id)):
                read = cluster.run("ledger", "read", ledger_id, "0-8", *more)
                assert (read.exit_code, [item["entry_id"] for item in read.json()["items"]]) == (0, TEN[:9]), read
                assert cluster.run("ledger", "read", ledger_id, "9", *more).exit_code in {1, 7}
            verified = cluster.run("ledger", "verify", ledger_id, "--range", "0-9").json()
            assert (verified["entries"], verified["copies_good"], verified["copies_failed"]) == (10, 9, 1)
        endless = cluster.run("ledger", "read", "0", "--from-bookie", bookie_id)
        assert (endless.exit_code, "specify FIRST-LAST" in endless.stderr) == (7, True)


def add_copies(cluster: JavaCluster, bookie_id: str, ledger_id: int, entry_ids: range) -> None:
    async def do() -> None:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            credentials = credentials_of(ledger_id, (await client.ports.ledgers.read(ledger_id)).value)
            bodies = [(each, credentials.codec.encode(each, each - 1, 10, b"0123456789")) for each in entry_ids]
            for batch in (bodies[start : start + 50] for start in range(0, len(bodies), 50)):
                statuses = await client.ports.bookies.add_many(
                    bookie_id, ledger_id, credentials.master_key, batch, is_recovery_add=True
                )
                assert set(statuses) == {Status.OK}

    asyncio.run(do())


def claim(cluster: JavaCluster, last_entry_id: int) -> int:
    """A closed ledger with this end, of which no bookie has an entry."""

    async def do() -> int:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            stored = await client.ports.ledgers.read(writer.ledger_id)
            closed = to_closed(stored.value, last_entry_id, 10, stored.value.segments)
            await client.ports.ledgers.write(writer.ledger_id, closed, stored.version)
            return writer.ledger_id

    return asyncio.run(do())


@pytest.mark.parametrize("release", RELEASES)
def test_a_java_bookie_names_a_lower_last_entry_than_it_has(
    release: str, new_metadata_uri: Callable[[], str], tmp_path: Path
) -> None:
    with JavaCluster(str(tmp_path / "cluster"), new_metadata_uri(), release=release) as cluster:
        (bookie_id,) = cluster.start_bookies(1)
        ledger_id = claim(cluster, 999)
        add_copies(cluster, bookie_id, ledger_id, range(500, 1000))
        cluster.stop(bookie_id)  # so that these are in its index
        cluster.restart(bookie_id)
        add_copies(cluster, bookie_id, ledger_id, range(10))

        verified = cluster.run("ledger", "verify", str(ledger_id)).json()["items"][0]
        assert (verified["lost"], verified["copies_good"]) == ("10-499", 510)
        read = cluster.run("ledger", "read", str(ledger_id), "--from-bookie", bookie_id)
        assert (read.exit_code, len(read.json()["items"])) == (0, 510)
