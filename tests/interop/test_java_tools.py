"""The Java shell on what bkctl wrote: znodes, journals and entry logs."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from bkctl.runtime.client import LedgerClient
from tests.interop.exchange import append_all, bkctl_creates, payloads
from tests.interop.java import run_shell, write_server_conf
from tests.processes import DevCluster

ENTRY_COUNT = 40


def files_below(directory: str, extension: str) -> list[str]:
    """Paths of all files with this extension, sorted."""
    return sorted(str(path) for path in Path(directory).rglob(f"*{extension}"))


async def _write(metadata_uri: str) -> int:
    async with await LedgerClient.connect(metadata_uri) as client:
        async with await bkctl_creates(client, "CRC32C") as writer:
            await append_all(writer, payloads(ENTRY_COUNT))
        return writer.ledger_id


def test_java_tools_read_our_znodes_and_files(start_dev_cluster: Callable[[int], DevCluster], tmp_path: Path) -> None:
    cluster = start_dev_cluster(3)
    ledger_id = asyncio.run(_write(cluster.metadata_uri))
    bookie = cluster.bookies[0]
    conf_path = str(tmp_path / "shell.conf")
    journal = files_below(bookie.directory, "[0-9a-f].txn")[-1]
    journal_directory = os.path.dirname(os.path.dirname(journal))

    write_server_conf(conf_path, cluster.metadata_uri, bookie.directory, bookie.port)
    listed = run_shell(conf_path, "listledgers")
    assert listed.returncode == 0
    assert re.findall(r"ledgerId=(\d+)", listed.stderr) == [str(ledger_id)]

    shown = run_shell(conf_path, "ledgermetadata", "-ledgerid", str(ledger_id))
    assert shown.returncode == 0
    assert f"lastEntryId={ENTRY_COUNT - 1}" in shown.stderr
    assert "state=CLOSED" in shown.stderr

    write_server_conf(
        conf_path, cluster.metadata_uri, bookie.directory, bookie.port, journalDirectories=journal_directory
    )
    scanned = run_shell(conf_path, "readjournal", os.path.basename(journal))
    assert scanned.returncode == 0, scanned.stderr
    assert _entries_named(scanned.stderr, ledger_id) >= set(range(ENTRY_COUNT))

    cluster.run("dev", "cluster", "down", "--dir", cluster.directory)  # the clean stop flushes to the entry log
    logs = files_below(bookie.directory, ".log")
    entry_log = next(path for path in logs if re.fullmatch(r"[0-9a-f]+\.log", os.path.basename(path)))
    ledger_directory = os.path.dirname(os.path.dirname(entry_log))
    write_server_conf(
        conf_path, cluster.metadata_uri, bookie.directory, bookie.port, ledgerDirectories=ledger_directory
    )
    scanned = run_shell(conf_path, "readlog", os.path.basename(entry_log))
    assert scanned.returncode == 0, scanned.stderr
    assert _entries_named(scanned.stderr, ledger_id) == set(range(ENTRY_COUNT))


def _entries_named(text: str, ledger_id: int) -> set[int]:
    """Entry ids that the output names together with the ledger."""
    return {
        int(entry_id)
        for line in text.splitlines()
        if re.search(rf"ledgerId={ledger_id}\b", line)
        for entry_id in re.findall(r"entryId=(\d+)", line)
    }
