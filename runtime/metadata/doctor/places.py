"""Purpose of each path in a cluster's metadata. Source: metadata sections 1, 4.1, 10.2, 11 and 12. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable

import msgspec

from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.paths import (
    AVAILABLE,
    COOKIES,
    HIGH_ORDER_PREFIX,
    ID_PREFIX,
    INSTANCE_ID,
    LAYOUT,
    PULSAR_AUDITOR,
    READ_ONLY,
)
from bkctl.runtime.metadata.replication.format import parse_group_name, parse_mark_name, parse_vote_name
from bkctl.runtime.metadata.replication.switches import PeriodicCheck

FORBIDDEN_LEDGER_ID = 2**63 - 1

LEDGER_LIKE = re.compile(r"(?:\d+/)*L\d+", re.ASCII)
_DIGITS = re.compile(r"\d+(?:/\d+)*", re.ASCII)
_HIGH_ORDER_NAME = re.compile(rf"{HIGH_ORDER_PREFIX}(\d{{1,19}})", re.ASCII)
_ID_NAME = re.compile(rf"{ID_PREFIX}(-?\d{{1,10}})", re.ASCII)
_MARK_GROUPS = 4


class Kind(enum.Enum):
    """Purpose of a node; the value is its name in a report."""

    ROOT = "root"
    INSTANCE_ID = "instance_id"
    LAYOUT = "layout"
    DIRECTORY = "directories"
    WRITABLE_BOOKIE = "writable_bookies"
    READ_ONLY_BOOKIE = "read_only_bookies"
    COOKIE = "cookies"
    ID_DIRECTORY = "id_directories"
    ID_NODE = "id_nodes"
    LEDGER_DIRECTORY = "ledger_directories"
    LEDGER = "ledgers"
    FORBIDDEN_LEDGER = "forbidden_ledgers"
    MISPLACED_LEDGER = "misplaced_ledgers"
    STRAY_IN_LEDGERS = "strays_among_ledgers"
    MARK_DIRECTORY = "mark_directories"
    MARK = "marks"
    LOCK = "locks"
    ELECTION = "election"
    VOTE = "votes"
    PULSAR_AUDITOR = "pulsar_auditors"
    SWITCH = "switches"
    STRAY = "strays"
    STRAY_AT_ROOT = "strays_at_root"
    STRAY_VOTE = "strays_among_votes"


class Place(msgspec.Struct, frozen=True, gc=False):
    """A path below the ledgers root. ``number``: ledger id, number of a vote or of a high half; None if it has none."""

    path: str
    kind: Kind
    number: int | None = None

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


def place_of(path: str, tree: LedgerTree) -> Place:
    """Purpose of the node at ``path`` below the root; the root itself is the empty path."""
    first, _, rest = path.partition("/")
    if not rest and first in _AT_ROOT:
        return Place(path, _AT_ROOT[first])
    if first in _BELOW:
        return _BELOW[first](path, rest)
    if first in _AT_ROOT:
        return Place(path, Kind.STRAY)
    return _id_place(path, path) if first.startswith(ID_PREFIX) else _ledger_place(path, tree)


def is_below_stray(path: str, tree: LedgerTree) -> bool:
    """Whether the node is below an unknown one, which is reported instead of it.

    Never true for ledgers, wherever they are.
    """
    parent = path.rpartition("/")[0]
    return place_of(parent, tree).kind in _STRAYS and not (_DIGITS.fullmatch(path) or LEDGER_LIKE.fullmatch(path))


_STRAYS = {Kind.STRAY, Kind.STRAY_AT_ROOT, Kind.STRAY_IN_LEDGERS, Kind.STRAY_VOTE}
_AT_ROOT = {
    "": Kind.ROOT,
    INSTANCE_ID: Kind.INSTANCE_ID,
    LAYOUT: Kind.LAYOUT,
    AVAILABLE: Kind.DIRECTORY,
    COOKIES: Kind.DIRECTORY,
    "idgen": Kind.ID_DIRECTORY,
    "idgen-long": Kind.DIRECTORY,
    "underreplication": Kind.DIRECTORY,
    "disableHealthCheck": Kind.SWITCH,
}


def _bookie_place(path: str, rest: str) -> Place:
    name, _, below = rest.partition("/")
    if name != READ_ONLY:
        return Place(path, Kind.STRAY if below else Kind.WRITABLE_BOOKIE)
    if not below:
        return Place(path, Kind.DIRECTORY)
    return Place(path, Kind.STRAY if "/" in below else Kind.READ_ONLY_BOOKIE)


def _id_place(path: str, rest: str) -> Place:
    found = _ID_NAME.fullmatch(rest)
    return Place(path, Kind.ID_NODE, int(found[1])) if found else Place(path, Kind.STRAY)


def _long_id_place(path: str, rest: str) -> Place:
    name, _, below = rest.partition("/")
    found = _HIGH_ORDER_NAME.fullmatch(name)
    if below and found:
        return _id_place(path, below)
    return Place(path, Kind.ID_DIRECTORY, int(found[1])) if found else Place(path, Kind.STRAY)


_UNDER_REPLICATION = {
    LAYOUT: Kind.SWITCH,
    "ledgers": Kind.DIRECTORY,
    "locks": Kind.DIRECTORY,
    "disable": Kind.SWITCH,
    "lostBookieRecoveryDelay": Kind.SWITCH,
    "auditorelection": Kind.ELECTION,
    PULSAR_AUDITOR: Kind.PULSAR_AUDITOR,
    **{check.value: Kind.SWITCH for check in PeriodicCheck},
}


def _under_replication_place(path: str, rest: str) -> Place:
    name, _, below = rest.partition("/")
    if not below:
        return Place(path, _UNDER_REPLICATION.get(name, Kind.STRAY))
    match name:
        case "ledgers":
            return _mark_place(path, below.split("/"))
        case "locks":
            ledger_id = parse_mark_name(below)
            return Place(path, Kind.STRAY if ledger_id is None else Kind.LOCK, ledger_id)
        case "auditorelection":
            number = parse_vote_name(below)
            return Place(path, Kind.STRAY_VOTE if number is None else Kind.VOTE, number)
    return Place(path, Kind.STRAY)


def _mark_place(path: str, parts: list[str]) -> Place:
    groups, below = parts[:_MARK_GROUPS], parts[_MARK_GROUPS:]
    if None in map(parse_group_name, groups):
        return Place(path, Kind.STRAY)
    if not below:
        return Place(path, Kind.MARK_DIRECTORY)
    ledger_id = parse_mark_name(below[0]) if len(below) == 1 else None
    return Place(path, Kind.MARK, ledger_id) if ledger_id == int("".join(groups), 16) else Place(path, Kind.STRAY)


def _cookie_place(path: str, rest: str) -> Place:
    return Place(path, Kind.STRAY if "/" in rest else Kind.COOKIE)


_BELOW: dict[str, Callable[[str, str], Place]] = {
    AVAILABLE: _bookie_place,
    COOKIES: _cookie_place,
    "idgen": _id_place,
    "idgen-long": _long_id_place,
    "underreplication": _under_replication_place,
}


def _ledger_place(path: str, tree: LedgerTree) -> Place:
    if LEDGER_LIKE.fullmatch(path):
        ledger_id = tree.parse_ledger_path(path)
        if ledger_id is not None:
            return Place(path, Kind.LEDGER, ledger_id)
        # Java reads an id from all digits of the path, however they are grouped.
        spelled_id = int(path.replace("/", "").replace("L", "")[-_DIGITS_READ_MAX:])
        is_forbidden = spelled_id == FORBIDDEN_LEDGER_ID
        return Place(path, Kind.FORBIDDEN_LEDGER if is_forbidden else Kind.MISPLACED_LEDGER, spelled_id)
    levels = path.split("/")
    if _DIGITS.fullmatch(path) and any(_fits(levels, widths) for widths in tree.level_digits):
        return Place(path, Kind.LEDGER_DIRECTORY)
    return Place(path, Kind.STRAY_IN_LEDGERS if len(levels) > 1 else Kind.STRAY_AT_ROOT)


_DIGITS_READ_MAX = 100
"""Far more than any id has; Python refuses to parse numbers of thousands of digits."""


def _fits(levels: list[str], widths: tuple[int, ...]) -> bool:
    return len(levels) <= len(widths) and all(len(name) == width for name, width in zip(levels, widths, strict=False))
