from __future__ import annotations

import pytest

from runtime.errors import ConfigurationError
from runtime.metadata.layout import LedgerTree
from runtime.metadata.uri import MetadataUri, parse_metadata_uri


@pytest.mark.parametrize(
    ("text", "servers", "root", "tree"),
    [
        ("zk+hierarchical://h1:2181;h2:2181/ledgers", "h1:2181,h2:2181", "/ledgers", LedgerTree.HIERARCHICAL),
        ("zk+longhierarchical://h1,h2/ledgers", "h1,h2", "/ledgers", LedgerTree.LONG_HIERARCHICAL),
        ("zk://h1/a/ledgers", "h1", "/a/ledgers", None),
        ("zk+null://h1/a/ledgers", "h1", "/a/ledgers", None),
        ("ZK+Flat://h_1:2181/x", "h_1:2181", "/x", LedgerTree.FLAT),
        ("zk+hierarchical+tls://h/x%20y?q=1#f", "h", "/x y", LedgerTree.HIERARCHICAL),
        ("zk://[::1]:2181/x", "[::1]:2181", "/x", None),
    ],
)
def test_as_java_reads_it(text: str, servers: str, root: str, tree: LedgerTree | None) -> None:
    uri = parse_metadata_uri(text)
    assert uri == MetadataUri(servers=servers, root=root, tree=tree)
    assert parse_metadata_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not start with zk"),
        ("localhost:2181", "does not start with zk"),
        ("etcd://h/x", "does not start with zk"),
        ("zk+legacyhierarchical://h/x", "is no ledger layout"),
        ("zk+ms://h/x", "is no ledger layout"),
        ("zk:///x", "names no ZooKeeper server"),
        ("zk://h", "is no ledgers root"),
        ("zk://h/", "is no ledgers root"),
        ("zk://h/ledgers/", "is no ledgers root"),
        ("zk://h//ledgers", "is no ledgers root"),
    ],
)
def test_one_sentence_for_nonsense(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        parse_metadata_uri(text)
