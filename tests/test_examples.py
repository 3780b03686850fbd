"""The files in docs/examples can be parsed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.test_repository import ROOT

EXAMPLES = Path(ROOT) / "docs" / "examples"


@pytest.mark.parametrize("name", sorted(str(each.relative_to(EXAMPLES)) for each in EXAMPLES.rglob("*.yml")))
def test_yaml_files_can_be_parsed(name: str) -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / name).read_text()))
    assert documents
    assert all(isinstance(each, dict) for each in documents)
