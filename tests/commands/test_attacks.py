"""Attacks on commands: what a file, a node in ZooKeeper or another user of the machine can make them do."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from tests.processes import Cluster, bkctl_command, bkctl_environment
from tests.runtime.replication.samples import ledger

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

LAST = 2**62


def test_a_ledger_that_claims_to_have_more_entries_than_can_be_asked_for_is_verified(cluster: Cluster) -> None:
    """A ledger may claim any last entry: all that is needed is the right to write to ZooKeeper."""

    async def claim() -> int:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            ensemble = [bookie.id for bookie in cluster.bookies]
            metadata = ledger({0: ensemble}, 3, 3, last_entry_id=LAST, length=LAST)
            return (await client.ports.ledgers.create(metadata))[0]

    ledger_id = asyncio.run(claim())
    verified = cluster.run("ledger", "verify", "--all", "-o", "json")
    assert verified.exit_code == 10, verified.stderr
    (item,) = (each for each in verified.json()["items"] if each["ledger_id"] == str(ledger_id))
    assert item["lost"] == f"0-{LAST}"


def test_a_planted_link_does_not_lead_a_command_to_another_file(tmp_path: Path) -> None:
    """In a directory that others may write to, where the kernel's protection of links is off."""
    victim, shared = tmp_path / "victim", tmp_path / "shared"
    victim.write_bytes(b"precious")
    shared.mkdir()
    written = shared / "cookie"
    words = ("cookie", "generate", "b1:3181", "--instance-id", "", "--out", str(written))
    directories = ("--journal-dir", str(tmp_path / "journal"), "--ledger-dir", str(tmp_path / "ledgers"))
    plant = ["bash", "-c", 'ln -s "$1" "$2.$$.tmp"; shift 2; exec "$@"', "bash", str(victim), str(written)]
    done = subprocess.run(
        [*plant, *bkctl_command(*words, *directories)],
        env=bkctl_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [each.name for each in shared.iterdir() if each.is_symlink()], "no link was planted"
    assert victim.read_bytes() == b"precious"
    assert (written.is_symlink(), b"journalDir" in written.read_bytes()) == (False, True)
    assert os.stat(written).st_mode & 0o077 == 0
