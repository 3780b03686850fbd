"""Is checked-in generated code what the compiler makes of its .proto file?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROJECT = Path(__file__).parent.parent.parent


def assert_generated_code_is_current(proto: str, scratch: Path) -> None:
    """Compile ``proto`` (path below the project) into ``scratch`` and compare."""
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"--python_out={scratch}",
        f"--pyi_out={scratch}",
        proto,
    ]
    subprocess.run(command, cwd=_PROJECT, check=True)
    stem = proto.removesuffix(".proto")
    for suffix in ("_pb2.py", "_pb2.pyi"):
        assert (_PROJECT / (stem + suffix)).read_text() == (scratch / (stem + suffix)).read_text()
