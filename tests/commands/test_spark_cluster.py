"""``bkctl audit --spark`` on a cluster: the executors get the code and the secrets, and the report is the same."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.processes import COMMAND_TIMEOUT_S, BkctlResult, bkctl_environment, free_port, run_bkctl
from tests.runtime.replication.samples import random_ledger
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot
from tests.spark_cluster import SparkCluster, spark_cluster, spark_home
from tests.spark_reports.conftest import BOOKIES
from tests.test_repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

TIMES = {"seconds": 0, "judged_at": 0}
"""What differs between two reports."""

SECRET = "sesame-of-the-driver-alone"
LEDGERS = 40
GUIDE = Path(ROOT) / "docs" / "guide" / "notebook.md"


@pytest.fixture(scope="module")
def event_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("event-logs")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, event_logs: Path) -> Iterator[SparkCluster]:
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_logs.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    with spark_cluster(tmp_path_factory.mktemp("spark-cluster"), settings) as running:
        yield running


@pytest.fixture
async def protected_uri(metadata_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cluster whose nodes only a user may read, whose password is in a variable of the driver."""
    monkeypatch.setenv("ZOOKEEPER_USER", f"bkctl:{SECRET}")
    uri, source = parse_metadata_uri(metadata_uri), random.Random(7)
    config = ZooKeeperConfig(digest="env:ZOOKEEPER_USER", has_secure_acl=True)
    async with await ZooKeeperStore.connect(uri.servers, config) as store:
        await init_cluster(store, uri.root, uri.tree, source)
        ledgers = await open_ledger_store(store, uri.root, uri.tree)
        for ledger_id in range(LEDGERS):
            await ledgers.create(random_ledger(source, BOOKIES), ledger_id=ledger_id * 10_000)
    return metadata_uri


def variables(cluster: SparkCluster) -> dict[str, str]:
    config = cluster.directory / "config.toml"
    config.write_text('[zookeeper]\ndigest = "env:ZOOKEEPER_USER"\n')
    return cluster.variables | {"BKCTL_CONFIG": str(config), "ZOOKEEPER_USER": f"bkctl:{SECRET}"}


def audit(cluster: SparkCluster, *arguments: str) -> BkctlResult:
    return run_bkctl("audit", "-o", "json", *arguments, timeout_s=COMMAND_TIMEOUT_S, **variables(cluster))


def test_a_cluster_has_the_same_report(
    cluster: SparkCluster, protected_uri: str, event_logs: Path, tmp_path: Path
) -> None:
    plain = audit(cluster, "--metadata-uri", protected_uri)
    assert plain.exit_code == 10, plain.stderr
    by_cluster = audit(
        cluster, "--metadata-uri", protected_uri, "--spark", "--master", cluster.url, "--out", str(tmp_path / "out")
    )

    assert by_cluster.exit_code == 10, by_cluster.stderr + cluster.logs
    assert f"starting Spark on {cluster.url}" in by_cluster.stderr
    different = TIMES | {"out": None}
    assert by_cluster.json() | different == plain.json() | different
    assert plain.json()["ledgers"] == LEDGERS
    assert all(name.endswith(".parquet") for name in os.listdir(tmp_path / "out" / "write_sets"))

    application = cluster.state()["completedapps"][0]
    assert (application["name"], application["cores"]) == ("bkctl audit", 2)
    log = (event_logs / application["id"]).read_text()
    assert "bookkeeper_audit" in log
    assert SECRET not in log


def test_the_executors_of_a_cluster_get_the_file(cluster: SparkCluster, tmp_path: Path) -> None:
    """The copy of a compressed one, and one that Hadoop reads."""
    sample, path = SampleCluster(ledgers=500), tmp_path / "snapshot.1"
    with path.open("wb") as output:
        write_snapshot(output, cluster_nodes(sample), sample.sessions)
    packed = tmp_path / "snapshot.1.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))

    def report(source: str, *arguments: str) -> dict[str, Any]:
        done = audit(cluster, "--from", source, *arguments)
        assert done.exit_code == 10, done.stderr + cluster.logs
        origin = f"snapshot {source}"
        found: dict[str, Any] = done.json()
        assert (found["ledgers_from"], found["bookies_from"]) == (origin, origin)
        of_file = dict.fromkeys(("as_of_file", "replicated_as_of_file", "empty_as_of_file"), 0)
        return found | TIMES | of_file | {"ledgers_from": "", "bookies_from": "", "file_written": None}

    plain = report(str(path))
    assert plain["ledgers"] == 500
    for source in (str(packed), path.as_uri()):
        assert report(source, "--spark", "--master", cluster.url) == plain


def test_the_python_of_the_cluster_has_no_bkctl(cluster: SparkCluster) -> None:
    result = subprocess.run([cluster.python, "-P", "-c", "import bkctl"], capture_output=True, check=False)
    assert b"No module named 'bkctl'" in result.stderr


def test_spark_submit_runs_the_audit(cluster: SparkCluster, protected_uri: str) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "bkctl.spark_submit"], capture_output=True, text=True, check=True
    ).stdout.strip()

    def submit(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                os.path.join(spark_home(), "bin", "spark-submit"),
                *("--master", cluster.url, script, "--metadata-uri", protected_uri, "-o", "json", "--quiet"),
            ],
            env=bkctl_environment(**variables(cluster), **more),
            capture_output=True,
            text=True,
            check=False,
        )

    refused = submit()
    assert refused.returncode == 13, refused.stderr
    assert "has no bkctl: set PYSPARK_DRIVER_PYTHON to the Python" in refused.stdout, "the stream of both"

    submitted = submit(PYSPARK_DRIVER_PYTHON=sys.executable)

    assert submitted.returncode == 10, submitted.stderr + cluster.logs
    assert json.loads(submitted.stdout)["ledgers"] == LEDGERS


NOTEBOOK = """
import sys, urllib.request
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[1]).getOrCreate()
{ship}
{secrets}
frame.createOrReplaceTempView("write_sets")
{query}
print("LEDGERS", sum(row["ledgers"] for row in by_state.collect()))
frame.explain(True)
page = spark.sparkContext.uiWebUrl + "/api/v1/applications/" + spark.sparkContext.applicationId
for part in ("environment", "jobs", "stages?details=true", "sql?details=true&planDescription=true", "executors"):
    print("UI", part, urllib.request.urlopen(page + "/" + part).read().decode())
spark.stop()
"""


def test_a_notebook_reads_write_sets_and_shows_no_secret(
    cluster: SparkCluster, protected_uri: str, event_logs: Path
) -> None:
    """The code of the guide; only the address is another one."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    query = blocks[0].partition('createOrReplaceTempView("write_sets")\n')[2].replace("by_state.show()\n", "")
    code = NOTEBOOK.format(ship=blocks[1], secrets=blocks[2], query=query)
    code = code.replace("zk+hierarchical://127.0.0.1:2181/ledgers", protected_uri).replace('"/tmp"', "sys.argv[2]")
    before = set(os.listdir(event_logs))
    directory = cluster.directory / "notebook"
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, cluster.url, str(directory)],
        env=bkctl_environment(**variables(cluster)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + cluster.logs
    assert f"LEDGERS {LEDGERS}\n" in done.stdout
    assert "bookkeeper_write_sets" in done.stdout
    (log,) = set(os.listdir(event_logs)) - before
    for text in (done.stdout, done.stderr, (event_logs / log).read_text()):
        assert SECRET not in text


def test_a_master_that_is_not_there_is_named(cluster: SparkCluster, protected_uri: str) -> None:
    master = f"spark://127.0.0.1:{free_port()}"
    result = audit(cluster, "--spark", "--master", master, "--metadata-uri", protected_uri)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: no Spark master answers at {master}: check the address and the port\n"
