"""A cluster's nodes in the shared ZooKeeper, held by a session of the test, and bkctl on them in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.main import main
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.processes import BkctlResult
from tests.runtime.metadata.bad_nodes import Nodes

Tree = dict[str, tuple[bytes, int, int]]


_CREATED_AT_ONCE = 500


class Planted:
    """One root; its ephemeral nodes live as long as the test."""

    def __init__(self, client: KazooClient, metadata_uri: str, run: Callable[..., BkctlResult]) -> None:
        self.client = client
        self.metadata_uri = metadata_uri
        self.root = parse_metadata_uri(metadata_uri).root
        self.run = run

    def put(self, nodes: Nodes) -> None:
        """Create the nodes, many in one request."""
        paths = sorted(nodes)
        for start in range(0, len(paths), _CREATED_AT_ONCE):
            transaction = self.client.transaction()
            for path in paths[start : start + _CREATED_AT_ONCE]:
                data, is_ephemeral = nodes[path]
                transaction.create(f"{self.root}/{path}" if path else self.root, data, ephemeral=is_ephemeral)
            for answer in transaction.commit():
                assert isinstance(answer, str), answer

    def tree(self) -> Tree:
        """Data, version and owner of every node, by path."""
        found: Tree = {}
        paths = [self.root]
        while paths:
            path = paths.pop()
            data, stat = self.client.get(path)
            found[path] = (data, stat.version, stat.ephemeralOwner)
            paths += [f"{path}/{name}" for name in self.client.get_children(path)]
        return found


@pytest.fixture
def planted(
    metadata_uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Planted]:
    """Nothing is there yet."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> BkctlResult:
        with monkeypatch.context() as patch:
            environment = {
                "PATH": "",
                "HOME": str(tmp_path),
                "BKCTL_METADATA_URI": metadata_uri,
                "BKCTL_OUTPUT": "json",
            }
            patch.setattr("os.environ", environment)
            code = main(arguments)
        captured = capfd.readouterr()
        return BkctlResult(code, captured.out, captured.err)

    client = KazooClient(parse_metadata_uri(metadata_uri).servers)
    client.start()
    try:
        yield Planted(client, metadata_uri, run)
    finally:
        client.stop()
        client.close()
