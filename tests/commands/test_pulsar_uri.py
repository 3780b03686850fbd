"""A cluster named as Pulsar names it, in every place that takes a metadata URI; ZooKeeper and the bookie are real."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import bkctl_command, bkctl_environment, free_port, kill_and_wait, run_bkctl

pytestmark = pytest.mark.cluster

_chroots = itertools.count()
_START_TIMEOUT_S = 120.0


class PulsarCluster(NamedTuple):
    uri: str
    chroot: str
    server: str
    bookie_id: str


@pytest.fixture
def pulsar(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[PulsarCluster]:
    """One bookie, started with a bk_server.conf, in a cluster that was initialised with --metadata-uri."""
    server, chroot = zookeeper.connect_string, f"/pulsar-{next(_chroots)}"
    uri = f"metadata-store:zk:{server}{chroot}"
    assert run_bkctl("cluster", "init", "-u", f"metadata-store:zk:{server},{server}{chroot}").exit_code == 0
    port = free_port()
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri=metadata-store:zk:{server};{server}{chroot}\nbookiePort={port}\nallowLoopback=true\n"
        f"advertisedAddress=127.0.0.1\njournalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n"
    )
    bookie = subprocess.Popen(
        bkctl_command("bookie", "start", "--conf", str(conf)),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=bkctl_environment(),
    )  # fmt: skip
    assert bookie.stderr is not None
    try:
        talk = list(itertools.takewhile(lambda line: "listening on port" not in line, bookie.stderr))
        assert bookie.poll() is None, talk
        yield PulsarCluster(uri, chroot, server, f"127.0.0.1:{port}")
    finally:
        kill_and_wait(bookie.pid)
        bookie.stderr.close()
        bookie.wait(_START_TIMEOUT_S)


async def test_every_place_that_takes_a_uri_takes_pulsars(pulsar: PulsarCluster, tmp_path: Path) -> None:
    async with await ZooKeeperStore.connect(pulsar.server) as store:
        names = await store.children(f"{pulsar.chroot}/ledgers")
        assert {"INSTANCEID", "LAYOUT", "available", "cookies"} <= set(names)
    async with await LedgerClient.connect(pulsar.uri) as client:
        writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        await writer.append(b"entry")
        await writer.close()

    listed = run_bkctl("ledger", "list", "--bookie", pulsar.bookie_id, "-o", "name", BKCTL_METADATA_URI=pulsar.uri)
    assert (listed.exit_code, len(listed.stdout.split())) == (0, 1), listed
    settings = tmp_path / "config.toml"
    settings.write_text(f'[contexts.prod]\nmetadata_uri = "{pulsar.uri}"\n')
    bookies = run_bkctl("bookie", "list", "--context", "prod", "--config", str(settings), "-o", "name")
    assert (bookies.exit_code, bookies.stdout) == (0, f"{pulsar.bookie_id}\n"), bookies
    audited = run_bkctl("audit", "-u", pulsar.uri)
    assert (audited.exit_code, audited.json()["ledgers"]) == (10, 1), audited
    assert [each["part"] for each in audited.json()["findings"] if each["severity"] == "warning"] == ["no_auditor"]
    doctor = run_bkctl("metadata", "doctor", "--severity", "warning", "-u", pulsar.uri)
    assert (doctor.exit_code, [each["rule"] for each in doctor.json()["findings"]]) == (10, ["no-auditor"]), doctor
    info = run_bkctl("cluster", "info", "-u", pulsar.uri).json()
    assert info["bkctl"]["metadata_uri"] == f"zk+hierarchical://{pulsar.server}{pulsar.chroot}/ledgers"


@pytest.mark.battery
def test_the_audit_by_spark_takes_it_too(pulsar: PulsarCluster) -> None:
    written = run_bkctl("ledger", "write-test", "--entries", "1", "-E", "1", "-W", "1", "-A", "1", "-u", pulsar.uri)
    assert written.exit_code == 0, written
    audited = run_bkctl("audit", "--spark", "--cores", "1", "-u", pulsar.uri)
    assert (audited.exit_code, audited.json()["ledgers"]) == (10, 1), audited


def test_oxia_is_refused_by_name() -> None:
    refused = run_bkctl("bookie", "list", "-u", "metadata-store:oxia://localhost:6648/bookkeeper")
    assert (refused.exit_code, refused.stdout) == (13, "")
    assert "the metadata is in 'oxia', but bkctl supports only ZooKeeper" in refused.stderr
