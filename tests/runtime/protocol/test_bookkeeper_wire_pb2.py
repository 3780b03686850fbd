"""The generated module is what the generator makes of the .proto text today."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.generated import assert_generated_code_is_current


def test_generated_code_is_current(tmp_path: Path) -> None:
    assert_generated_code_is_current("runtime/protocol/bookkeeper_wire.proto", tmp_path)
