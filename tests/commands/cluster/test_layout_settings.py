"""Settings of the ledger layout reach every command that reads LAYOUT."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.processes import run_bkctl

SHADED = b"2\ndlshade.org.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"
READERS = (
    ("cluster", "info"),
    ("cluster", "instance-id"),
    ("cluster", "health-check", "disable"),
    ("autorecovery", "status"),
)


@pytest.fixture
def conf(metadata_uri: str, tmp_path: Path) -> Path:
    uri = parse_metadata_uri(metadata_uri)
    path = tmp_path / "bk_server.conf"
    path.write_text(
        f"metadataServiceUri=zk+null://{uri.servers}{uri.root}\nledgerManagerType=flat\n"
        "allowShadedLedgerManagerFactoryClass=true\n"
    )
    return path


def test_init_records_the_layout_of_the_settings_and_readers_allow_a_repackaged_class(
    conf: Path, metadata_uri: str
) -> None:
    created = run_bkctl("cluster", "init", "--conf", str(conf))
    assert (created.exit_code, created.json()["layout"]) == (0, "flat")
    uri = parse_metadata_uri(metadata_uri)
    client = KazooClient(uri.servers)
    client.start()
    client.set(f"{uri.root}/LAYOUT", SHADED)
    client.stop()
    client.close()
    for command in READERS:
        result = run_bkctl(*command, "--conf", str(conf))
        assert result.exit_code == 0, result
    again = run_bkctl("cluster", "init", "--if-not-exists", "--conf", str(conf))
    assert (again.exit_code, again.json()["layout"]) == (0, "flat")
