"""Java's clients of each release, in each wire protocol, with and without TLS, on bkctl's bookies.

A row is one client and one cluster: a cell that fails does not stop the others. What a client does not have, as wire
14.4 of the fact sheet says, is "-": clients of 4.14 have no batch reads and those of protocol v2 no long polls and no
deferred sync; those of v3 read batches entry by entry.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.exchange import DIGESTS, PASSWORD, java_writes, payloads
from tests.interop.java import FENCED_CODE, NEWEST, RELEASES, UNAUTHORIZED_CODE, JavaClient, JavaError
from tests.interop.secured_clusters import OURS, SecuredCluster, secured_cluster
from tests.interop.security_modes import Mode, sides_of
from tests.interop.test_security_matrix import Row
from tests.until import until

PROTOCOLS = ("v2", "v3")
IN_EVERY_RUN = {(NEWEST, "v2", Mode.TLS), ("4.14", "v3", Mode.PLAIN)}
"""Rows of `make interop`, half a minute each; `make interop-full` has all."""
MIB = 1024 * 1024


class Pair(NamedTuple):
    """Two clients of one kind: one that reads and lives, and a writer that is killed."""

    client: JavaClient
    victim: JavaClient
    cluster: SecuredCluster


def rows() -> Iterator[object]:
    for release in RELEASES:
        for protocol in PROTOCOLS:
            for mode in (Mode.PLAIN, Mode.TLS):
                marks = () if (release, protocol, mode) in IN_EVERY_RUN else pytest.mark.battery
                yield pytest.param(release, protocol, mode, id=f"{release}-{protocol}-{mode.value}", marks=marks)


@pytest.mark.parametrize(("release", "protocol", "mode"), [*rows()])
async def test_row(
    release: str,
    protocol: str,
    mode: Mode,
    new_metadata_uri: Callable[[], str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    for name, value in (("client", release), ("protocol", protocol), ("mode", mode.value)):
        record_property(name, value)
    sides = sides_of(mode, tmp_path / "files")
    with secured_cluster(OURS, sides, tmp_path / "cluster", new_metadata_uri) as cluster:
        row = Row(record_property, cluster)
        settings = {"useV2WireProtocol": str(protocol == "v2").lower(), "explicitLacInterval": "50"}

        def start(name: str) -> JavaClient:
            return JavaClient(
                cluster.metadata_uri,
                str(tmp_path / f"{name}.log"),
                jvm_flags=sides.client_flags,
                release=release,
                **sides.java_client,
                **settings,
            )

        client, victim = start("client"), start("victim")
        try:
            pair = Pair(client, victim, cluster)
            await _write_and_read(row, pair)
            await _tail(row, pair, is_v3=protocol == "v3")
            await _batches(row, pair, has_any=protocol == "v2" and release != "4.14")
            await _stop_writers(row, pair)
        finally:
            client.stop()
            victim.stop()
    assert not row.failures, "\n".join(f"{name}: {failure}" for name, failure in row.failures.items())


async def _write_and_read(row: Row, pair: Pair) -> None:
    client, entries = pair.client, payloads(100)
    for digest in DIGESTS:
        with row.cell(f"write, close, read: {digest}"):
            ledger_id = await java_writes(client, entries, digest)
            assert await pair.victim.read(ledger_id, digest_type=digest, password=PASSWORD) == entries
    with row.cell("1 MiB entries"):
        large = [bytes([number]) * MIB for number in range(4)]
        ledger_id = await java_writes(client, large, "CRC32C")
        assert await pair.victim.read(ledger_id, password=PASSWORD) == large
    with row.cell("wrong password"):
        ledger_id = await java_writes(client, entries[:2], "CRC32C")
        for recover in (False, True):
            with pytest.raises(JavaError) as refused:
                await client.read(ledger_id, recover=recover, password="wrong")
            assert refused.value.code == UNAUTHORIZED_CODE


async def _tail(row: Row, pair: Pair, *, is_v3: bool) -> None:
    client, writer, entries = pair.client, pair.victim, payloads(10)
    with row.cell("tail"):
        ledger_id = await writer.create(password=PASSWORD)
        for count, entry in enumerate(entries, 1):
            await writer.append(ledger_id, [entry])
            found = await client.read(ledger_id, password=PASSWORD)
            assert found in (entries[: count - 1], entries[:count])
    with row.cell("explicit LAC"):
        ledger_id = await java_writes(writer, entries, "CRC32C", is_closing=False)
        await _until_explicit_lac(client, ledger_id, len(entries) - 1)
    if not is_v3:
        row.leave_out("long poll", "deferred sync")
        return
    with row.cell("long poll"):
        ledger_id = await writer.create(password=PASSWORD)
        following = asyncio.ensure_future(client.follow(ledger_id, len(entries), timeout_ms=5000, password=PASSWORD))
        for entry in entries:
            await writer.append(ledger_id, [entry])
        assert await following == entries
    with row.cell("deferred sync"):
        ledger_id = await writer.create(password=PASSWORD, deferred_sync=True)
        assert await writer.append(ledger_id, entries) == list(range(len(entries)))
        forced = await writer.call("force", ledger_id=ledger_id)
        assert forced["last_add_confirmed"] == len(entries) - 1
        await _until_explicit_lac(client, ledger_id, len(entries) - 1)
        assert await writer.close_ledger(ledger_id) == len(entries) - 1
        assert await client.read(ledger_id, password=PASSWORD) == entries


async def _until_explicit_lac(client: JavaClient, ledger_id: int, last: int) -> None:
    async def is_there() -> bool:
        answer = await client.call("explicit_lac", ledger_id=ledger_id, digest_type="CRC32C", password=PASSWORD)
        return int(answer["last_add_confirmed"]) == last

    await until(is_there, f"the explicit LAC of ledger {ledger_id}")


async def _batches(row: Row, pair: Pair, *, has_any: bool) -> None:
    if not has_any:
        row.leave_out("batch reads")
        return
    with row.cell("batch reads"):
        entries = payloads(100)
        ledger_id = await java_writes(pair.client, entries, "CRC32C")
        answer = await pair.client.call(
            "read_batches", ledger_id=ledger_id, digest_type="CRC32C", password=PASSWORD, count=30
        )
        assert [base64.b64decode(each) for each in answer["payloads"]] == entries
        assert answer["batches"] == 4, "a batch has 30 entries"


async def _stop_writers(row: Row, pair: Pair) -> None:
    client, writer, entries = pair.client, pair.victim, payloads(50)
    with row.cell("fencing of a live writer"):
        ledger_id = await java_writes(writer, entries, "CRC32C", is_closing=False)
        assert await client.read(ledger_id, recover=True, password=PASSWORD) == entries
        with pytest.raises(JavaError) as refused:
            await writer.append(ledger_id, [b"too late"])
        assert refused.value.code == FENCED_CODE
        assert await client.read(ledger_id, password=PASSWORD) == entries
    with row.cell("recovery after kill -9"):
        ledger_id = await java_writes(writer, entries, "CRC32C", is_closing=False)
        writer.stop()
        assert await client.read(ledger_id, recover=True, password=PASSWORD) == entries
        row.succeed("ledger", "verify", str(ledger_id))
    with row.cell("ensemble change"):
        ledger_id = await java_writes(client, entries, "CRC32C", is_closing=False)
        (segment,) = row.succeed("ledger", "show", str(ledger_id)).json()["ensembles"]
        pair.cluster.kill(segment["ensemble"][0])
        batch = payloads(50, seed=2)
        more: list[bytes] = []

        async def has_changed() -> bool:
            """The client may find only after these adds, which need two of three bookies, that one is dead."""
            first = len(entries) + len(more)
            assert await client.append(ledger_id, batch) == list(range(first, first + len(batch)))
            more.extend(batch)
            return len(row.succeed("ledger", "show", str(ledger_id)).json()["ensembles"]) > 1

        await until(has_changed, "the client has replaced the dead bookie")
        assert await client.close_ledger(ledger_id) == len(entries) + len(more) - 1
        assert len(row.succeed("ledger", "show", str(ledger_id)).json()["ensembles"]) == 2
        assert await client.read(ledger_id, password=PASSWORD) == entries + more
