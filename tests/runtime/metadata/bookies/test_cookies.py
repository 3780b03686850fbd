from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import BadVersionError, MetadataFormatError, NodeExistsError, NoNodeError
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore, FieldDifference, decode_cookie, encode_cookie
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.golden_metadata import java_nodes, java_vectors

COOKIE = Cookie(
    bookie_id="10.0.0.1:3181",
    journal_directories=("/data/j1", "/data/j2"),
    ledger_directories=("/data/l1", "/data/l2"),
    index_directories=("/data/i1",),
    instance_id="0b7e1a2c-1111-4222-8333-944455556666",
)


def test_the_bytes_of_java() -> None:
    assert encode_cookie(COOKIE) == java_vectors()["cookie"]
    assert decode_cookie(java_vectors()["cookie"]) == COOKIE


def test_nodes_of_java() -> None:
    nodes = java_nodes("/cookies/")
    assert len(nodes) == 7
    versions = set()
    for path, data in nodes:
        cookie = decode_cookie(data)
        versions.add(cookie.layout_version)
        assert cookie.bookie_id == path.rpartition("/")[2]
        if cookie.layout_version == 5:
            assert encode_cookie(cookie) == data
    assert versions == {4, 5}


def test_the_raw_lines_of_layout_3() -> None:
    cookie = decode_cookie(b"3\n10.0.0.1:3181\n/j\n2\t/a\t/b\n")
    assert cookie == Cookie(
        bookie_id="10.0.0.1:3181", journal_directories=("/j",), ledger_directories=("/a", "/b"), layout_version=3
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a layout version"),
        (b"x\n", "not a layout version"),
        (b"2\n", "version 2 is too old"),
        (b"9" * 5000 + b"\n", "not a layout version"),
        (b"3\na\nb\n", "a line is missing"),
        (b'5\nbookieHost: "a"\njournalDir: "j"\n', "ledgerDirs is missing"),
        (b"5\nbookieHost: a\n", "not the text"),
        (b"5\n\xff", "not UTF-8"),
        (b'5\nbookieHost: "a"\njournalDir: "j"\nledgerDirs: "2\\t/a"\n', "not a list of directories"),
        (b"3\na\nj\n/a\n", "not a list of directories"),
    ],
)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(MetadataFormatError, match=reason):
        decode_cookie(data)


@given(st.integers(0, len(encode_cookie(COOKIE)) - 1), st.integers(0, 255))
def test_any_change_of_a_byte_gives_a_cookie_or_a_format_error(position: int, byte: int) -> None:
    changed = bytearray(encode_cookie(COOKIE))
    changed[position] = byte
    try:
        cookie = decode_cookie(bytes(changed))
    except MetadataFormatError:
        return
    assert isinstance(cookie, Cookie)


def test_a_later_layout_is_read_like_5() -> None:
    later = b"6" + encode_cookie(COOKIE)[1:]
    assert decode_cookie(later) == msgspec.structs.replace(COOKIE, layout_version=6)


def test_blank_index_directories_are_none() -> None:
    data = encode_cookie(COOKIE).replace(b'"1\\t/data/i1"', b'""')
    assert decode_cookie(data).index_directories is None


@pytest.mark.parametrize(
    ("field", "value", "difference"),
    [
        ("bookie_id", "other:1", FieldDifference("bookieHost", "10.0.0.1:3181", "other:1")),
        (
            "journal_directories",
            ("/data/j2", "/data/j1"),
            FieldDifference("journalDir", ("/data/j1", "/data/j2"), ("/data/j2", "/data/j1")),
        ),
        (
            "ledger_directories",
            ("/data/l1",),
            FieldDifference("ledgerDirs", ("/data/l1", "/data/l2"), ("/data/l1",)),
        ),
        ("index_directories", None, FieldDifference("indexDirs", ("/data/i1",), ("/data/l1", "/data/l2"))),
        ("instance_id", None, FieldDifference("instanceId", COOKIE.instance_id, None)),
    ],
)
def test_differences(field: str, value: object, difference: FieldDifference) -> None:
    stored: Cookie = msgspec.structs.replace(COOKIE, **{field: value})
    assert COOKIE.differences(stored) == (difference,)


def test_one_directory_whose_name_looks_like_a_list_is_not_that_list() -> None:
    one = msgspec.structs.replace(COOKIE, ledger_directories=("/data/l1,/data/l2",))
    assert [difference.field for difference in one.differences(COOKIE)] == ["ledgerDirs"]


@pytest.mark.parametrize(
    ("changes", "is_superset"),
    [
        ({}, True),
        ({"ledger_directories": ("/data/l3", "/data/l1", "/data/l2")}, True),
        ({"index_directories": ("/data/i1", "/data/i2")}, True),
        ({"ledger_directories": ("/data/l1", "/data/l3")}, False),
        ({"journal_directories": ("/data/j1", "/data/j2", "/data/j3")}, False),
        ({"bookie_id": "other:1", "ledger_directories": ("/data/l1", "/data/l2", "/data/l3")}, False),
        ({"instance_id": None}, False),
    ],
)
def test_superset(changes: dict[str, object], is_superset: bool) -> None:
    assert msgspec.structs.replace(COOKIE, **changes).is_superset_of(COOKIE) is is_superset


def test_what_makes_no_difference() -> None:
    assert not COOKIE.differences(msgspec.structs.replace(COOKIE, layout_version=4))
    without = msgspec.structs.replace(COOKIE, index_directories=None)
    explicit = msgspec.structs.replace(COOKIE, index_directories=COOKIE.ledger_directories)
    assert not without.differences(explicit)
    unnamed = msgspec.structs.replace(COOKIE, instance_id=None)
    assert not unnamed.differences(msgspec.structs.replace(COOKIE, instance_id=""))


async def test_the_store(store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    cookies = CookieStore(store, root)
    assert await cookies.ids() == []
    assert await cookies.find(COOKIE.bookie_id) is None
    with pytest.raises(NoNodeError):
        await cookies.read(COOKIE.bookie_id)
    created = await cookies.create(COOKIE)
    with pytest.raises(NodeExistsError):
        await cookies.create(COOKIE)
    before = await cookies.read(COOKIE.bookie_id)
    assert (before.value, before.version) == (created.value, created.version)
    changed = msgspec.structs.replace(COOKIE, instance_id=None)
    await cookies.write(changed, created.version)
    with pytest.raises(BadVersionError):
        await cookies.delete(COOKIE.bookie_id, before)
    assert (await cookies.read(COOKIE.bookie_id)).value == changed
    assert await cookies.ids() == [COOKIE.bookie_id]
    await cookies.delete(COOKIE.bookie_id, await cookies.read(COOKIE.bookie_id))
    assert await cookies.ids() == []


async def test_a_cookie_that_was_created_again_is_not_deleted(store: ZooKeeperStore, root: str) -> None:
    """It has the same version, and may have the same contents."""
    await store.create(root, make_parents=True)
    cookies = CookieStore(store, root)
    await cookies.create(COOKIE)
    before = await cookies.read(COOKIE.bookie_id)
    await store.delete(cookies.path(COOKIE.bookie_id))
    await asyncio.sleep(0.01)
    await cookies.create(COOKIE)
    again = await cookies.read(COOKIE.bookie_id)
    assert (again.value, again.version) == (before.value, before.version)
    with pytest.raises(BadVersionError, match="created again"):
        await cookies.delete(COOKIE.bookie_id, before)
    assert await store.children(cookies.path(COOKIE.bookie_id)) == []
    await cookies.delete(COOKIE.bookie_id, again)
    with pytest.raises(NoNodeError):
        await cookies.delete(COOKIE.bookie_id, again)


async def test_a_cookie_is_not_deleted_while_another_process_is_about_to(store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    cookies = CookieStore(store, root)
    await cookies.create(COOKIE)
    cookie = await cookies.read(COOKIE.bookie_id)
    hold = await store.create(f"{cookies.path(COOKIE.bookie_id)}/delete")
    with pytest.raises(BadVersionError, match="another process"):
        await cookies.delete(COOKIE.bookie_id, cookie)
    assert await store.children(cookies.path(COOKIE.bookie_id)) == [hold.rpartition("/")[2]]


async def test_a_damaged_cookie_names_its_node(store: ZooKeeperStore, root: str) -> None:
    await store.create(f"{root}/cookies/b:1", b"junk", make_parents=True)
    with pytest.raises(MetadataFormatError, match=f"{root}/cookies/b:1: cookie"):
        await CookieStore(store, root).find("b:1")
