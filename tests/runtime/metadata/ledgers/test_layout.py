from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import ConfigurationError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, choose_tree, decode_layout, encode_layout
from tests.runtime.golden_metadata import java_nodes

FLAT, LEGACY, HIERARCHICAL, LONG = (
    LedgerTree.FLAT,
    LedgerTree.LEGACY_HIERARCHICAL,
    LedgerTree.HIERARCHICAL,
    LedgerTree.LONG_HIERARCHICAL,
)


@pytest.mark.parametrize(
    ("ledger_id", "flat", "short", "hierarchical", "long"),
    [
        (0, "L0000000000", "00/0000/L0000", "00/0000/L0000", "000/0000/0000/0000/L0000"),
        (1, "L0000000001", "00/0000/L0001", "00/0000/L0001", "000/0000/0000/0000/L0001"),
        (123456789, "L0123456789", "01/2345/L6789", "01/2345/L6789", "000/0000/0001/2345/L6789"),
        (2147483646, "L2147483646", "21/4748/L3646", "21/4748/L3646", "000/0000/0021/4748/L3646"),
        (2147483647, "L2147483647", "21/4748/L3647", "000/0000/0021/4748/L3647", "000/0000/0021/4748/L3647"),
        (2147483648, "L2147483648", "21/4748/L3648", "000/0000/0021/4748/L3648", "000/0000/0021/4748/L3648"),
        (2**63 - 2, "L9223372036854775806", None, "922/3372/0368/5477/L5806", "922/3372/0368/5477/L5806"),
    ],
)
def test_paths_of_the_table(ledger_id: int, flat: str, short: str | None, hierarchical: str, long: str) -> None:
    assert FLAT.ledger_path(ledger_id) == flat
    assert HIERARCHICAL.ledger_path(ledger_id) == hierarchical
    assert LONG.ledger_path(ledger_id) == long
    if short is None:
        with pytest.raises(RefusedError, match="more digits"):
            LEGACY.ledger_path(ledger_id)
    else:
        assert LEGACY.ledger_path(ledger_id) == short


@given(st.sampled_from(LedgerTree), st.integers(0, 2**63 - 2))
def test_a_path_gives_its_id_back(tree: LedgerTree, ledger_id: int) -> None:
    ledger_id %= 10**10 if tree is LEGACY else 2**63
    assert tree.parse_ledger_path(tree.ledger_path(ledger_id)) == ledger_id


def test_nodes_of_java() -> None:
    trees = {"/ledgers/": HIERARCHICAL, "/lh/": LONG, "/flat/": FLAT, "/v14/": HIERARCHICAL}
    count = 0
    for root, tree in trees.items():
        for path, _ in java_nodes("/L"):
            name = path.rpartition("/")[2]
            if path.startswith(root) and name.startswith("L") and name != "LAYOUT":
                ledger_id = tree.parse_ledger_path(path.removeprefix(root))
                if path.endswith("/922/3372/0368/5477/L5807"):
                    assert ledger_id is None
                else:
                    assert ledger_id is not None
                    assert root + tree.ledger_path(ledger_id) == path
                    count += 1
    assert count > 30


@pytest.mark.parametrize("tree", LedgerTree)
@pytest.mark.parametrize("ledger_id", [2**63 - 1, 2**63, -1])
def test_ids_that_must_not_be(tree: LedgerTree, ledger_id: int) -> None:
    with pytest.raises(RefusedError, match=str(ledger_id)):
        tree.ledger_path(ledger_id)


@pytest.mark.parametrize(
    "path",
    ["922/3372/0368/5477/L5807", "99/9999/L9999", "00/0000/L00001", "00/0000/0000", "L0000000001", "00/000x/L0000", ""],
)
def test_what_is_no_ledger_of_the_hierarchical_layout(path: str) -> None:
    assert HIERARCHICAL.parse_ledger_path(path) is None


def test_layout_nodes_of_java() -> None:
    layouts = {path: data for path, data in java_nodes("/LAYOUT") if "underreplication" not in path}
    assert set(layouts) == {"/ledgers/LAYOUT", "/lh/LAYOUT", "/flat/LAYOUT", "/v14/LAYOUT"}
    assert decode_layout(layouts["/flat/LAYOUT"]).tree is FLAT
    for data in layouts.values():
        assert encode_layout(decode_layout(data)) == data


def test_the_old_form() -> None:
    assert decode_layout(b"1\nflat:1") == LedgerLayout(FLAT, format_version=1)
    assert decode_layout(b"1\nhierarchical:1\nmore") == LedgerLayout(HIERARCHICAL, format_version=1)


@pytest.mark.parametrize(
    "data", [b"", b"3\nflat:1", b"2\nflat:1", b"1\n" + FLAT.factory.encode() + b":1", b"1\nflat:2", b"1\nflat", b"\xff"]
)
def test_damaged_layouts(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="LAYOUT"):
        decode_layout(data)


@pytest.mark.parametrize(
    ("data", "tree"),
    [
        (HIERARCHICAL.factory, HIERARCHICAL),
        (LEGACY.factory, LEGACY),
        (LONG.factory, LONG),
        (FLAT.factory, FLAT),
    ],
)
def test_every_class_of_the_table(data: str, tree: LedgerTree) -> None:
    for text in (f"2\n{data}:1", f"2\n{data}:1\nmore\n", f"2\n{data}:1:", f"02\n{data}:+1"):
        assert decode_layout(text.encode()) == LedgerLayout(tree)
    shaded = f"2\ndlshade.{data}:1".encode()
    assert decode_layout(shaded, is_shaded_factory_allowed=True) == LedgerLayout(tree)
    with pytest.raises(MetadataFormatError, match="allow it with allowShadedLedgerManagerFactoryClass=true"):
        decode_layout(shaded)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"2\n{FLAT.factory}:2", "has version 2 .* only version 1 exists"),
        (f"2\n{FLAT.factory}:1:1", "cannot parse LAYOUT"),
        (f"2\n{FLAT.factory}:", "cannot parse LAYOUT"),
        (f"2\n{FLAT.factory}:one", "cannot parse LAYOUT"),
        (f"2\r\n{FLAT.factory}:1", "cannot parse LAYOUT"),
        (f"0\n{FLAT.factory}:1", "cannot parse LAYOUT"),
        ("1\nlonghierarchical:1", "does not support"),
        ("1\nlegacyhierarchical:1", "does not support"),
        ("2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1", "does not support"),
        ("2\norg.apache.bookkeeper.meta.hierarchicalLedgerManagerFactory:1", "does not support"),
        ("2\ndlshade.com.example.Other:1", "does not support"),
    ],
)
def test_layouts_that_no_reader_takes(text: str, reason: str) -> None:
    with pytest.raises(MetadataFormatError, match=reason):
        decode_layout(text.encode(), is_shaded_factory_allowed=True)


def test_the_old_settings_where_the_cluster_leaves_it_open() -> None:
    def typed(name: str) -> LayoutConfig:
        return LayoutConfig(ledger_manager_type=name)

    assert choose_tree(None, None, typed("flat")) is FLAT
    assert choose_tree(None, None, typed("longhierarchical")) is LONG
    assert choose_tree(None, HIERARCHICAL, typed("flat")) is HIERARCHICAL, "the URI goes first"
    assert choose_tree(LedgerLayout(LONG), None, typed("flat")) is LONG, "what is recorded goes before all"
    with pytest.raises(ConfigurationError, match="ledgerManagerType = legacyhierarchical: no such"):
        choose_tree(None, None, typed("legacyhierarchical"))
    old = LedgerLayout(FLAT, format_version=1)
    assert choose_tree(old, None, typed("flat")) is FLAT
    assert choose_tree(old, HIERARCHICAL, None) is FLAT, "Java does not hold the URI against the old form"
    with pytest.raises(ConfigurationError, match=r"ledgerManagerType is hierarchical, but .* created as flat"):
        choose_tree(old, None, typed("hierarchical"))


def test_a_legacy_cluster_has_no_name_in_uris() -> None:
    with pytest.raises(ConfigurationError, match=r"use zk\+null://"):
        choose_tree(LedgerLayout(LEGACY), HIERARCHICAL)


def test_the_uri_must_agree_with_the_cluster() -> None:
    assert choose_tree(None, None) is HIERARCHICAL
    assert choose_tree(None, LONG) is LONG
    assert choose_tree(LedgerLayout(FLAT), None) is FLAT
    assert choose_tree(LedgerLayout(FLAT), FLAT) is FLAT
    with pytest.raises(ConfigurationError, match="has longhierarchical, but the cluster was created as flat"):
        choose_tree(LedgerLayout(FLAT), LONG)
