"""Cookies: proof that folders belong to a bookie of one cluster. Source: metadata section 7.

The same bytes lie in the node ``cookies/<bookie id>`` and in the VERSION file of every folder.
"""

from __future__ import annotations

import contextlib

import msgspec

from runtime.errors import MetadataFormatError, NoNodeError
from runtime.ledger.bookie_id import is_valid_bookie_id
from runtime.ledger.protobuf_text import Field, format_fields, parse_fields
from runtime.metadata.paths import Paths
from runtime.metadata.store import MetadataStore, Versioned

LAYOUT_VERSION = 5
"""Written by Java since 4.16 and by us."""
LAYOUT_VERSION_MIN = 3
_LAYOUT_VERSION_TEXT = 4


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the folders. Directory names are the configured strings, unresolved and without ``current``.

    ``index_directories`` None: not configured, they are the ledger directories. ``instance_id`` None: the cluster has
    none.
    """

    bookie_id: str
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[str, ...]
    index_directories: tuple[str, ...] | None = None
    instance_id: str | None = None
    layout_version: int = LAYOUT_VERSION

    def difference(self, stored: Cookie) -> str | None:
        """The first thing in which a stored cookie contradicts this one, as a sentence; None if they agree.

        Order and number of folders matter; the layout version does not.
        """
        own_index, stored_index = self.effective_index_directories, stored.effective_index_directories
        for what, own, other in (
            ("bookie id", self.bookie_id, stored.bookie_id),
            ("journal directories", ",".join(self.journal_directories), ",".join(stored.journal_directories)),
            ("ledger directories", ",".join(self.ledger_directories), ",".join(stored.ledger_directories)),
            ("index directories", ",".join(own_index), ",".join(stored_index)),
            ("instance id", self.instance_id or "none", stored.instance_id or "none"),
        ):
            if own != other:
                return f"{what}: {other} in the cookie, {own} here"
        return None

    @property
    def effective_index_directories(self) -> tuple[str, ...]:
        """Index directories, which are the ledger directories unless configured apart."""
        return self.ledger_directories if self.index_directories is None else self.index_directories


def encode_cookie(cookie: Cookie) -> bytes:
    """Bytes as Java 4.16 and later writes them: always the current layout."""
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
    """Cookie of layout 3, 4 or 5; MetadataFormatError says why it is none."""
    try:
        first_line, _, rest = data.decode().partition("\n")
    except UnicodeDecodeError as error:
        raise MetadataFormatError("cookie: not UTF-8") from error
    if not first_line.strip().isdecimal():
        raise MetadataFormatError("cookie: the first line is no layout version")
    layout_version = int(first_line)
    if not LAYOUT_VERSION_MIN <= layout_version <= LAYOUT_VERSION:
        raise MetadataFormatError(f"cookie: layout version {layout_version} is not supported")
    if layout_version >= _LAYOUT_VERSION_TEXT:
        return _decode_text(rest, layout_version)
    lines = rest.splitlines()
    if len(lines) < 3:
        raise MetadataFormatError("cookie: a line is missing")
    return Cookie(
        bookie_id=lines[0],
        journal_directories=tuple(lines[1].split(",")),
        ledger_directories=_parse_directories(lines[2]),
        layout_version=layout_version,
    )


def _decode_text(text: str, layout_version: int) -> Cookie:
    from runtime.metadata.metadata_nodes_pb2 import CookieRecord  # noqa: PLC0415  listing bookies needs no protobuf

    record = parse_fields(text, CookieRecord(), "cookie")
    for name in ("bookieHost", "journalDir", "ledgerDirs"):
        if not record.HasField(name):
            raise MetadataFormatError(f"cookie: {name} is missing")
    return Cookie(
        bookie_id=record.bookieHost,
        journal_directories=tuple(record.journalDir.split(",")),
        ledger_directories=_parse_directories(record.ledgerDirs),
        index_directories=_parse_directories(record.indexDirs) if record.HasField("indexDirs") else None,
        instance_id=record.instanceId or None,
        layout_version=layout_version,
    )


def _format_directories(directories: tuple[str, ...]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _parse_directories(text: str) -> tuple[str, ...]:
    """Everything behind the first tab, split at tabs; the count before it is not checked, as in Java."""
    return tuple(text.partition("\t")[2].split("\t"))


class CookieStore:
    """Cookies of one cluster."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._paths = Paths(root)

    async def find(self, bookie_id: str) -> Versioned[Cookie] | None:
        """Cookie and its version, None when the bookie has none; MetadataFormatError."""
        try:
            return await self.read(bookie_id)
        except NoNodeError:
            return None

    async def read(self, bookie_id: str) -> Versioned[Cookie]:
        """Cookie and its version; NoNodeError, MetadataFormatError."""
        path = self._paths.cookie(bookie_id)
        node = await self._store.get(path)
        try:
            return Versioned(decode_cookie(node.data), node.stat.version)
        except MetadataFormatError as error:
            raise MetadataFormatError(f"{path}: {error}", path) from error

    async def create(self, cookie: Cookie) -> Versioned[Cookie]:
        """Store the cookie of a new bookie; NodeExistsError when it has one."""
        assert is_valid_bookie_id(cookie.bookie_id), "an invalid name among the cookies breaks Java tools"
        await self._store.create(self._paths.cookie(cookie.bookie_id), encode_cookie(cookie), make_parents=True)
        return Versioned(cookie, 0)

    async def write(self, cookie: Cookie, expected_version: int) -> Versioned[Cookie]:
        """Replace a cookie; BadVersionError, NoNodeError."""
        path = self._paths.cookie(cookie.bookie_id)
        stat = await self._store.set(path, encode_cookie(cookie), expected_version)
        return Versioned(cookie, stat.version)

    async def delete(self, bookie_id: str, expected_version: int) -> None:
        """Forget the bookie; BadVersionError, NoNodeError."""
        await self._store.delete(self._paths.cookie(bookie_id), expected_version)

    async def ids(self) -> list[str]:
        """Ids of all bookies with a cookie, sorted; none when the directory is missing."""
        with contextlib.suppress(NoNodeError):
            return await self._store.children(self._paths.cookies)
        return []
