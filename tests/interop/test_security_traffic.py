"""What the network sees: with TLS neither an entry nor a password, in plain mode every entry."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.java import NEWEST, JavaClient
from tests.interop.secured_clusters import OURS, secured_cluster
from tests.interop.security_modes import PASSWORD, Mode, sides_of
from tests.interop.traffic_relay import TrafficRelay

pytestmark = pytest.mark.battery  # of `make interop-full`

MARKER = b"an entry that the network must not see " * 3
ONE_BOOKIE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
LEDGER_PASSWORD = "ledger-password-4d1e"
CLIENT_HELLO = b"\x16\x03\x01"


@pytest.mark.parametrize("server", [NEWEST, OURS])
@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.MUTUAL_TLS, Mode.TLS_AND_LOGIN], ids=lambda mode: mode.name.lower())
def test_entries_in_all_traffic(
    server: str, mode: Mode, new_metadata_uri: Callable[[], str], znodes: KazooClient, tmp_path: Path
) -> None:
    sides = sides_of(mode, tmp_path / "files")
    with (
        secured_cluster(server, sides, tmp_path / "cluster", new_metadata_uri, count=1) as cluster,
        TrafficRelay(cluster.running[0]) as relay,
    ):
        relay.take_over(znodes, parse_metadata_uri(cluster.metadata_uri).root)
        client = JavaClient(
            cluster.metadata_uri, str(tmp_path / "log"), jvm_flags=sides.client_flags, **sides.java_client
        )
        try:
            digest = {"digest_type": "CRC32C", "password": LEDGER_PASSWORD}
            ledger_id = client.call_and_wait("create", **ONE_BOOKIE, **digest)["ledger_id"]
            payloads = [base64.b64encode(MARKER).decode()] * 5
            client.call_and_wait("append", ledger_id=ledger_id, payloads=payloads)
            client.call_and_wait("close", ledger_id=ledger_id)
        finally:
            client.stop()
        assert relay.has_seen(MARKER) == (mode is Mode.PLAIN)
        by_java = relay.byte_count
        assert by_java > 5 * len(MARKER)

        read = cluster.run("ledger", "read", str(ledger_id), "-o", "jsonl")
        assert (read.exit_code, len(read.stdout.splitlines())) == (0, 5), read
        assert relay.byte_count > by_java + 5 * len(MARKER), "bkctl did not use the relay"
        assert relay.has_seen(MARKER) == (mode is Mode.PLAIN)
        assert relay.has_seen(CLIENT_HELLO) == (mode is not Mode.PLAIN)
        assert not relay.has_seen(PASSWORD.encode())
