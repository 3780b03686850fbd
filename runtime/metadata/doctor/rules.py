"""Rules of the metadata doctor that examine one node: its purpose, contents and owner. Pure.

``examine`` finds the rules for a node's kind in a table. Rules that need several nodes are in ``bookies`` and in the
walk itself (``doctor``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata, is_valid_bookie_id
from bkctl.runtime.ledger.metadata_format import MissingEndError, NewerFormatError, decode_unsound_metadata
from bkctl.runtime.metadata.bookies.service_info import decode_service_info
from bkctl.runtime.metadata.cluster.root import RESTORE_MARK
from bkctl.runtime.metadata.doctor.catalogue import MetadataFinding, finding
from bkctl.runtime.metadata.doctor.places import FORBIDDEN_LEDGER_ID, Kind, Place
from bkctl.runtime.metadata.ledgers.ids import HIGH_ORDER_MAX
from bkctl.runtime.metadata.ledgers.layout import SHORT_ID_LIMIT, LedgerTree, decode_layout
from bkctl.runtime.metadata.replication.format import (
    check_layout,
    decode_check_time,
    decode_lock,
    decode_mark,
    decode_pulsar_auditor,
    decode_vote,
)
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, parse_delay
from bkctl.runtime.metadata.store import Node
from bkctl.storage.ids import INVALID_ENTRY_ID
from bkctl.storage.words import capitalized, counted, duration, listed

DISABLED_LONG_MS = 24 * 60 * 60 * 1000
"""If replication is off for longer, the operator has probably forgotten it."""
DELAY_LONG_S = 24 * 60 * 60
CHECK_AHEAD_MS = 24 * 60 * 60 * 1000
"""Maximum difference between clocks: a later time cannot be that of a check."""
IDS_NEARLY_USED_UP = SHORT_ID_LIMIT - SHORT_ID_LIMIT // 10
"""From this id on, a layout without long ids has a tenth of its ids left."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Surroundings(msgspec.Struct, frozen=True):
    """The cluster and the time, as far as the rules need them.

    ``tree``: layout used to read the ledgers, ``wanted_tree``: that of the metadata URI. ``has_long_ids``: whether the
    directory of long ids existed before the walk.
    """

    root: str
    tree: LedgerTree
    wanted_tree: LedgerTree | None
    is_shaded_factory_allowed: bool
    has_long_ids: bool
    now_ms: int


Rules = Callable[[str, Place, Node, Surroundings], Iterator[MetadataFinding]]


def examine(place: Place, node: Node, around: Surroundings) -> list[MetadataFinding]:
    """Problems of a single node."""
    path = f"{around.root}/{place.path}" if place.path else around.root
    found = list(_RULES[place.kind](path, place, node, around)) if place.kind in _RULES else []
    is_ephemeral = node.stat.ephemeral_owner != 0
    if place.kind in _OF_SESSIONS and not is_ephemeral:
        found.append(finding("session-node-without-session", path, "It is persistent, and must be ephemeral."))
    if place.kind in _PERSISTENT and is_ephemeral:
        problem = f"It is ephemeral, of session {node.stat.ephemeral_owner:#x}, and must be persistent."
        found.append(finding("node-of-a-session", path, problem, place.number))
    return found


_OF_SESSIONS = {Kind.WRITABLE_BOOKIE, Kind.READ_ONLY_BOOKIE, Kind.LOCK, Kind.VOTE, Kind.PULSAR_AUDITOR}
_PERSISTENT = {
    Kind.INSTANCE_ID,
    Kind.LAYOUT,
    Kind.COOKIE,
    Kind.LEDGER,
    Kind.MISPLACED_LEDGER,
    Kind.MARK,
    Kind.SWITCH,
}


# -- the root -------------------------------------------------------------------------------------------------------


def _examine_root(path: str, _: Place, node: Node, around: Surroundings) -> Iterator[MetadataFinding]:
    if node.data.startswith(RESTORE_MARK):
        yield finding("restore-unfinished", path, "A restore into this root started and did not finish.")
    if around.tree is LedgerTree.FLAT:
        yield from _examine_counter(path, node, around)


def _examine_instance_id(path: str, _: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    if not _UUID.fullmatch(node.data.decode("utf-8", "replace")):
        yield finding("instance-id-malformed", path, f"{shown(node.data)} is not a UUID in lower case.")


def _examine_layout(path: str, _: Place, node: Node, around: Surroundings) -> Iterator[MetadataFinding]:
    try:
        layout = decode_layout(node.data, is_shaded_factory_allowed=around.is_shaded_factory_allowed)
    except MetadataFormatError as error:
        yield finding("layout-unreadable", path, sentence(error))
        return
    wanted = around.wanted_tree
    if wanted is not None and wanted is not layout.tree:
        problem = f"It has {layout.tree.value}, but the metadata URI has {wanted.value}."
        yield finding("layout-differs-from-uri", path, problem)


def _examine_stray_at_root(path: str, _: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    yield finding("stray-at-root", path, f"No process uses this name below the ledgers root{_children(node)}.")


def _examine_stray(path: str, place: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    rule_id = {Kind.STRAY: "stray-node", Kind.STRAY_IN_LEDGERS: "stray-among-ledgers"}.get(place.kind, "foreign-vote")
    yield finding(rule_id, path, f"No process writes a node of this name here{_children(node)}.")


# -- bookies --------------------------------------------------------------------------------------------------------


def _examine_bookie(path: str, place: Place, node: Node, _: Surroundings) -> Iterator[MetadataFinding]:
    if not is_valid_bookie_id(place.name):
        yield finding("invalid-bookie-name", path, f"{place.name!r} cannot be a bookie id.")
        return
    try:
        info = decode_service_info(place.name, node.data)
    except MetadataFormatError as error:
        yield finding("unreadable-registration", path, sentence(error))
        return
    if info.rpc_address is None:
        yield finding("registration-without-address", path, "It has no endpoint for ledger requests.")


def _examine_cookie_name(path: str, place: Place, _: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    """The contents of a cookie are compared with other nodes in ``bookies``."""
    if not is_valid_bookie_id(place.name):
        yield finding("invalid-bookie-name", path, f"{place.name!r} cannot be a bookie id.")


# -- ledger ids -----------------------------------------------------------------------------------------------------


def _examine_ids(path: str, place: Place, node: Node, around: Surroundings) -> Iterator[MetadataFinding]:
    if place.number is None:
        yield from _examine_counter(path, node, around)
    elif place.number > HIGH_ORDER_MAX:
        yield finding(
            "high-order-out-of-range", path, f"{place.number} does not fit into the high half of a ledger id."
        )


def _examine_counter(path: str, node: Node, around: Surroundings) -> Iterator[MetadataFinding]:
    """The number of the next sequential child. Used-up high halves are no problem: Java continues with the next one."""
    used_count = node.stat.children_created_count
    if around.tree in {LedgerTree.FLAT, LedgerTree.LEGACY_HIERARCHICAL}:
        if used_count >= SHORT_ID_LIMIT:
            yield finding("ledger-ids-used-up", path, f"The counter of ledger ids is at {used_count}, its end.")
        elif used_count >= IDS_NEARLY_USED_UP:
            problem = f"The counter of ledger ids is at {used_count} of {SHORT_ID_LIMIT}."
            yield finding("ledger-ids-nearly-used-up", path, problem)
    elif used_count >= SHORT_ID_LIMIT and not around.has_long_ids:
        yield finding("long-ids-begin", path, f"The counter of short ledger ids is at {used_count}, its end.")


def _examine_id_node(path: str, place: Place, node: Node, _: Surroundings) -> Iterator[MetadataFinding]:
    if node.stat.ephemeral_owner:
        return  # a client is creating a ledger, or its session will end
    if place.number is not None and place.number >= SHORT_ID_LIMIT:
        yield finding("id-node-blocks-counter", path, "It is persistent and has the highest possible number.")
    else:
        yield finding("id-node-left", path, "It is persistent: a process requested an id and did not remove the node.")


# -- ledgers --------------------------------------------------------------------------------------------------------


def _examine_ledger(path: str, place: Place, node: Node, _: Surroundings) -> Iterator[MetadataFinding]:
    assert place.number is not None
    if node.stat.children_count:
        yield finding(
            "ledger-with-children", path, f"The node of a ledger has children{_children(node)}.", place.number
        )
    yield from examine_ledger(path, place.number, node.data)


def _examine_forbidden_ledger(path: str, _: Place, __: Node, ___: Surroundings) -> Iterator[MetadataFinding]:
    problem = f"A ledger has the largest possible id, {FORBIDDEN_LEDGER_ID}."
    yield finding("forbidden-ledger-id", path, problem, FORBIDDEN_LEDGER_ID)


def _examine_misplaced_ledger(path: str, place: Place, __: Node, around: Surroundings) -> Iterator[MetadataFinding]:
    problem = f"The {around.tree.value} layout has no ledger at this path."
    yield finding("ledger-outside-layout", path, problem, place.number)


def _examine_ledger_directory(path: str, _: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    if not node.stat.children_count:
        yield finding("empty-ledger-directory", path, "There is no ledger below it.")


# -- replication ----------------------------------------------------------------------------------------------------


def _examine_mark_directory(path: str, _: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    if not node.stat.children_count:
        yield finding("empty-mark-directory", path, "There is no mark below it.")


def _examine_mark(path: str, place: Place, node: Node, _: Surroundings) -> Iterator[MetadataFinding]:
    try:
        mark = decode_mark(node.data)
    except MetadataFormatError as error:
        yield finding("unreadable-mark", path, sentence(error), place.number)
        return
    for bookie_id in mark.missing_bookies:
        if not is_valid_bookie_id(bookie_id):
            problem = f"{bookie_id!r} cannot be a bookie id."
            yield finding("invalid-bookie-in-mark", path, problem, place.number)


def _unreadable(rule_id: str, decode: Callable[[bytes], object]) -> Rules:
    def examine_bytes(path: str, place: Place, node: Node, _: Surroundings) -> Iterator[MetadataFinding]:
        try:
            decode(node.data)
        except MetadataFormatError as error:
            yield finding(rule_id, path, sentence(error), place.number if place.kind is Kind.LOCK else None)

    return examine_bytes


def _examine_election(path: str, _: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    used_count = node.stat.children_created_count
    if used_count >= SHORT_ID_LIMIT:
        yield finding("votes-used-up", path, f"The counter of votes is at {used_count}, its end.")


def _examine_switch(path: str, place: Place, node: Node, around: Surroundings) -> Iterator[MetadataFinding]:
    if place.name in _SWITCHES:
        yield from _SWITCHES[place.name](path, place, node, around)


def _examine_disabled(path: str, _: Place, node: Node, around: Surroundings) -> Iterator[MetadataFinding]:
    age_ms = around.now_ms - node.stat.ctime_ms
    rule_id = "replication-disabled-long" if age_ms > DISABLED_LONG_MS else "replication-disabled"
    yield finding(rule_id, path, f"Autorecovery was disabled {duration(max(0, age_ms) / 1000)} ago.")


def _examine_delay(path: str, _: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    seconds = parse_delay(node.data)
    if seconds is None:
        yield finding("delay-unreadable", path, f"{shown(node.data)} is not a number of seconds.")
    elif seconds > DELAY_LONG_S:
        yield finding("delay-very-long", path, f"An auditor waits {seconds} s before it acts on a lost bookie.")


def _examine_check_time(path: str, _: Place, node: Node, __: Surroundings) -> Iterator[MetadataFinding]:
    try:
        time_ms = decode_check_time(node.data)
    except MetadataFormatError as error:
        yield finding("check-time-unreadable", path, sentence(error))
        return
    # Compared with the store's clock, which dated the node, so that a wrong clock here causes no finding.
    ahead_ms = (time_ms or 0) - node.stat.mtime_ms
    if ahead_ms > CHECK_AHEAD_MS:
        yield finding(
            "check-time-in-future", path, f"It is {duration(ahead_ms / 1000)} later than when it was written."
        )


def _examine_health_check(path: str, _: Place, __: Node, ___: Surroundings) -> Iterator[MetadataFinding]:
    yield finding("health-check-disabled", path, "The bookie health check of clients is disabled.")


_SWITCHES: dict[str, Rules] = {
    "LAYOUT": _unreadable("replication-layout-unreadable", check_layout),
    "disable": _examine_disabled,
    "lostBookieRecoveryDelay": _examine_delay,
    "disableHealthCheck": _examine_health_check,
    **dict.fromkeys((check.value for check in PeriodicCheck), _examine_check_time),
}
_RULES: dict[Kind, Rules] = {
    Kind.ROOT: _examine_root,
    Kind.INSTANCE_ID: _examine_instance_id,
    Kind.LAYOUT: _examine_layout,
    Kind.WRITABLE_BOOKIE: _examine_bookie,
    Kind.READ_ONLY_BOOKIE: _examine_bookie,
    Kind.COOKIE: _examine_cookie_name,
    Kind.ID_DIRECTORY: _examine_ids,
    Kind.ID_NODE: _examine_id_node,
    Kind.LEDGER_DIRECTORY: _examine_ledger_directory,
    Kind.LEDGER: _examine_ledger,
    Kind.FORBIDDEN_LEDGER: _examine_forbidden_ledger,
    Kind.MISPLACED_LEDGER: _examine_misplaced_ledger,
    Kind.STRAY_IN_LEDGERS: _examine_stray,
    Kind.MARK_DIRECTORY: _examine_mark_directory,
    Kind.MARK: _examine_mark,
    Kind.LOCK: _unreadable("unreadable-lock", decode_lock),
    Kind.ELECTION: _examine_election,
    Kind.VOTE: _unreadable("unreadable-vote", decode_vote),
    Kind.PULSAR_AUDITOR: _unreadable("unreadable-vote", decode_pulsar_auditor),
    Kind.SWITCH: _examine_switch,
    Kind.STRAY: _examine_stray,
    Kind.STRAY_AT_ROOT: _examine_stray_at_root,
    Kind.STRAY_VOTE: _examine_stray,
}


def _children(node: Node) -> str:
    count = node.stat.children_count
    return f"; it has {counted(count, 'child', 'children')}" if count else ""


def shown(data: bytes) -> str:
    """The first bytes as text."""
    return repr(data[:100].decode("utf-8", "backslashreplace"))


def sentence(error: MetadataFormatError) -> str:
    """The error message for unreadable bytes, as a sentence on one line."""
    text = str(error).replace("\n", " ")
    return f"{capitalized(text[:300]).rstrip('.')}."


Fault = tuple[str, str]
"""Id of the rule, and the sentence that describes the problem."""


def examine_ledger(path: str, ledger_id: int, data: bytes) -> Iterator[MetadataFinding]:
    """All problems of one ledger's bytes."""
    try:
        metadata = decode_unsound_metadata(data)
    except MissingEndError:
        yield finding("closed-without-end", path, "It is closed, but has no last entry id.", ledger_id)
        return
    except NewerFormatError as error:
        yield finding("newer-ledger-format", path, f"Not understood as {error}.", ledger_id)
        return
    except MetadataFormatError as error:
        text = str(error).replace("\n", " ")[:300].rstrip(".")
        yield finding("unreadable-ledger", path, f"Cannot be parsed as {text}.", ledger_id)
        return
    for find in _FAULTS:
        for rule_id, problem in find(metadata):
            yield finding(rule_id, path, problem, ledger_id)


def _quorum_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    sizes = (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    if not sizes[0] >= sizes[1] >= sizes[2] > 0:
        yield "quorums-out-of-order", "Ensemble, write and ack quorum are {}, {} and {}.".format(*sizes)
    elif sizes[1] > sizes[2] == 1:
        yield "ledger-ack-quorum-one", f"One of {sizes[1]} copies is enough to acknowledge an entry."


def _digest_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    if metadata.password is not None and metadata.digest_type is None:
        yield "password-without-digest", "It has a password, but no digest type."
    if metadata.format_version == 1:
        yield "ledger-format-one", "It is stored in version 1, without password and digest type."


def _segment_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    starts = [segment.first_entry_id for segment in metadata.segments]
    if not starts:
        yield "ledger-without-segment", "It has no segment, so no bookie."
        return
    if starts[0] != 0:
        yield "first-segment-not-at-zero", f"The first segment starts at entry {starts[0]}."
    for start, following in itertools.pairwise(starts):
        if following <= start:
            yield "segments-out-of-order", f"A segment at entry {following} follows one at entry {start}."
            break


def _ensemble_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    invalid: dict[str, None] = {}
    for segment in metadata.segments:
        if len(segment.ensemble) != metadata.ensemble_size:
            counts = f"{len(segment.ensemble)} bookies instead of {metadata.ensemble_size}"
            yield "ensemble-size-mismatch", f"The segment at entry {segment.first_entry_id} has {counts}."
            break
    for segment in metadata.segments:
        if len(set(segment.ensemble)) < len(segment.ensemble):
            twice = next(each for each in segment.ensemble if segment.ensemble.count(each) > 1)
            problem = f"The segment at entry {segment.first_entry_id} has bookie {twice!r} more than once."
            yield "duplicate-bookie-in-ensemble", problem
            break
    for segment in metadata.segments:
        invalid.update(dict.fromkeys(each for each in segment.ensemble if not is_valid_bookie_id(each)))
    if invalid:
        names = listed([repr(each[:100]) for each in invalid])
        yield "invalid-bookie-in-ledger", f"It has invalid bookie ids: {names}."


def _end_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    if not metadata.is_closed:
        return
    last = metadata.last_entry_id
    if metadata.entry_count is None or metadata.length < 0 or (last == INVALID_ENTRY_ID and metadata.length > 0):
        yield "impossible-end", f"It is closed at entry {last} with {metadata.length} bytes."
    # The last segment may be empty: a writer may replace bookies and close before the next entry.
    elif metadata.segments and last + 1 < metadata.segments[-1].first_entry_id:
        start = metadata.segments[-1].first_entry_id
        yield "end-before-last-segment", f"It is closed at entry {last}, but its last segment starts at entry {start}."


_FAULTS: tuple[Callable[[LedgerMetadata], Iterator[Fault]], ...] = (
    _quorum_faults,
    _digest_faults,
    _segment_faults,
    _ensemble_faults,
    _end_faults,
)
