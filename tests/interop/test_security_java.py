"""Java bookies and Java clients of each mode among themselves: what the other tests of security rest on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.java import JavaClient, JavaError
from tests.interop.java_cluster import JavaCluster
from tests.interop.security_modes import Mode, sides_of
from tests.kerberos import Realm

pytestmark = pytest.mark.battery  # of `make interop-full`


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.name.lower())
async def test_java_serves_java_and_refuses_a_plain_client(
    new_metadata_uri: Callable[[], str], tmp_path: Path, realm_of_mode: Realm | None, mode: Mode
) -> None:
    sides = sides_of(mode, tmp_path / "files", realm_of_mode)
    with JavaCluster(str(tmp_path / "cluster"), new_metadata_uri(), jvm_flags=sides.jvm_flags) as cluster:
        cluster.start_bookies(1, **sides.java_bookie)
        entries = [b"one", b"two"]
        client = JavaClient(
            cluster.metadata_uri, str(tmp_path / "client.log"), jvm_flags=sides.client_flags, **sides.java_client
        )
        plain = JavaClient(cluster.metadata_uri, str(tmp_path / "plain.log"))
        try:
            ledger_id = await client.create(ensemble=(1, 1, 1))
            assert await client.append(ledger_id, entries) == [0, 1]
            assert await client.close_ledger(ledger_id) == 1
            assert await client.read(ledger_id) == entries
            if mode in {Mode.PLAIN, Mode.TLS, Mode.MUTUAL_TLS}:  # Java serves plain clients next to those with TLS
                assert await plain.read(ledger_id) == entries
            else:
                with pytest.raises(JavaError):
                    await plain.read(ledger_id)
        finally:
            client.stop()
            plain.stop()
