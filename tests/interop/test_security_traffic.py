"""What the network sees: with TLS neither an entry nor a password, in plain mode every entry."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Mapping
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
TWO_COPIES = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}
LEDGER_PASSWORD = "ledger-password-4d1e"
CLIENT_HELLO = b"\x16\x03\x01"
"""As OpenSSL sends it; Java's differs."""


@pytest.mark.parametrize("server", [NEWEST, OURS])
@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.MUTUAL_TLS, Mode.TLS_AND_LOGIN], ids=lambda mode: mode.name.lower())
def test_entries_in_all_traffic(
    server: str, mode: Mode, new_metadata_uri: Callable[[], str], znodes: KazooClient, tmp_path: Path
) -> None:
    sides = sides_of(mode, tmp_path / "files")
    is_plain = mode is Mode.PLAIN
    with (
        secured_cluster(server, sides, tmp_path / "cluster", new_metadata_uri, count=3) as cluster,
        contextlib.ExitStack() as stack,
    ):
        relays = {each: stack.enter_context(TrafficRelay(each)) for each in cluster.running}
        for relay in relays.values():
            relay.take_over(znodes, parse_metadata_uri(cluster.metadata_uri).root)
        client = JavaClient(
            cluster.metadata_uri, str(tmp_path / "log"), jvm_flags=sides.client_flags, **sides.java_client
        )
        try:
            digest = {"digest_type": "CRC32C", "password": LEDGER_PASSWORD}
            ledger_id = client.call_and_wait("create", **TWO_COPIES, **digest)["ledger_id"]
            payloads = [base64.b64encode(MARKER).decode()] * 5
            client.call_and_wait("append", ledger_id=ledger_id, payloads=payloads)
            client.call_and_wait("close", ledger_id=ledger_id)
        finally:
            client.stop()
        (segment,) = cluster.run("ledger", "show", str(ledger_id), "-o", "json").json()["ensembles"]
        dead, source = segment["ensemble"]
        (target,) = relays.keys() - {dead, source}
        assert [relays[each].has_seen(MARKER) for each in (dead, source, target)] == [is_plain, is_plain, False]
        by_java = _bytes_of(relays)
        assert by_java > 2 * 5 * len(MARKER)

        read = cluster.run("ledger", "read", str(ledger_id), "-o", "jsonl")
        assert (read.exit_code, len(read.stdout.splitlines())) == (0, 5), read
        assert _bytes_of(relays) > by_java + 5 * len(MARKER), "bkctl did not use the relays"

        cluster.stop(dead)
        by_reader = relays[source].byte_count
        recovered = cluster.run("recover", dead, "--yes")
        assert recovered.exit_code == 0, recovered.stderr
        assert relays[source].byte_count > by_reader + 5 * len(MARKER), "recover read past the relay"
        assert relays[target].byte_count > 5 * len(MARKER), "recover wrote past the relay"

        assert [relay.has_seen(MARKER) for relay in relays.values()] == [is_plain] * 3
        assert [relays[each].has_seen(CLIENT_HELLO) for each in (source, target)] == [not is_plain] * 2
        assert not any(relay.has_seen(PASSWORD.encode()) for relay in relays.values())


def _bytes_of(relays: Mapping[str, TrafficRelay]) -> int:
    return sum(relay.byte_count for relay in relays.values())
