"""The image: its steps run, and what they make works as a user without rights."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container_build import ContainerBuild, instructions
from tests.processes import Cluster
from tests.test_repository import ROOT, read

MEBIBYTE = 1 << 20
SIZE_MAX = 128 * MEBIBYTE
"""What `pip install bkctl` installs, without the bytecode that it compiles: 122 MiB when this was written, 16 of
them the package ``cryptography``, which TLS needs."""
USER = 10001


def can_mount() -> bool:
    """Whether this process may make a mount namespace with a root of its own."""
    return os.getuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


def test_git_and_the_image_ignore_the_same() -> None:
    ignored = {re.sub(r"^(?!/)", "**/", line.rstrip("/")).removeprefix("/") for line in read(".gitignore").split()}
    for_image = {line for line in read(".dockerignore").splitlines() if not line.startswith("#")}
    assert {each for each in ignored - for_image if not each.startswith("tests/")} == set()
    assert {".git", "tests"} <= for_image


def test_the_image_has_two_stages_and_a_user_without_rights() -> None:
    steps = list(instructions(read("Dockerfile")))
    assert [name for name, _ in steps].count("FROM") == 2
    last = [step for step in steps if step[0] != "COPY"][-2:]
    assert last == [("USER", f"{USER}:{USER}"), ("ENTRYPOINT", '["bkctl"]')]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerBuild]:
    if not can_mount():
        pytest.skip("needs root and mount namespaces")
    directory = tmp_path_factory.mktemp("container")
    for each in (directory, *directory.parents):  # its user must reach it
        if each.stat().st_uid == os.getuid() and each.parent != each and each.stat().st_mode & 0o077 == 0:
            each.chmod(0o755)
    yield ContainerBuild(Path(ROOT), directory)
    shutil.rmtree(directory)


@pytest.mark.battery
@pytest.mark.cluster
def test_the_steps_make_an_image_with_a_working_bkctl(build: ContainerBuild, cluster: Cluster) -> None:
    image = build.image
    assert build.commands == 3
    assert image.run("id", "-u").stdout.strip() == str(USER)
    assert image.run("touch", "/opt/bkctl/file").returncode != 0
    assert (image.path("/state").stat().st_uid, image.path("/state").stat().st_mode & 0o777) == (USER, 0o700)

    uri = {"BKCTL_METADATA_URI": cluster.metadata_uri}
    listed = image.run(*image.entrypoint, "bookie", "list", "-o", "name", **uri)
    assert (listed.returncode, set(listed.stdout.split())) == (0, {each.id for each in cluster.bookies}), listed.stderr
    disabled = image.run(*image.entrypoint, "autorecovery", "disable", "--yes", **uri)
    assert disabled.returncode == 0, disabled.stderr
    assert list(image.path("/state").rglob("*.jsonl")), "the audit trail"
    spark = image.run(*image.entrypoint, "audit", "--spark", **uri)
    assert (spark.returncode, spark.stderr.endswith("pip install 'bkctl[spark]'\n")) == (13, True), spark.stderr


@pytest.mark.battery
def test_what_is_installed_is_locked_small_and_without_test_tools(build: ContainerBuild) -> None:
    (packages,) = build.image.path("/opt/bkctl/lib").glob("python*/site-packages")
    installed = {each.name.split("-")[0].replace("_", "-").lower() for each in packages.glob("*.dist-info")}
    locked = set(re.findall(r"^([a-z0-9-]+)==", read("requirements-run.txt"), re.MULTILINE))
    assert installed - {"bkctl"} == locked
    assert not installed & {"pytest", "mypy", "ruff", "hypothesis", "pip", "pyspark", "pyarrow"}
    used = sum(path.lstat().st_blocks * 512 for path in packages.rglob("*") if path.suffix != ".pyc")
    assert used <= SIZE_MAX, f"{used / MEBIBYTE:.0f} MiB"
