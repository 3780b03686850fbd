"""A bookie that fills an emptied disk from other bookies which serve only clients with a certificate and a role."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.security_config import BookieClientConfig, ClientTlsConfig
from tests.interop.secured_clusters import OurCluster
from tests.interop.security_files import TestAuthority
from tests.interop.security_modes import Mode, sides_of
from tests.until import wait_until

pytestmark = pytest.mark.cluster

ENTRIES = 30
REPAIRS = "\n[bookie.integrity]\nis_enabled = true\nstamps_missing_cookies = true\n"


async def write_ledger(metadata_uri: str, authority: TestAuthority) -> int:
    names = ("ca.pem", "client.pem", "client.key")
    ca, certificate, key = (str(authority.file(name)) for name in names)
    tls = ClientTlsConfig(ca_file=ca, certificate_file=certificate, key_file=key)
    config = ClientConfig(security=BookieClientConfig(tls=tls))
    async with await LedgerClient.connect(metadata_uri, config=config) as client:
        async with await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3) as writer:
            for number in range(ENTRIES):
                await writer.append(b"entry %d" % number)
        return writer.ledger_id


def test_an_emptied_disk_is_filled_over_tls_with_a_role(metadata_uri: str, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "tls")
    sides = sides_of(Mode.ROLE, tmp_path / "files", authority=authority)
    with open(sides.variables["BKCTL_CONFIG"], "a", encoding="utf-8") as settings:
        settings.write(REPAIRS)
    cluster = OurCluster(tmp_path / "cluster", metadata_uri, sides)
    try:
        cluster.up(3)
        ledger_id = asyncio.run(write_ledger(metadata_uri, authority))
        emptied = cluster.bookies[0]
        cluster.stop_bookie(emptied.id)
        for name in ("journal", "ledgers"):
            shutil.rmtree(f"{emptied.directory}/{name}/current")
        cluster.start_bookie(emptied.id)
        log = Path(emptied.log_path)
        wait_until(lambda: "integrity check complete: restored" in log.read_text(), tell=log.read_text)
        read = cluster.run("ledger", "read", str(ledger_id), "--from-bookie", emptied.id, "-o", "jsonl")
        assert (read.exit_code, len(read.stdout.splitlines())) == (0, ENTRIES), read.stderr + log.read_text()
    finally:
        cluster.stop()
