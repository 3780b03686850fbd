"""``bkctl ledger read --follow``: every entry as it is confirmed, until the ledger is closed or the user stops it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from bkctl.runtime.client import LedgerClient
from tests.processes import Cluster
from tests.until import until

pytestmark = pytest.mark.cluster


def start_follower(cluster: Cluster, ledger_id: int, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bkctl", "--metadata-uri", cluster.metadata_uri]
    return subprocess.Popen([*command, "ledger", "read", str(ledger_id), "--follow", *options], stdout=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


async def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 300)


def test_each_entry_is_a_line_at_once_and_the_end_of_the_ledger_is_the_end(cluster: Cluster) -> None:
    async def do() -> None:
        async with (
            await LedgerClient.connect(cluster.metadata_uri) as client,
            await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as writer,
        ):
            lines, text = (start_follower(cluster, writer.ledger_id, "-o", each) for each in ("jsonl", "table"))
            try:
                await writer.append(b"first")
                await writer.append(b"second")
                assert b'"first"' in await line_of(lines)
                assert b"ENTRY" in await line_of(text)
                await line_of(text)  # the line below the heading
                assert b"first" in await line_of(text)
                await writer.append(b"third")
                assert b'"second"' in await line_of(lines)
                assert b"second" in await line_of(text)
                await writer.close()
                assert b'"third"' in await line_of(lines)
                assert b"third" in await line_of(text)
                await until(lambda: lines.poll() is not None and text.poll() is not None)
                assert (lines.returncode, text.returncode) == (0, 0)
            finally:
                end(lines)
                end(text)

    asyncio.run(do())


def test_an_interrupt_ends_it(cluster: Cluster) -> None:
    async def do() -> None:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
            follower = start_follower(cluster, writer.ledger_id, "-o", "jsonl", "0-")
            try:
                await writer.append(b"first")
                await writer.append(b"second")
                assert b'"first"' in await line_of(follower)
                follower.send_signal(signal.SIGINT)
                await until(lambda: follower.poll() is not None)
                assert follower.returncode == 130
            finally:
                end(follower)

    asyncio.run(do())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--from-bookie", "b:1"), "omit --from-bookie"),
        (("0-9",), "omit LAST"),
        (("-o", "jsonl", "--sort", "entry_id"), "omit --sort"),
        (("-o", "yaml"), "use -o jsonl, csv, name or table"),
    ],
)
def test_options_without_effect_are_refused(cluster: Cluster, options: tuple[str, ...], sentence: str) -> None:
    refused = cluster.run("ledger", "read", "1", "--follow", *options)
    assert refused.exit_code == 2
    assert sentence in refused.stderr
