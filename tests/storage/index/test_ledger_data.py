"""The generated code belongs to its .proto file, and the message to its bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bkctl.storage.index.ledger_data_pb2 import LedgerData

ROOT = Path(__file__).parents[3]


def test_generated_code_is_current(tmp_path: Path) -> None:
    arguments = [f"--proto_path={ROOT}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    source = "storage/index/ledger_data.proto"
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments, source], check=True, cwd=ROOT)
    for name in ("ledger_data_pb2.py", "ledger_data_pb2.pyi"):
        assert (tmp_path / "storage" / "index" / name).read_text() == (ROOT / "storage" / "index" / name).read_text()


def test_bytes_of_a_rebuilt_row() -> None:
    """As seen after Java's index rebuild: exists, fenced, an empty key (storage section 11.2)."""
    row = LedgerData(exists=True, fenced=True, masterKey=b"")
    assert row.SerializeToString() == bytes.fromhex("080110011a00")
