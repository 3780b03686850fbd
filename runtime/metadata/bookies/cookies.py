"""Cookies: proof that directories belong to a bookie of one cluster. Source: metadata section 7.

The same bytes are in the node ``cookies/<bookie id>`` and in the VERSION file of every directory.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TypeAlias

import msgspec

from bkctl.runtime.errors import (
    BadVersionError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.ledger.protobuf_text import Field, format_fields, parse_fields
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.store import (
    DeleteNode,
    MetadataStore,
    Node,
    NodeStat,
    Versioned,
    children_of,
    decode_node,
)

LAYOUT_VERSION = 5
"""The layout that Java 4.16 and later and bkctl write."""
LAYOUT_VERSION_MIN = 3
_LAYOUT_VERSION_TEXT = 4
_HOLD = "delete"
"""The child of a cookie that is about to be deleted."""
_LAYOUT_VERSION = re.compile(r"[0-9]{1,9}\r?")


class FieldDifference(msgspec.Struct, frozen=True):
    """A field in which two cookies differ. Directory lists are tuples; ``instanceId`` None: the cookie has none."""

    field: str
    own: str | tuple[str, ...] | None
    other: str | tuple[str, ...] | None


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """Owner of the directories. Directory names are the configured strings, unresolved and without ``current``.

    ``index_directories`` None: not configured; the ledger directories are used. ``instance_id`` None: the cluster has
    none.
    """

    bookie_id: str
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[str, ...]
    index_directories: tuple[str, ...] | None = None
    instance_id: str | None = None
    layout_version: int = LAYOUT_VERSION

    def differences(self, stored: Cookie) -> tuple[FieldDifference, ...]:
        """All differences between a stored cookie and this one, in the order of the fields (metadata section 7.2).

        Order and number of directories matter; the layout version does not.
        """
        own, other = self.fields(), stored.fields()
        return tuple(FieldDifference(name, own[name], other[name]) for name in own if own[name] != other[name])

    def fields(self) -> dict[str, str | tuple[str, ...] | None]:
        """The compared fields, by their names in the format. ``indexDirs`` defaults to the ledger directories."""
        return {
            "bookieHost": self.bookie_id,
            "journalDir": self.journal_directories,
            "ledgerDirs": self.ledger_directories,
            "indexDirs": self.effective_index_directories,
            "instanceId": self.instance_id or None,
        }

    def is_superset_of(self, stored: Cookie) -> bool:
        """Whether this is the stored cookie plus more ledger and index directories, as after an expansion."""
        return {difference.field for difference in self.differences(stored)} <= {"ledgerDirs", "indexDirs"} and (
            set(self.ledger_directories) >= set(stored.ledger_directories)
            and set(self.effective_index_directories) >= set(stored.effective_index_directories)
        )

    @property
    def effective_index_directories(self) -> tuple[str, ...]:
        """Index directories; the ledger directories unless configured separately."""
        return self.ledger_directories if self.index_directories is None else self.index_directories

    @property
    def index_pairs(self) -> list[tuple[str, str]]:
        """Each ledger directory with each directory that may hold its index: one, or all of them in the setups of Java
        that do not pair them."""
        ledgers, indexes = self.ledger_directories, self.effective_index_directories
        is_paired = len(ledgers) == len(indexes)
        return list(zip(ledgers, indexes, strict=True) if is_paired else itertools.product(ledgers, indexes))


def encode_cookie(cookie: Cookie) -> bytes:
    """Bytes as Java 4.16 and later writes them: always in the current layout."""
    fields: list[Field] = [
        ("bookieHost", cookie.bookie_id),
        ("journalDir", ",".join(cookie.journal_directories)),
        ("ledgerDirs", _format_directories(cookie.ledger_directories)),
    ]
    if cookie.instance_id:
        fields.append(("instanceId", cookie.instance_id))
    if cookie.index_directories is not None:
        fields.append(("indexDirs", _format_directories(cookie.index_directories)))
    return f"{LAYOUT_VERSION}\n{format_fields(fields)}".encode("ascii")


def decode_cookie(data: bytes) -> Cookie:
    """Cookie of layout 3, 4 or 5; MetadataFormatError if invalid. Layouts above 5 are read like 5, as in Java."""
    try:
        first_line, _, rest = data.decode().partition("\n")
    except UnicodeDecodeError as error:
        raise MetadataFormatError("cookie: not UTF-8") from error
    if _LAYOUT_VERSION.fullmatch(first_line) is None:
        raise MetadataFormatError("cookie: the first line is not a layout version")
    layout_version = int(first_line)
    if layout_version < LAYOUT_VERSION_MIN:
        raise MetadataFormatError(f"cookie: layout version {layout_version} is too old")
    if layout_version >= _LAYOUT_VERSION_TEXT:
        return _decode_text(rest, layout_version)
    lines = [line.removesuffix("\r") for line in rest.split("\n")]
    if len(lines) < 3 or not lines[2]:
        raise MetadataFormatError("cookie: a line is missing")
    return Cookie(
        bookie_id=lines[0],
        journal_directories=tuple(lines[1].split(",")),
        ledger_directories=_parse_directories(lines[2]),
        layout_version=layout_version,
    )


def _decode_text(text: str, layout_version: int) -> Cookie:
    from bkctl.runtime.metadata.metadata_nodes_pb2 import CookieRecord  # noqa: PLC0415  listing bookies needs no protobuf

    record = parse_fields(text, CookieRecord(), "cookie")
    for name in ("bookieHost", "journalDir", "ledgerDirs"):
        if not record.HasField(name):
            raise MetadataFormatError(f"cookie: {name} is missing")
    return Cookie(
        bookie_id=record.bookieHost,
        journal_directories=tuple(record.journalDir.split(",")),
        ledger_directories=_parse_directories(record.ledgerDirs),
        index_directories=_parse_directories(record.indexDirs) if record.indexDirs.strip() else None,
        instance_id=record.instanceId or None,
        layout_version=layout_version,
    )


def _format_directories(directories: tuple[str, ...]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _parse_directories(text: str) -> tuple[str, ...]:
    """The names after the count. No bookie writes a wrong count, so this is damage."""
    count, _, names = text.partition("\t")
    directories = tuple(names.split("\t"))
    if count != str(len(directories)):
        raise MetadataFormatError(f"cookie: {text!r} is not a list of directories")
    return directories


CookieVersion: TypeAlias = NodeStat | Versioned[Cookie]
"""Which cookie of a bookie was read: version and creation time of its node."""


class CookieStore:
    """Cookies of one cluster."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._paths = Paths(root)

    def path(self, bookie_id: str) -> str:
        """Node of a bookie's cookie."""
        return self._paths.cookie(bookie_id)

    async def find(self, bookie_id: str) -> Versioned[Cookie] | None:
        """Cookie and its version, None when the bookie has none; MetadataFormatError."""
        with contextlib.suppress(NoNodeError):
            return await self.read(bookie_id)
        return None

    async def read(self, bookie_id: str) -> Versioned[Cookie]:
        """Cookie and its version; NoNodeError, MetadataFormatError."""
        node = await self.read_node(bookie_id)
        return Versioned(decode_node(self.path(bookie_id), node, decode_cookie), node.stat.version, node.stat.ctime_ms)

    async def read_node(self, bookie_id: str) -> Node:
        """The raw bytes, whether they are a valid cookie or not; NoNodeError."""
        return await self._store.get(self._paths.cookie(bookie_id))

    async def create(self, cookie: Cookie) -> Versioned[Cookie]:
        """Store the cookie of a new bookie; NodeExistsError when it has one."""
        await self.create_node(cookie.bookie_id, encode_cookie(cookie))
        return Versioned(cookie, 0)

    async def create_node(self, bookie_id: str, data: bytes) -> None:
        """Store raw bytes as the cookie of a bookie; NodeExistsError when it has one."""
        assert is_valid_bookie_id(bookie_id), "an invalid name among the cookies breaks Java tools"
        await self._store.create(self._paths.cookie(bookie_id), data, make_parents=True)

    async def write(self, cookie: Cookie, expected_version: int) -> Versioned[Cookie]:
        """Replace a cookie; BadVersionError, NoNodeError."""
        return Versioned(cookie, await self.write_node(cookie.bookie_id, encode_cookie(cookie), expected_version))

    async def write_node(self, bookie_id: str, data: bytes, expected_version: int) -> int:
        """Replace a cookie by raw bytes; return the new version. BadVersionError, NoNodeError."""
        return (await self._store.set(self._paths.cookie(bookie_id), data, expected_version)).version

    async def delete(self, bookie_id: str, found: CookieVersion) -> None:
        """Delete this cookie of a bookie; BadVersionError, NoNodeError.

        One that was deleted and created again has the same version. So a child, which prevents a deletion, holds the
        cookie while its creation time is read, and goes in one transaction with it.
        """
        path = self._paths.cookie(bookie_id)
        hold = f"{path}/{_HOLD}"
        try:
            await self._store.create(hold, is_ephemeral=True)
        except NodeExistsError:  # also after an attempt whose answer was lost
            stat = await self._store.exists(hold)
            if stat is None or stat.ephemeral_owner != self._store.session_id:
                raise BadVersionError(f"{path}: another process is about to delete it", path) from None
        try:
            await self._delete_held(path, hold, found)
        except MetadataUnavailableError:
            raise  # it goes with the session
        except BaseException:
            with contextlib.suppress(MetadataError):
                await self._store.delete(hold)
            raise

    async def _delete_held(self, path: str, hold: str, found: CookieVersion) -> None:
        stat = await self._store.exists(path)
        if stat is None or stat.ctime_ms != found.ctime_ms:
            raise BadVersionError(f"{path}: it was deleted and created again", path)
        try:
            await self._store.write_all([DeleteNode(hold), DeleteNode(path, found.version)])
        except NoNodeError as error:
            raise BadVersionError(f"{path}: the session that held it has ended", path) from error

    async def ids(self) -> list[str]:
        """Ids of all bookies with a cookie, sorted; none when the directory is missing."""
        return await children_of(self._store, self._paths.cookies)
