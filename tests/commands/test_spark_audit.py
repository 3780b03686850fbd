"""``bkctl audit --spark`` as a process: it reads the same tree as ``bkctl audit``, and what it writes to stderr."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import BkctlResult, run_bkctl

pytestmark = pytest.mark.cluster

STARTING = "starting Spark on this machine"


class AuditedCluster(NamedTuple):
    uri: str
    conf: Path

    def audit(self, *arguments: str, spark_home: Path | None = None) -> BkctlResult:
        variables: dict[str, Any] = {} if spark_home is None else {"SPARK_HOME": str(spark_home)}
        return run_bkctl("audit", *arguments, "--conf", str(self.conf), **variables)


@pytest.fixture
async def audited(metadata_uri: str, tmp_path: Path) -> AsyncIterator[AuditedCluster]:
    """A flat cluster without LAYOUT, which only ``ledgerManagerType`` says. The bookie of its ledger is gone."""
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await store.create(Paths(uri.root).read_only, make_parents=True)
        ledgers = await open_ledger_store(store, uri.root, LedgerTree.FLAT)
        open_ledger = new_ledger(("gone:3181",), 1, 1, DigestType.CRC32C, b"")
        await ledgers.create(to_closed(open_ledger, 9, 1000), ledger_id=7)
        await store.delete(Paths(uri.root).layout)
        conf = tmp_path / "bk_server.conf"
        conf.write_text(f"metadataServiceUri=zk+null://{uri.servers}{uri.root}\nledgerManagerType=flat\n")
        yield AuditedCluster(metadata_uri, conf)


@pytest.mark.battery
async def test_without_a_recorded_layout_spark_reads_the_same_tree(audited: AuditedCluster, tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    plain, spark = audited.audit(), audited.audit("--spark", "--cores", "1", "--out", out, "--debug")
    assert STARTING in spark.stderr.splitlines()
    assert "write_sets" in os.listdir(out)
    assert [row["ledger_id"] for row in plain.json()["under_replicated_ledgers"]] == ["7"]
    assert (plain.exit_code, spark.exit_code) == (10, 10), spark
    of_the_run = {"seconds": 0, "judged_at": ""}
    assert plain.json() | {"out": out} | of_the_run == spark.json() | of_the_run
    assert "bkctl.runtime.metadata.zookeeper.store" in spark.stderr
    assert "py4j" not in spark.stderr


async def test_a_wrong_spark_home_is_named(audited: AuditedCluster, tmp_path: Path) -> None:
    result = audited.audit("--spark", spark_home=tmp_path)
    assert (result.exit_code, result.stdout) == (13, "")
    assert result.stderr == (
        f"error: SPARK_HOME={tmp_path} is not a Spark installation: it has no bin/spark-submit; unset SPARK_HOME "
        "to use the Spark that bkctl was installed with\n"
    )


async def test_arguments_are_checked_before_spark_starts(audited: AuditedCluster, tmp_path: Path) -> None:
    for out in (tmp_path, audited.conf):
        refused = audited.audit("--spark", "--out", str(out))
        assert refused.exit_code == 3
        assert STARTING not in refused.stderr


async def test_cores_without_spark_are_a_usage_error(audited: AuditedCluster) -> None:
    result = audited.audit("--cores", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--cores needs --spark" in result.stderr
