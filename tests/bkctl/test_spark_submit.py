"""What ``spark-submit`` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bkctl.spark_submit
from tests.processes import bkctl_environment

CONFIG = 13


def test_a_python_without_bkctl_gets_one_sentence(tmp_path: Path) -> None:
    """Such as that of ``PYSPARK_PYTHON``, for which a cluster may have a Python with the libraries alone."""
    started = subprocess.run(
        [sys.executable, "-I", "-S", bkctl.spark_submit.__file__, "--metadata-uri", "zk://127.0.0.1:1/ledgers"],
        env=bkctl_environment(PYSPARK_GATEWAY_PORT="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (started.returncode, started.stdout) == (CONFIG, "")
    assert started.stderr == (
        f"error: the Python that spark-submit started ({sys.executable}) has no bkctl: set PYSPARK_DRIVER_PYTHON to "
        "the Python with which bkctl is installed\n"
    )
