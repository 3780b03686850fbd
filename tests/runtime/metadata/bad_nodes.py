"""A sound cluster's nodes, and every kind of bad node that a running Java cluster was seen to fall into.

Paths are below the ledgers root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.ledger_metadata_pb2 import LedgerRecord
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.runtime.metadata.bookies.service_info import (
    BookieServiceInfo,
    Endpoint,
    encode_service_info,
    rpc_service_info,
)
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, encode_layout
from bkctl.runtime.metadata.replication.format import (
    UnderReplicationMark,
    encode_check_time,
    encode_lock,
    encode_mark,
    encode_vote,
)
from bkctl.runtime.metadata.replication.format import encode_layout as encode_replication_layout
from bkctl.runtime.metadata.store import MetadataStore

INSTANCE_ID = "0b7e1a2c-1111-4222-8333-944455556666"
BOOKIES = tuple(f"10.0.0.{number}:3181" for number in (1, 2, 3))
SPARE = "bookie-9.example.com:3181"
LEDGER = "00/0000/L0001"
MARK = "underreplication/ledgers/0000/0000/0000/0001/urL0000000001"
VOTE = "underreplication/auditorelection/V_0000000000"
FORBIDDEN = "922/3372/0368/5477/L5807"
CLOSED = to_closed(new_ledger(BOOKIES, 2, 2, DigestType.CRC32C, b"secret"), 9, 100)
MISSING = None

Nodes = dict[str, tuple[bytes, bool]]
"""Data and whether it is ephemeral, by path, parents first."""


class BadNode(NamedTuple):
    """What is changed in a sound cluster (None: deleted), and the rules that must tell of it.

    The node that ``path`` names is the one that must be told of.
    """

    name: str
    rules: frozenset[str]
    path: str
    changes: dict[str, bytes | None]
    ephemeral: frozenset[str] = frozenset()


def cookie(bookie_id: str, directory: str, instance_id: str | None = INSTANCE_ID) -> bytes:
    return encode_cookie(
        Cookie(
            bookie_id=bookie_id,
            journal_directories=(f"{directory}/journal",),
            ledger_directories=(f"{directory}/ledgers",),
            instance_id=instance_id,
        )
    )


def registration(bookie_id: str) -> bytes:
    host, _, port = bookie_id.partition(":")
    return encode_service_info(rpc_service_info(host, int(port)))


def sound_cluster() -> Nodes:
    """Three bookies and one without ledgers, two ledgers, an auditor at work, one ledger marked and under repair."""
    nodes: dict[str, bytes] = {
        "": b"",
        "INSTANCEID": INSTANCE_ID.encode(),
        "LAYOUT": encode_layout(LedgerLayout(LedgerTree.HIERARCHICAL)),
        "available": b"",
        "available/readonly": b"",
        "cookies": b"",
        "idgen": b"",
        "00": b"",
        "00/0000": b"",
        LEDGER: encode_ledger_metadata(CLOSED),
        "00/0000/L0002": encode_ledger_metadata(new_ledger(BOOKIES, 3, 2, DigestType.CRC32C, b"")),
        "underreplication": b"",
        "underreplication/LAYOUT": encode_replication_layout(),
        "underreplication/ledgers": b"",
        "underreplication/locks": b"",
        "underreplication/lostBookieRecoveryDelay": b"0",
        "underreplication/checkallledgersctime": encode_check_time(1700000000123),
        "underreplication/auditorelection": encode_vote(BOOKIES[0]),
        **dict.fromkeys(interior(MARK)[2:], b""),
        MARK: encode_mark(UnderReplicationMark((BOOKIES[0],), 1700000000123)),
    }
    nodes |= {f"cookies/{bookie_id}": cookie(bookie_id, "/data") for bookie_id in (*BOOKIES, SPARE)}
    writable = (*BOOKIES[:2], SPARE)  # as many as the ledgers need
    ephemeral = {f"available/{bookie_id}": registration(bookie_id) for bookie_id in writable}
    ephemeral[f"available/readonly/{BOOKIES[2]}"] = registration(BOOKIES[2])
    ephemeral["underreplication/locks/urL0000000001"] = encode_lock("worker.example.com")
    ephemeral[VOTE] = encode_vote(BOOKIES[0])
    return {path: (data, False) for path, data in nodes.items()} | {
        path: (data, True) for path, data in ephemeral.items()
    }


def interior(path: str) -> list[str]:
    """Paths of the nodes above, the highest first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def with_bad_node(nodes: Nodes, bad: BadNode) -> Nodes:
    """The nodes with the changes of a bad one, parents of new ones included."""
    changed = dict(nodes)
    for path, data in bad.changes.items():
        if data is None:
            changed = {name: node for name, node in changed.items() if name != path and not name.startswith(f"{path}/")}
            continue
        for parent in interior(path):
            changed.setdefault(parent, (b"", False))
        was_ephemeral = path in nodes and nodes[path][1]
        is_ephemeral = (was_ephemeral and path not in _MADE_PERSISTENT.get(bad.name, ())) or path in bad.ephemeral
        changed[path] = (data, is_ephemeral)
    return changed


async def put(store: MetadataStore, root: str, nodes: Nodes) -> None:
    """Create the nodes."""
    parent = root.rpartition("/")[0]
    if parent and await store.exists(parent) is None:
        await store.create(parent, make_parents=True)
    for path, (data, is_ephemeral) in sorted(nodes.items()):
        await store.create(f"{root}/{path}" if path else root, data, is_ephemeral=is_ephemeral)


def ledger(change: Callable[[LedgerRecord], object]) -> bytes:
    """Metadata in version 3 that no writer of ours would write."""
    sound = encode_ledger_metadata(CLOSED)
    header, _, body = sound.partition(b"\n")
    record = LedgerRecord.FromString(body[2:] if body[0] & 0x80 else body[1:])
    change(record)
    data = record.SerializePartialToString()
    length = len(data)
    prefix = bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])
    return header + b"\n" + prefix + data


def add_segment(record: LedgerRecord, first_entry_id: int, bookies: tuple[str, ...] = BOOKIES) -> None:
    record.segment.add(firstEntryId=first_entry_id, ensembleMember=bookies)


def _bad(name: str, rules: str, path: str, data: bytes | None, **more: bytes | None) -> BadNode:
    return BadNode(name, frozenset(rules.split()), path, {path: data, **more})


def _bad_ledger(name: str, rules: str, change: Callable[[LedgerRecord], object]) -> BadNode:
    return _bad(name, rules, LEDGER, ledger(change))


def _set(**fields: object) -> Callable[[LedgerRecord], None]:
    def change(record: LedgerRecord) -> None:
        for field, value in fields.items():
            setattr(record, field, value)

    return change


_MADE_PERSISTENT = {
    "persistent registration": {f"available/{BOOKIES[0]}"},
    "persistent lock": {"underreplication/locks/urL0000000001"},
    "persistent vote": {VOTE},
}
_UR = "underreplication"
_NO_RPC = encode_service_info(BookieServiceInfo((Endpoint("http", "10.0.0.1", 8080, "http"),)))
_V1 = b"BookieMetadataFormatVersion\t1\n2\n3\n100\n0\t" + "\t".join(BOOKIES).encode() + b"\n9\tCLOSED"

BAD_NODES = (
    _bad("largest ledger id", "forbidden-ledger-id", FORBIDDEN, encode_ledger_metadata(CLOSED)),
    # bookies
    _bad("bad child of available", "invalid-bookie-name session-node-without-session", "available/a,b", b""),
    _bad("bad child of readonly", "invalid-bookie-name session-node-without-session", "available/readonly/a b", b""),
    _bad("bad child of cookies", "invalid-bookie-name", "cookies/a,b", cookie("a,b", "/other")),
    BadNode(
        "ephemeral bad child of available",
        frozenset({"invalid-bookie-name"}),
        "available/schön",
        {"available/schön": b""},
        frozenset({"available/schön"}),
    ),
    _bad("garbage registration", "unreadable-registration", f"available/{BOOKIES[0]}", b"\xff\xff"),
    _bad("registration of words", "unreadable-registration", f"available/readonly/{BOOKIES[2]}", b"hello there"),
    BadNode(
        "empty registration under a name",
        frozenset({"unreadable-registration", "registered-without-cookie"}),
        "available/bookie-1",
        {"available/bookie-1": b""},
        frozenset({"available/bookie-1"}),
    ),
    _bad("registration without address", "registration-without-address", f"available/{BOOKIES[0]}", _NO_RPC),
    _bad(
        "persistent registration",
        "session-node-without-session",
        f"available/{BOOKIES[0]}",
        registration(BOOKIES[0]),
    ),
    _bad("registered without cookie", "registered-without-cookie", f"cookies/{BOOKIES[1]}", MISSING)._replace(
        path=f"available/{BOOKIES[1]}"
    ),
    _bad("no available", "directory-missing", "available", MISSING),
    _bad("no cookies", "cookies-missing registered-without-cookie", "cookies", MISSING),
    _bad("garbage cookie", "unreadable-cookie", f"cookies/{BOOKIES[1]}", b"junk"),
    _bad("cookie of an old layout", "unreadable-cookie", f"cookies/{BOOKIES[1]}", b"2\nwhatever\n"),
    _bad("cookie with an endless version", "unreadable-cookie", f"cookies/{BOOKIES[1]}", b"9" * 5000 + b"\n"),
    _bad(
        "cookie of another instance",
        "cookie-of-another-instance",
        f"cookies/{BOOKIES[1]}",
        cookie(BOOKIES[1], "/data", instance_id="another"),
    ),
    _bad(
        "cookie of no instance",
        "cookie-of-another-instance",
        f"cookies/{BOOKIES[1]}",
        cookie(BOOKIES[1], "/data", instance_id=None),
    ),
    _bad("cookie of another bookie", "cookie-names-another-bookie", f"cookies/{BOOKIES[1]}", cookie("x:1", "/data")),
    _bad(
        "two cookies on one directory",
        "cookies-share-folders",
        "cookies/10.0.0.1:3999",
        cookie("10.0.0.1:3999", "/data"),
    ),
    # the root
    _bad("no LAYOUT", "layout-missing", "LAYOUT", MISSING),
    _bad("garbage LAYOUT", "layout-unreadable", "LAYOUT", b"junk"),
    _bad("LAYOUT of an unknown class", "layout-unreadable", "LAYOUT", b"2\norg.example.Factory:1"),
    _bad("no INSTANCEID", "instance-id-missing cookie-of-another-instance", "INSTANCEID", MISSING),
    _bad(
        "INSTANCEID with a newline",
        "instance-id-malformed cookie-of-another-instance",
        "INSTANCEID",
        INSTANCE_ID.encode() + b"\n",
    ),
    _bad("unknown child of the root", "stray-at-root", "mine", b"", **{"mine/below": b""}),
    _bad("half a restore", "restore-unfinished", "", b"bkctl restore abc"),
    # ledgers
    _bad("garbage ledger", "unreadable-ledger", LEDGER, b"\x00junk"),
    _bad("empty ledger node", "unreadable-ledger", LEDGER, b""),
    _bad("ledger of a newer release", "newer-ledger-format", LEDGER, b"BookieMetadataFormatVersion\t4\n"),
    _bad("ledger in words", "unreadable-ledger", LEDGER, b"BookieMetadataFormatVersion\t2\ngarbage"),
    _bad_ledger("short ensemble", "ensemble-size-mismatch", _set(ensembleSize=5)),
    _bad_ledger("no segment", "ledger-without-segment", lambda record: record.ClearField("segment")),
    _bad_ledger("segments back to front", "segments-out-of-order", lambda record: add_segment(record, 0)),
    _bad_ledger(
        "first segment late",
        "first-segment-not-at-zero",
        lambda record: setattr(record.segment[0], "firstEntryId", 3),
    ),
    _bad_ledger("write quorum above the ensemble", "quorums-out-of-order", _set(quorumSize=4)),
    _bad_ledger("ack quorum above the write quorum", "quorums-out-of-order", _set(ackQuorumSize=3)),
    _bad_ledger("no quorum", "quorums-out-of-order", _set(quorumSize=0, ackQuorumSize=0)),
    _bad_ledger("password without digest", "password-without-digest", lambda record: record.ClearField("digestType")),
    _bad_ledger(
        "one bookie twice",
        "duplicate-bookie-in-ensemble",
        lambda record: record.segment[0].ensembleMember.__setitem__(1, BOOKIES[0]),
    ),
    _bad_ledger(
        "no bookie id",
        "invalid-bookie-in-ledger",
        lambda record: record.segment[0].ensembleMember.__setitem__(1, "a,b"),
    ),
    _bad_ledger("closed without end", "closed-without-end", lambda record: record.ClearField("lastEntryId")),
    _bad_ledger("end before the last segment", "end-before-last-segment", lambda record: add_segment(record, 11)),
    _bad_ledger("end below -1", "impossible-end", _set(lastEntryId=-7)),
    _bad_ledger("end that leaves no number for the entries", "impossible-end", _set(lastEntryId=2**63 - 1)),
    _bad_ledger("length of nothing", "impossible-end", _set(lastEntryId=-1)),
    _bad(
        "ledger of the long form", "ledger-outside-layout", "000/0000/0000/0000/L0009", encode_ledger_metadata(CLOSED)
    ),
    _bad("ledger of the flat form", "ledger-outside-layout", "L0000000009", encode_ledger_metadata(CLOSED)),
    _bad("name among the ledgers", "stray-among-ledgers", "00/0000/Lxyz", b""),
    _bad("name among the buckets", "stray-among-ledgers", "00/00000", b""),
    _bad("child of a ledger", "stray-among-ledgers ledger-with-children", f"{LEDGER}/x", b""),
    BadNode(
        "ephemeral ledger",
        frozenset({"node-of-a-session"}),
        "00/0000/L0009",
        {"00/0000/L0009": encode_ledger_metadata(CLOSED)},
        frozenset({"00/0000/L0009"}),
    ),
    _bad("bookie down", "bookie-down-with-ledgers", f"available/{BOOKIES[1]}", MISSING)._replace(
        path=f"cookies/{BOOKIES[1]}"
    ),
    # ids
    _bad("high half too high", "high-order-out-of-range", "idgen-long/HOB-2147483648", b""),
    _bad("last ID node left", "id-node-blocks-counter", "idgen/ID-2147483647", b""),
    _bad("name among the ids", "stray-node", "idgen/x", b""),
    _bad("name among the high halves", "stray-node", "idgen-long/HOB-x", b""),
    # replication
    _bad("mark without ledger", "mark-without-ledger", MARK.replace("1", "7"), b"ctime: 5\n"),
    _bad(
        "mark of the largest id",
        "mark-without-ledger",
        f"{_UR}/ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807",
        b"ctime: 5\n",
    ),
    _bad("garbage mark", "unreadable-mark", MARK, b"junk\xff"),
    _bad("mark of words", "unreadable-mark", MARK, b"garbage"),
    _bad("mark in the wrong directory", "stray-node", MARK.replace("0000000001", "0000000002"), b"ctime: 5\n"),
    _bad("name among the marks", "stray-node", f"{_UR}/ledgers/xyz", b""),
    _bad("name among the locks", "stray-node", f"{_UR}/locks/xyz", b""),
    _bad("persistent lock", "session-node-without-session", f"{_UR}/locks/urL0000000001", encode_lock("worker")),
    _bad("persistent vote", "session-node-without-session", VOTE, encode_vote(BOOKIES[0])),
    _bad("name among the votes", "foreign-vote", f"{_UR}/auditorelection/x", b""),
    _bad("garbage vote", "unreadable-vote", VOTE, b"junk\xff"),
    _bad("vote of another than took office", "auditor-not-in-office", VOTE, encode_vote(BOOKIES[1]))._replace(
        path=f"{_UR}/auditorelection"
    ),
    _bad(
        "unknown kind of replication tree", "replication-layout-unreadable", f"{_UR}/LAYOUT", b'type: "X"\nversion: 1'
    ),
    _bad("garbage delay", "delay-unreadable", f"{_UR}/lostBookieRecoveryDelay", b"soon"),
    _bad("negative delay", "delay-unreadable", f"{_UR}/lostBookieRecoveryDelay", b"-5"),
    _bad("no delay", "delay-missing", f"{_UR}/lostBookieRecoveryDelay", MISSING),
    _bad("garbage check time", "check-time-unreadable", f"{_UR}/checkallledgersctime", b"junk"),
    _bad(
        "check time in the future",
        "check-time-in-future",
        f"{_UR}/checkallledgersctime",
        encode_check_time(2**63 - 1),
    ),
    _bad("name in the replication tree", "stray-node", f"{_UR}/xyz", b""),
    _bad("no vote", "no-auditor", VOTE, MISSING)._replace(path=f"{_UR}/auditorelection"),
    _bad("replication off", "replication-disabled", f"{_UR}/disable", b""),
)
"""Each is a warning or worse."""

INFORMATION = (
    _bad("bookie down without ledgers", "bookie-down", "cookies/10.0.0.9:3181", cookie("10.0.0.9:3181", "/data")),
    _bad_ledger("ack quorum of one", "ledger-ack-quorum-one", _set(ackQuorumSize=1)),
    _bad("ledger of version 1", "ledger-format-one", LEDGER, _V1),
    _bad("empty bucket", "empty-ledger-directory", "00/0005", b""),
    _bad("empty directory of marks", "empty-mark-directory", f"{_UR}/ledgers/0001", b""),
    _bad("ID node left", "id-node-left", "idgen/ID-0000000004", b""),
    BadNode(
        "garbage lock",
        frozenset({"unreadable-lock"}),
        f"{_UR}/locks/urL0000000001",
        {f"{_UR}/locks/urL0000000001": b"junk\xff"},
    ),
    BadNode(
        "lock without ledger",
        frozenset({"lock-without-ledger"}),
        f"{_UR}/locks/urL0000000019",
        {f"{_UR}/locks/urL0000000019": encode_lock("worker")},
        frozenset({f"{_UR}/locks/urL0000000019"}),
    ),
    _bad("no bookie in a mark", "invalid-bookie-in-mark", MARK, b'replica: "a,b"\nctime: 5\n'),
    _bad("long delay", "delay-very-long", f"{_UR}/lostBookieRecoveryDelay", b"100000"),
    _bad("no quarantine", "health-check-disabled", "disableHealthCheck", b""),
    BadNode(
        "auditor of another driver too",
        frozenset({"two-kinds-of-auditor"}),
        f"{_UR}/leader",
        {f"{_UR}/leader": b'"10.0.0.1:3181"'},
        frozenset({f"{_UR}/leader"}),
    ),
)
"""None of them is damage."""


def all_bad_nodes() -> tuple[Nodes, frozenset[str]]:
    """As many of them as one cluster can have at once, and the rules that must tell of them."""
    nodes = sound_cluster()
    rules: set[str] = set()
    taken: set[str] = {"LAYOUT", "INSTANCEID"}
    for number, bad in enumerate(BAD_NODES + INFORMATION):
        changes = dict(bad.changes)
        if set(changes) == {LEDGER}:
            changes = {f"00/0001/L{number:04d}": changes[LEDGER]}
        if taken.isdisjoint(changes) and MISSING not in changes.values():
            taken |= changes.keys()
            rules |= bad.rules
            nodes = with_bad_node(nodes, bad._replace(changes=changes))
    return nodes, frozenset(rules)
