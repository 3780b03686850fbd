"""What `pip install bkctl` installs, without PySpark and PyArrow: what needs them says so, everything else works."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import re
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.commands.audit.conftest import NAMESPACE, pulsar_cluster
from tests.processes import COMMAND_TIMEOUT_S, BkctlResult, Cluster, bkctl_environment
from tests.runtime.metadata.pulsar.pulsar_bytes import compressed, topic
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot

pytestmark = pytest.mark.cluster

INSTALL = "which is not installed: pip install 'bkctl[spark]'"
LEFT_OUT = re.compile(r"(pyspark|pyarrow|py4j)\b")

Run = Callable[..., BkctlResult]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of links to all installed packages but those of the extra."""
    environment = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    installed = Path(sysconfig.get_path("purelib"))
    names = [path.name for path in installed.iterdir() if not LEFT_OUT.match(path.name)]
    assert len(names) < len(os.listdir(installed))
    for name in names:
        (packages / name).symlink_to(installed / name)
    return environment


@pytest.fixture
def bare(environment: Path, tmp_path: Path) -> Run:
    """Runs bkctl there, in an empty working directory."""
    directory = tmp_path / "cwd"
    directory.mkdir()

    def run(*arguments: str, **variables: str) -> BkctlResult:
        finished = subprocess.run(
            [environment / "bin" / "python", "-P", "-m", "bkctl", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=directory,
            env=bkctl_environment(**variables),
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return BkctlResult(finished.returncode, finished.stdout, finished.stderr)

    return run


def test_the_extra_has_what_only_some_commands_need() -> None:
    wanted = [each.replace(" ", "") for each in importlib.metadata.requires("bkctl") or ()]
    extra = {re.split(r"[<>=;]", each)[0] for each in wanted if each.endswith(("extra=='spark'", 'extra=="spark"'))}
    always = {re.split(r"[<>=;]", each)[0] for each in wanted if "extra" not in each}
    assert extra == {"pyarrow", "pyspark"}
    assert {"typer", "rich", "kazoo", "plyvel"} <= always
    assert extra & always == set()


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("dev", "zookeeper", "--dir", "made"), 1),
        (("dev", "zookeeper", "--dir", "made", "--dry-run"), 1),
        (("dev", "cluster", "up", "--dir", "made"), 13),
        (("bookie", "start"), 1),
        (("audit", "--spark", "--metadata-uri", "zk://127.0.0.1:1/ledgers"), 13),
        (("audit", "--spark", "--from", "no-file", "--out", "made"), 13),
    ],
)
def test_what_needs_them_says_so_and_leaves_nothing(
    bare: Run, tmp_path: Path, arguments: tuple[str, ...], exit_code: int
) -> None:
    done = bare(*arguments)
    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert re.fullmatch(rf"error: .+ needs (the jars in )?PySpark, {re.escape(INSTALL)}\n", done.stderr), done.stderr
    assert ("nothing is configured: name a cluster with --conf" in done.stderr) is (arguments[0] == "bookie")
    assert os.listdir(tmp_path / "cwd") == []


def test_an_audit_writes_a_page_and_json_and_says_what_is_missing(bare: Run, cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "report"
    done = bare(
        "audit", "--out", str(out), "-o", "json", "--fail-on", "critical", BKCTL_METADATA_URI=cluster.metadata_uri
    )
    assert done.exit_code == 0, done.stderr
    assert "only HTML and JSON were written, because Parquet needs PyArrow: pip install 'bkctl[spark]'" in done.stderr
    assert sorted(each.name for each in out.iterdir()) == ["report.html", "report.json"]
    shown = bare("audit", "show", str(out), "-o", "json", "--fail-on", "critical")
    assert (shown.exit_code, shown.json()["kind"]) == (0, done.json()["kind"])
    assert bare("ledger", "write-test", "--entries", "10", BKCTL_METADATA_URI=cluster.metadata_uri).exit_code == 0
    assert bare("status", BKCTL_METADATA_URI=cluster.metadata_uri).exit_code in {0, 10}


def test_snapshots_need_pyarrow_only_for_snappy(bare: Run, tmp_path: Path) -> None:
    plain = tmp_path / "snapshot.1"
    sample = SampleCluster(ledgers=10, lost_bookies=0, marks=0)
    with plain.open("wb") as file:
        write_snapshot(file, cluster_nodes(sample), sample.sessions)
    assert bare("audit", "--from", str(plain)).exit_code in {0, 10}
    block = pyarrow.compress(plain.read_bytes(), codec="snappy", asbytes=True)
    packed = tmp_path / "snapshot.1.snappy"
    packed.write_bytes(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(block)) + block)
    done = bare("audit", "--from", str(packed))
    assert done.exit_code == 13
    assert done.stderr == f"error: {packed} is compressed with snappy, and unpacking it needs PyArrow, {INSTALL}\n"


@pytest.mark.parametrize(("codec", "exit_code"), [("NONE", 0), ("ZLIB", 0), ("LZ4", 13), ("ZSTD", 13), ("SNAPPY", 13)])
async def test_compressed_metadata_of_pulsar(
    bare: Run, zookeeper: EmbeddedZooKeeper, tmp_path: Path, codec: str, exit_code: int
) -> None:
    async with pulsar_cluster(zookeeper.connect_string, tmp_path) as pulsar:
        await pulsar.topic(f"{NAMESPACE}/persistent/t", compressed(topic([1]), codec))
        done = await asyncio.to_thread(bare, "audit", "orphans", "--settle", "1s", **pulsar.environment)
    assert done.exit_code == exit_code, done.stderr
    said = f"error: metadata that Pulsar has compressed with {codec.lower()} needs PyArrow, {INSTALL}\n"
    assert done.stderr.endswith(said) is bool(exit_code)
