"""Nodes and byte vectors written by Java, for the tests of the metadata formats."""

from __future__ import annotations

import json
from pathlib import Path

_DIRECTORY = Path(__file__).parent.parent / "golden" / "metadata"


def java_vectors() -> dict[str, bytes]:
    """Name of each vector and its bytes."""
    vectors = json.loads((_DIRECTORY / "vectors.json").read_text())["vectors"]
    return {vector["name"]: bytes.fromhex(vector["hex"]) for vector in vectors}


def java_nodes(fragment: str) -> list[tuple[str, bytes]]:
    """Path and data of every node whose path contains ``fragment``, all stages after one another."""
    stages = json.loads((_DIRECTORY / "nodes.json").read_text())["stages"]
    nodes = [(node["path"], bytes.fromhex(node["data"])) for stage in stages.values() for node in stage]
    return [(path, data) for path, data in nodes if fragment in path]
