"""After a run with all kinds of secrets none of them is in a plan, a job file, a backup, an event log of Spark, the
audit trail, an output or a log.
"""

from __future__ import annotations

import gzip
import signal
from pathlib import Path

import pytest

from tests.interop.secured_clusters import OurCluster
from tests.interop.security_files import STORE_PASSWORD, TestAuthority
from tests.interop.security_modes import Mode, sides_of
from tests.processes import COMMAND_TIMEOUT_S, start_bkctl
from tests.recovery_daemons import RecoveryDaemon
from tests.until import wait_until

pytestmark = pytest.mark.cluster

LOGIN, ZOOKEEPER = "login-sesame-41c7", "zookeeper-sesame-90d2"
SECRETS = (STORE_PASSWORD, LOGIN, ZOOKEEPER)
WRITTEN = ("--ledgers", "10", "--entries", "40", "--entry-size", "4k", "-E", "3", "-W", "2", "-A", "2")


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The directory of the files that have the secrets; it alone is not searched."""
    directory = tmp_path / "secrets"
    directory.mkdir()
    for name, content in (
        ("login", LOGIN),
        ("zookeeper", f"operator:{ZOOKEEPER}"),
        ("jaas.conf", f'Bookie {{ a.DigestLoginModule required user_bookkeeper="{LOGIN}"; }};'),
    ):
        (directory / name).touch(0o600)
        (directory / name).write_text(content)
    return directory


@pytest.fixture
def variables(secrets: Path, tmp_path: Path) -> dict[str, str]:
    """TLS with PKCS12 files that have a password, a login, and a user of ZooKeeper."""
    sides = sides_of(Mode.MUTUAL_TLS, secrets / "files", authority=TestAuthority(secrets / "tls"))
    settings = Path(sides.variables["BKCTL_CONFIG"])
    settings.write_text(
        f'[bookie.sasl]\njaas_file = "{secrets}/jaas.conf"\n'
        f'[bookie_client.sasl]\nusername = "bookkeeper"\npassword = "file:{secrets}/login"\n'
        f'[zookeeper]\ndigest = "file:{secrets}/zookeeper"\n{settings.read_text()}'
    )
    events, spark = tmp_path / "events", tmp_path / "spark"
    events.mkdir()
    spark.mkdir()
    (spark / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\nspark.eventLog.compress false\n"
        "spark.eventLog.rolling.enabled false\n"
    )
    return sides.variables | {"XDG_STATE_HOME": str(tmp_path / "state"), "SPARK_CONF_DIR": str(spark)}


@pytest.mark.battery
def test_no_file_and_no_output_has_a_secret(
    metadata_uri: str, secrets: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    sides = sides_of(Mode.PLAIN, secrets / "unused")._replace(variables=variables)
    cluster = OurCluster(tmp_path / "cluster", metadata_uri, sides)
    daemon = RecoveryDaemon(metadata_uri, tmp_path / "daemon", "--debug", **variables)
    outputs = tmp_path / "outputs"
    outputs.mkdir()

    def run(*words: str, exit_code: int = 0) -> None:
        result = cluster.run(*words, "--debug")
        assert result.exit_code == exit_code, result.stderr
        with (outputs / "all").open("a") as output:
            output.write(result.stdout + result.stderr)

    try:
        cluster.up(4)
        run("ledger", "write-test", *WRITTEN)
        run("config", "show")
        run("tls", "check", exit_code=10)
        run("cluster", "backup", str(tmp_path / "backup.jsonl.gz"))
        inventory = ("--inventory", "--read", "--all-entries", "--fail-on", "unknown_copies,bad_copies")
        run("audit", "--spark", "--cores", "1", "--out", str(tmp_path / "audit"), *inventory)
        dead = cluster.running[0]
        cluster.kill(dead)
        wait_until(lambda: dead not in cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout)
        run("recover", dead, "--plan-out", str(tmp_path / "plan.json"))
        job = interrupted_job(cluster, dead, variables, outputs)
        daemon.start()
        wait_until(lambda: "this process is the auditor now" in daemon.log)
        found = files_with_secrets(tmp_path, secrets)
        run("recover", dead, "--yes", "--resume", str(job))
    finally:
        daemon.kill()
        cluster.stop()
    assert found == []
    assert files_with_secrets(tmp_path, secrets) == []
    assert list((tmp_path / "events").iterdir()), "Spark wrote no log"
    assert files_with_secrets(tmp_path, tmp_path / "nothing"), "the search finds nothing at all"


def interrupted_job(cluster: OurCluster, dead: str, variables: dict[str, str], outputs: Path) -> Path:
    """The job file of a recovery that was stopped in the middle."""
    jobs = Path(variables["XDG_STATE_HOME"]) / "bkctl" / "jobs"
    with (outputs / "stopped").open("wb") as output:
        process = start_bkctl(
            *("recover", dead, "--yes", "--debug", "--copy-rate", "20KiB"),
            stdout=output,
            stderr=output,
            variables={"BKCTL_METADATA_URI": cluster.metadata_uri, **variables},
        )
    tell = (outputs / "stopped").read_text
    wait_until(lambda: jobs.is_dir() and any(jobs.glob("*.sqlite")), process=process, tell=tell)
    process.send_signal(signal.SIGTERM)
    assert process.wait(COMMAND_TIMEOUT_S) == 143, tell()
    (job,) = jobs.glob("*.sqlite")
    return job


def files_with_secrets(directory: Path, but: Path) -> list[str]:
    """Files below a directory that have a secret, without those below ``but``."""
    found = []
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink() and but not in path.parents:
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
            found += [f"{path}: {secret}" for secret in SECRETS if secret.encode() in content]
    return found
