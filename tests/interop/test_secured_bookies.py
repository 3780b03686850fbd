"""Java bookies and a ZooKeeper that want more than a client has: the first error says what is missing."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from bkctl.runtime.client import LedgerClient
from tests.interop.java_cluster import JavaCluster
from tests.processes import run_bkctl
from tests.zookeeper_servers import secured_server

LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule required"
NO_LOGIN = "it serves only clients that use TLS or log in: set bookie_client.tls or bookie_client.sasl"


async def create_empty_ledger(metadata_uri: str) -> int:
    """An open ledger; no bookie is asked."""
    async with await LedgerClient.connect(metadata_uri) as client:
        writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        writer.abandon()
        return writer.ledger_id


def test_bookies_that_require_authentication(new_metadata_uri: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text(f'Bookie {{ {LOGIN} user_bkctl="secret"; }};\n')
    flags = (f"-Djava.security.auth.login.config={tmp_path}/jaas.conf",)
    sasl = {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}
    with JavaCluster(str(tmp_path / "cluster"), new_metadata_uri(), jvm_flags=flags) as cluster:
        (bookie_id,) = cluster.start_bookies(1, **sasl)
        sentence = f"error: bookie {bookie_id}: {NO_LOGIN}"
        info = cluster.run("bookie", "info")
        assert (info.exit_code, info.stderr.splitlines()[-1]) == (11, sentence)
        written = cluster.run("ledger", "write-test", "--entries", "1", "-E", "1", "-W", "1", "-A", "1")
        assert (written.exit_code, written.stderr.splitlines()[-1]) == (11, sentence)
        assert sentence in cluster.run("bookie", "sanity", bookie_id).stderr
        ledger_id = asyncio.run(create_empty_ledger(cluster.metadata_uri))
        read = cluster.run("ledger", "read", str(ledger_id), "--from-bookie", bookie_id)
        assert (read.exit_code, read.stderr.splitlines()[-1]) == (11, sentence)


def test_bookies_with_tls_serve_clients_without(new_metadata_uri: Callable[[], str], tmp_path: Path) -> None:
    key_store, password = tmp_path / "keys.jks", tmp_path / "password"
    password.write_text("secret-7f3a")
    keytool = shutil.which("keytool")
    assert keytool is not None
    subprocess.run(
        [
            *(keytool, "-genkeypair", "-alias", "bookie", "-keyalg", "RSA", "-dname", "CN=127.0.0.1"),
            *("-storepass", "secret-7f3a", "-keypass", "secret-7f3a", "-storetype", "JKS"),
            *("-keystore", str(key_store)),
        ],
        check=True,
        capture_output=True,
    )
    tls: Mapping[str, str] = {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStore": str(key_store),
        "tlsKeyStoreType": "JKS",
        "tlsKeyStorePasswordPath": str(password),
    }
    with JavaCluster(str(tmp_path / "cluster"), new_metadata_uri()) as cluster:
        cluster.start_bookies(1, **tls)
        written = cluster.run("ledger", "write-test", "--entries", "1", "-E", "1", "-W", "1", "-A", "1")
        assert written.exit_code == 0, written.stderr


def test_a_zookeeper_that_requires_a_login(tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text(f'Server {{ {LOGIN} user_bkctl="secret"; }};\n')
    config = {
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    with secured_server(tmp_path, config, {"java.security.auth.login.config": "./jaas.conf"}) as server:
        uri = f"zk+hierarchical://{server.address}/ledgers"
        result = run_bkctl("ledger", "list", BKCTL_METADATA_URI=uri)
        assert (result.exit_code, result.stderr) == (
            11,
            "error: /ledgers/LAYOUT: ZooKeeper accepts only users that log in: set zookeeper.sasl\n",
        )
