"""The generated module is what the generator makes of the .proto text today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SOURCE = "runtime/protocol/bookkeeper_wire.proto"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generated")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={directory}", f"--pyi_out={directory}"]
    subprocess.run([*command, SOURCE], cwd=ROOT, check=True)
    return directory


@pytest.mark.parametrize("suffix", [".py", ".pyi"])
def test_generated_code_is_current(generated: Path, suffix: str) -> None:
    name = SOURCE.replace(".proto", "_pb2" + suffix)
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        assert file.read() == (generated / name).read_text(encoding="utf-8")
