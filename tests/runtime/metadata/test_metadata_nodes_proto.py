from __future__ import annotations

from pathlib import Path

from tests.runtime.generated import assert_generated_code_is_current


def test_generated_code_is_current(tmp_path: Path) -> None:
    assert_generated_code_is_current("runtime/metadata/metadata_nodes.proto", tmp_path)
