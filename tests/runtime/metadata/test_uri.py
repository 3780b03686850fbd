"""Every row and rule of metadata sections 2.2 and 2.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.hosts import collect_hosts

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.uri import MetadataUri, legacy_metadata_uri, parse_metadata_uri

HIERARCHICAL, LONG, FLAT = LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL, LedgerTree.FLAT


@pytest.mark.parametrize(
    ("text", "servers", "root", "tree"),
    [
        ("zk+hierarchical://h1:2181;h2:2181/ledgers", "h1:2181,h2:2181", "/ledgers", HIERARCHICAL),
        ("zk+longhierarchical://h1,h2/ledgers", "h1,h2", "/ledgers", LONG),
        ("zk+hierarchical://h1:2181,h2:2182;h3/ledgers", "h1:2181,h2:2182,h3", "/ledgers", HIERARCHICAL),
        ("zk://h1/a/ledgers", "h1", "/a/ledgers", None),
        ("zk+null://h1/a/ledgers", "h1", "/a/ledgers", None),
        ("zk+null://h1:2181/chroot/ledgers", "h1:2181", "/chroot/ledgers", None),
        ("zk+://h1/ledgers", "h1", "/ledgers", None),
        ("ZK+Flat://h1:2181/x", "h1:2181", "/x", FLAT),
        ("Zk+LONGhierarchical://H1:2181/Ledgers", "H1:2181", "/Ledgers", LONG),
        ("zk+flat+tls+more://h/x", "h", "/x", FLAT),
        ("zk://zk_1.example_net:2181;zk_2/x", "zk_1.example_net:2181,zk_2", "/x", None),
        ("zk+hierarchical://h/x%20y?q=1#f", "h", "/x y", HIERARCHICAL),
        ("zk://h/x#f?q", "h", "/x", None),
        ("zk://h/%6Cedgers%2Fa", "h", "/ledgers/a", None),
        ("zk://h/%C3%BCber", "h", "/\u00fcber", None),
        ("zk://h/\u00fcber", "h", "/\u00fcber", None),
        ("zk://h/a+b;c,d", "h", "/a+b;c,d", None),
        ("zk://[::1]:2181/x", "[::1]:2181", "/x", None),
        ("zk://[2001:db8::7]:2181;[::1]/x", "[2001:db8::7]:2181,[::1]", "/x", None),
        (" zk://h/x\n", "h", "/x", None),
    ],
)
def test_as_java_reads_it(text: str, servers: str, root: str, tree: LedgerTree | None) -> None:
    uri = parse_metadata_uri(text)
    assert uri == MetadataUri(servers=servers, root=root, tree=tree)
    assert parse_metadata_uri(str(uri)) == uri
    assert "," not in str(uri).partition("://")[2].partition("/")[0], "a properties file would cut it there"


@pytest.mark.parametrize(
    ("text", "servers", "root"),
    [
        ("metadata-store:zk:h1:2181", "h1:2181", "/ledgers"),
        ("metadata-store:zk:h1:2181/", "h1:2181", "/ledgers"),
        ("metadata-store:zk:h1:2181/chroot", "h1:2181", "/chroot/ledgers"),
        ("metadata-store:zk:h1:2181,h2:2182,h3/a/b", "h1:2181,h2:2182,h3", "/a/b/ledgers"),
        ("metadata-store:zk:h1:2181;h2:2182/a", "h1:2181,h2:2182", "/a/ledgers"),
        ("metadata-store:zk:h1:2181/ledgers", "h1:2181", "/ledgers/ledgers"),
        ("metadata-store:h1:2181,h2/a", "h1:2181,h2", "/a/ledgers"),
        ("metadata-store:zk:h1/a?sessionTimeout=30000", "h1", "/a/ledgers"),
        ("Metadata-Store:ZK:h1/a%20b", "h1", "/a%20b/ledgers"),
        ("metadata-store:zk:[::1]:2181/x", "[::1]:2181", "/x/ledgers"),
    ],
)
def test_the_path_of_a_pulsar_uri_is_a_chroot_with_ledgers_below_it(text: str, servers: str, root: str) -> None:
    uri = parse_metadata_uri(text)
    assert uri == MetadataUri(servers=servers, root=root, tree=HIERARCHICAL)
    assert parse_metadata_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("servers", "hosts"),
    [
        ("h1", [("h1", 2181)]),
        ("zk_1:2182,h2", [("zk_1", 2182), ("h2", 2181)]),
        ("[2001:db8::7]:2183,[::1]", [("2001:db8::7", 2183), ("::1", 2181)]),
    ],
)
def test_the_client_understands_every_form_of_server(servers: str, hosts: list[tuple[str, int]]) -> None:
    assert collect_hosts(servers) == (hosts, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not start with zk: write zk"),
        ("localhost:2181", "does not start with zk: write zk"),
        ("/ledgers", "does not start with zk"),
        ('"zk://h/ledgers"', 'URI "zk://h/ledgers" has quotes: remove the quotes'),
        ("'metadata-store:zk:h'", "has quotes: remove the quotes"),
        ('zk+null://"h1:2181"/ledgers', "has quotes: remove the quotes"),
        ("etcd://h/x", "does not support the backend 'etcd'"),
        ("metadata-store:oxia://h1:6648/bookkeeper", "the metadata is in 'oxia'"),
        ("metadata-store:etcd:http://h1:2379", "the metadata is in 'etcd'"),
        ("metadata-store:rocksdb:///data", "the metadata is in 'rocksdb'"),
        ("metadata-store:", "has no ZooKeeper server: write metadata-store:zk:"),
        ("metadata-store:zk:", "has no ZooKeeper server: write metadata-store:zk:"),
        ("metadata-store:zk:;,/x", "has no ZooKeeper server"),
        ("metadata-store:zk:h1:2181#", "has '#' in the name of a server"),
        ("metadata-store:zk://h1:2181/x", "has no ZooKeeper server"),
        ("metadata-store:zk:h1/x/", "'/x/' is no ZooKeeper path"),
        ("metadata-store:zk:h1//x", "'//x' is no ZooKeeper path"),
        ("metadata-store:zookeeper://h1/x", "'//h1/x' is no ZooKeeper path"),
        ("metadata-store:zk:h1/a/../b", "is no ZooKeeper path"),
        ("oxia://h1:6648/bookkeeper", "the backend 'oxia'"),
        ("zookeeper://h/x", "the backend 'zookeeper'"),
        ("zk+legacyhierarchical://h/x", "is not a ledger layout in a URI; write zk"),
        ("zk+ms://h/x", "'ms' is not a ledger layout"),
        ("zk++flat://h/x", "'' is not a ledger layout"),
        ("zk:h1/ledgers", "has no ZooKeeper server"),
        ("zk:/ledgers", "has no ZooKeeper server"),
        ("zk:///x", "has no ZooKeeper server"),
        ("zk://;,/x", "has no ZooKeeper server"),
        ("zk://?/x", "has no ZooKeeper server"),
        ("zk://h", "is not a ledgers root"),
        ("zk://h?q/x", "is not a ledgers root"),
        ("zk://h/", "is not a ledgers root"),
        ("zk://h/ledgers/", "'/ledgers/' is not a ledgers root because it ends with a slash"),
        ("zk://h/ledgers%2F", "ends with a slash"),
        ("zk://h//ledgers", "is not a ledgers root"),
        ("zk://h/a/../ledgers", "is not a ledgers root"),
        ("zk://h/a/./ledgers", "is not a ledgers root"),
        ("zk://h/a%00b", "is not a ledgers root"),
        ("zk://h/a b", "percent-encoded"),
        ("zk://h/100%", "percent-encoded"),
    ],
)
def test_one_sentence_for_nonsense(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as raised:
        parse_metadata_uri(text)
    assert "\n" not in str(raised.value)


@given(
    st.text(max_size=60)
    | st.from_regex(r"zk(\+[a-z]{0,5})?://[^/]{0,5}/.{0,9}", fullmatch=True)
    | st.from_regex(r"metadata-store:(zk:)?[^/]{0,5}(/.{0,9})?", fullmatch=True)
)
def test_any_text_is_read_back_or_refused(text: str) -> None:
    try:
        uri = parse_metadata_uri(text)
    except ConfigurationError:
        return
    assert parse_metadata_uri(str(uri)) == uri
    assert uri.root.startswith("/")


@pytest.mark.parametrize(
    ("servers", "root", "factory", "text"),
    [
        ("h1:2181", None, None, "zk+null://h1:2181/ledgers"),
        ("h1:2181,h2:2181", "/bk", None, "zk+null://h1:2181;h2:2181/bk"),
        ("h1:2181/chroot", None, None, "zk+null://h1:2181/chroot/ledgers"),
        ("h1,h2/a/b", "/c", "FlatLedgerManagerFactory", "zk+flat://h1;h2/a/b/c"),
        ("h1", None, "HierarchicalLedgerManagerFactory", "zk+hierarchical://h1/ledgers"),
        ("h1", None, "LongHierarchicalLedgerManagerFactory", "zk+longhierarchical://h1/ledgers"),
    ],
)
def test_the_old_settings(servers: str, root: str | None, factory: str | None, text: str) -> None:
    factory_class = None if factory is None else f"org.apache.bookkeeper.meta.{factory}"
    uri = legacy_metadata_uri(servers, root, factory_class)
    assert uri == text
    assert str(parse_metadata_uri(uri)) == text
    if factory_class is not None:
        assert legacy_metadata_uri(servers, root, f"dlshade.{factory_class}") == text


@pytest.mark.parametrize(
    "factory_class",
    [
        "org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory",
        "org.apache.bookkeeper.meta.MSLedgerManagerFactory",
        "FlatLedgerManagerFactory",
        "",
    ],
)
def test_classes_without_a_name_in_uris(factory_class: str) -> None:
    with pytest.raises(ConfigurationError, match="ledgerManagerFactoryClass"):
        legacy_metadata_uri("h1", None, factory_class)


@pytest.mark.parametrize(
    "text",
    [
        "zk+hierarchical://user:s3cret@h1:2181/ledgers",
        "zk://s3cret@h1/ledgers",
        "zk://h1:2181;user:s3cret@h2:2181/ledgers",
        "zk://user:s3cret/half@h1:2181/ledgers",
        "zk://user:s3cret#half@h1/ledgers",
        "zk://user:s3cret?half@h1",
        "user:s3cret@h1:2181",
        "ZK+nolayout://user:s3cret@h1/ledgers",
        "metadata-store:zk:user:s3cret@h1:2181/chroot",
        "metadata-store:zk:user:s3cret/half@h1:2181",
        "Metadata-Store:user:s3cret@h1",
        "metadata-store:etcd:http://user:s3cret@h1",
    ],
)
def test_a_password_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"zookeeper\.digest or zookeeper\.sasl") as raised:
        parse_metadata_uri(text)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("zk://h1:2181,[::1]:2181,h2/a@b/x", "/a@b/x"),
        ("metadata-store:zk:h1:2181,h2/a@b", "/a@b/ledgers"),
        ("metadata-store:h1/a@b", "/a@b/ledgers"),
    ],
)
def test_a_path_may_contain_the_sign(text: str, root: str) -> None:
    assert parse_metadata_uri(text).root == root
