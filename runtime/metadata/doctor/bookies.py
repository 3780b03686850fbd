"""Rules of the metadata doctor that compare nodes: cookies, registrations, votes, and missing nodes. Pure.

Bookies and votes may change while they are read, so the caller takes two snapshots and trusts what both show.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Protocol

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata, is_valid_bookie_id, parse_host_and_port
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, decode_unsound_metadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, decode_cookie
from bkctl.runtime.metadata.bookies.service_info import decode_service_info
from bkctl.runtime.metadata.doctor.catalogue import MetadataFinding, finding
from bkctl.runtime.metadata.doctor.rules import sentence, shown
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.format import decode_vote, parse_vote_name
from bkctl.runtime.metadata.store import Node
from bkctl.runtime.placement.rack_sources import decode_pulsar_bookies, rack_problems
from bkctl.runtime.placement.survey import names_of
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted

_PATHS_KEPT_MAX = 10


class Snapshot(msgspec.Struct, frozen=True):
    """Nodes at one moment, by name; None: this user may not list them."""

    writable: Mapping[str, Node] | None
    read_only: Mapping[str, Node] | None
    cookies: Mapping[str, Node] | None
    votes: Mapping[str, Node] | None
    elected: Node | None
    """The directory of votes, where the last winner wrote its name."""
    instance_id: Node | None
    present: frozenset[str]
    """Those of the requested paths that exist."""
    is_auditor_ours: bool = False
    """Whether a daemon of bkctl says that it is the auditor: it needs no recovery delay in the metadata."""
    references: Mapping[str, Reference] = {}
    """Bookies that ledgers refer to."""

    @property
    def known_bookies(self) -> frozenset[str] | None:
        """Bookies that are registered, have a cookie or are referenced; None: this user may not list them all."""
        if self.writable is None or self.read_only is None or self.cookies is None:
            return None
        return frozenset().union(self.writable, self.read_only, self.cookies, self.references)


class Reference(msgspec.Struct):
    """Number of ledgers that refer to a bookie, and the paths of the first ones."""

    ledgers_count: int = 0
    first_paths: list[str] = []


class DownRules(Protocol):
    """The rules of replication about bookies that are down."""

    def needed(self, ledger_id: int, metadata: LedgerMetadata) -> frozenset[str]:
        """The bookies that a ledger needs."""

    def severity(self, bookie_id: str, down: int) -> Severity:
        """How bad it is that a bookie, one of so many that ledgers need, is down. After all ledgers."""

    def cure(self, bookie_id: str, *, has_cookie: bool) -> str | None:
        """What to do about it, if not as the rule of the doctor says. After all ledgers."""

    def returned(self, bookie_id: str) -> tuple[str, str] | None:
        """What is wrong with a bookie that is back although it was given up, and what to do; None: it was not."""

    def leaving(self, bookie_id: str, writable: int) -> tuple[Severity, str, str] | None:
        """How bad it is, what it is, and what to do, if a drain made the bookie read-only. After all ledgers."""

    def writers_stop(self, writable: int) -> tuple[str, str] | None:
        """What so few writable bookies prevent, and what to do; None: they are enough. After all ledgers."""


class References:
    """Collects the bookies that the ledgers of a walk refer to. Memory grows only with the number of bookies."""

    def __init__(self, rules: DownRules) -> None:
        self.by_bookie: dict[str, Reference] = {}
        self._rules = rules

    def note(self, path: str, ledger_id: int | None, data: bytes) -> None:
        """Add the bookies that a ledger needs; ignores an unreadable ledger."""
        bookie_ids = _named_in(data)
        if ledger_id is not None:
            with contextlib.suppress(MetadataFormatError):
                bookie_ids = self._rules.needed(ledger_id, decode_ledger_metadata(data))
        for bookie_id in bookie_ids:
            reference = self.by_bookie.setdefault(bookie_id, Reference())
            reference.ledgers_count += 1
            if len(reference.first_paths) < _PATHS_KEPT_MAX:
                reference.first_paths.append(path)


def still_named(reference: Reference, bookie_id: str, ledgers: Iterable[bytes]) -> bool:
    """Whether a ledger still refers to a bookie; ``ledgers``: current data of the ledgers of ``first_paths``."""
    return reference.ledgers_count > len(reference.first_paths) or any(bookie_id in _named_in(data) for data in ledgers)


def _named_in(data: bytes) -> frozenset[str]:
    try:
        return decode_unsound_metadata(data).bookies()
    except MetadataFormatError:
        return frozenset()


def compare(root: str, snapshot: Snapshot, rules: DownRules) -> Iterator[MetadataFinding]:
    """Problems of the bookies, their cookies and the election as a whole."""
    paths = Paths(root)
    cookies: dict[str, Cookie] = {}
    yield from _absences(paths, snapshot)
    yield from _cookie_faults(paths, snapshot, cookies)
    yield from _shared_directories(paths, snapshot, cookies)
    yield from _registration_faults(paths, snapshot, rules)
    yield from _election_faults(paths, snapshot)


def _absences(paths: Paths, snapshot: Snapshot) -> Iterator[MetadataFinding]:
    is_at_work = bool(snapshot.writable or snapshot.read_only or snapshot.votes)
    absent = {
        path
        for path in (paths.available, paths.layout, paths.instance_id, paths.cookies)
        if path not in snapshot.present
    }
    if paths.available in absent:
        yield finding("directory-missing", paths.available, "The directory of registered bookies is missing.")
    if paths.layout in absent:
        yield finding("layout-missing", paths.layout, "The layout of the ledgers is not recorded.")
    if paths.instance_id in absent:
        yield finding("instance-id-missing", paths.instance_id, "The cluster has no instance id.")
    if paths.cookies in absent and is_at_work:
        yield finding("cookies-missing", paths.cookies, "The directory of cookies is missing.")
    is_delay_needed = snapshot.votes and not snapshot.is_auditor_ours
    if is_delay_needed and paths.lost_bookie_recovery_delay not in snapshot.present:
        problem = "An auditor is elected, but the node that it created at its start is missing."
        yield finding("delay-missing", paths.lost_bookie_recovery_delay, problem)


def _cookie_faults(paths: Paths, snapshot: Snapshot, cookies: dict[str, Cookie]) -> Iterator[MetadataFinding]:
    """Adds the readable cookies to ``cookies``."""
    instance_id = snapshot.instance_id.data.decode("utf-8", "replace") if snapshot.instance_id else None
    is_instance_known = snapshot.instance_id is not None or paths.instance_id not in snapshot.present
    for name, node in (snapshot.cookies or {}).items():
        path = paths.cookie(name)
        if not is_valid_bookie_id(name):
            continue  # already a finding, and no command accepts such an id
        try:
            cookie = decode_cookie(node.data)
        except MetadataFormatError as error:
            yield finding("unreadable-cookie", path, sentence(error))
            continue
        cookies[name] = cookie
        if cookie.bookie_id != name:
            problem = f"It is the cookie of {cookie.bookie_id!r}, stored as {name!r}."
            yield finding("cookie-names-another-bookie", path, problem)
        if is_instance_known and (cookie.instance_id or None) != (instance_id or None):
            problem = f"It has instance {cookie.instance_id or 'none'}, but the cluster is {instance_id or 'none'}."
            yield finding("cookie-of-another-instance", path, problem)


def _shared_directories(paths: Paths, snapshot: Snapshot, cookies: Mapping[str, Cookie]) -> Iterator[MetadataFinding]:
    owners: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for name, cookie in sorted(cookies.items()):
        host = host_of(name, snapshot)
        if host is not None:
            directories = cookie.journal_directories + cookie.ledger_directories + cookie.effective_index_directories
            for directory in dict.fromkeys(directories):
                owners[host, directory].append(name)
    told: set[tuple[str, str]] = set()
    for (host, directory), names in owners.items():
        for pair in itertools.pairwise(names):
            if pair not in told:
                told.add(pair)
                problem = f"The cookie of {pair[0]} also has directory {directory} of host {host}."
                yield finding("cookies-share-folders", paths.cookie(pair[1]), problem)


def host_of(bookie_id: str, snapshot: Snapshot) -> str | None:
    """Host of a bookie, from its service info, else from its id; None when neither has one."""
    address = _address_of(bookie_id, snapshot)
    return None if address is None else address[0]


def _address_of(bookie_id: str, snapshot: Snapshot) -> tuple[str, int] | None:
    """Host and port of a bookie, of the same sources."""
    node = (snapshot.writable or {}).get(bookie_id) or (snapshot.read_only or {}).get(bookie_id)
    if node is not None:
        try:
            address = decode_service_info(bookie_id, node.data).rpc_address
        except MetadataFormatError:
            address = None
        if address is not None:
            return address.host, address.port
    return parse_host_and_port(bookie_id)


def _registration_faults(paths: Paths, snapshot: Snapshot, rules: DownRules) -> Iterator[MetadataFinding]:
    writable, read_only, cookies = snapshot.writable, snapshot.read_only, snapshot.cookies
    if writable is None or read_only is None:
        return
    for name in sorted(writable.keys() & read_only.keys()):
        sessions = writable[name].stat.ephemeral_owner, read_only[name].stat.ephemeral_owner
        if sessions[0] != sessions[1]:
            problem = "Sessions {:#x} and {:#x} own its two registrations.".format(*sessions)
            yield finding("registered-by-two-sessions", paths.read_only_bookie(name), problem)
    yield from _shared_addresses(paths, snapshot, writable, read_only)
    yield from _unfinished_changes(paths, writable, read_only, rules)
    if paths.available in snapshot.present:  # otherwise that is the finding
        stop = rules.writers_stop(len(writable))
        yield from _down_bookies(
            paths, snapshot, writable.keys() | read_only.keys(), rules, do_writers_stop=stop is not None
        )
        if stop is not None:
            yield msgspec.structs.replace(finding("writers-stop", paths.available, stop[0]), own_cure=stop[1])
    if cookies is None:
        return
    for name in sorted(writable.keys() | read_only.keys()):
        if name not in cookies and is_valid_bookie_id(name):
            path = paths.writable_bookie(name) if name in writable else paths.read_only_bookie(name)
            yield finding("registered-without-cookie", path, f"There is no cookie of bookie {name}.")


def _shared_addresses(
    paths: Paths, snapshot: Snapshot, writable: Mapping[str, Node], read_only: Mapping[str, Node]
) -> Iterator[MetadataFinding]:
    first_at: dict[tuple[str, int], str] = {}
    for name in sorted(writable.keys() | read_only.keys()):
        address = _address_of(name, snapshot)
        if address is not None and (first := first_at.setdefault(address, name)) != name:
            path = paths.writable_bookie(name) if name in writable else paths.read_only_bookie(name)
            yield finding("bookies-share-address", path, f"Bookie {first} also has {address[0]}:{address[1]}.")


def _unfinished_changes(
    paths: Paths, writable: Mapping[str, Node], read_only: Mapping[str, Node], rules: DownRules
) -> Iterator[MetadataFinding]:
    """Registered bookies that were given up, or that a drain made read-only."""
    for name in sorted(writable.keys() | read_only.keys()):
        path = paths.writable_bookie(name) if name in writable else paths.read_only_bookie(name)
        if (back := rules.returned(name)) is not None:
            yield msgspec.structs.replace(finding("given-up-bookie-returned", path, back[0], name), own_cure=back[1])
        if name in read_only and (leaving := rules.leaving(name, len(writable))) is not None:
            severity, problem, cure = leaving
            found = finding("bookie-leaving", paths.read_only_bookie(name), problem, name)
            yield msgspec.structs.replace(found, own_severity=severity, own_cure=cure)


def _down_bookies(
    paths: Paths, snapshot: Snapshot, registered: Set[str], rules: DownRules, *, do_writers_stop: bool
) -> Iterator[MetadataFinding]:
    cookies = snapshot.cookies or {}
    down = len(snapshot.references.keys() - registered)
    for name in sorted((cookies.keys() | snapshot.references.keys()) - registered):
        if not is_valid_bookie_id(name):
            continue
        reference = snapshot.references.get(name)
        if reference is None:
            found = finding("bookie-down", paths.cookie(name), f"Bookie {name} is not registered.", name)
            yield msgspec.structs.replace(found, own_cure="Start the bookie.") if do_writers_stop else found
            continue
        count = reference.ledgers_count
        named = f"{counted(count, 'ledger references', 'ledgers reference')} it"
        path = paths.cookie(name) if name in cookies else reference.first_paths[0]
        has_lost_cookie = snapshot.cookies is not None and name not in cookies
        if has_lost_cookie:
            problem = f"Bookie {name} has no cookie and is not registered, and {named}."
            found = finding("removed-bookie-with-ledgers", path, problem, name)
        else:
            found = finding("bookie-down-with-ledgers", path, f"Bookie {name} is not registered, and {named}.", name)
        cure = rules.cure(name, has_cookie=not has_lost_cookie)
        yield msgspec.structs.replace(found, own_severity=rules.severity(name, down), own_cure=cure)


def _election_faults(paths: Paths, snapshot: Snapshot) -> Iterator[MetadataFinding]:
    has_leader = paths.pulsar_auditor in snapshot.present
    votes = {
        number: node for name, node in (snapshot.votes or {}).items() if (number := parse_vote_name(name)) is not None
    }
    if not votes:
        if snapshot.votes is not None and not has_leader and (snapshot.writable or snapshot.read_only):
            yield finding("no-auditor", paths.auditor_election, "There are no election candidates.")
        return
    if has_leader:
        yield finding(
            "two-kinds-of-auditor", paths.pulsar_auditor, "Pulsar's driver elected an auditor, and there are votes."
        )
    first = votes[min(votes)]
    if snapshot.elected is None:
        return
    try:
        candidate = decode_vote(first.data)
    except MetadataFormatError:
        return  # already a finding
    if _hint(snapshot.elected) != candidate:
        problem = f"The lowest vote is that of {candidate}, but {shown(snapshot.elected.data)} was elected last."
        yield finding("auditor-not-in-office", paths.auditor_election, problem)


def _hint(node: Node) -> str | None:
    try:
        return decode_vote(node.data)
    except MetadataFormatError:
        return None


def examine_racks(path: str, data: bytes, snapshot: Snapshot) -> Iterator[MetadataFinding]:
    """Bookies with a malformed rack in the node at ``path``; none if the node is not Pulsar's."""
    members = {*(snapshot.writable or {}), *(snapshot.read_only or {}), *(snapshot.cookies or {})}
    hosts = {bookie_id: host for bookie_id in members if (host := host_of(bookie_id, snapshot)) is not None}
    try:
        table = decode_pulsar_bookies(data).racks
    except MetadataFormatError:
        return
    for each in rack_problems([table], {bookie_id: tuple(names_of(bookie_id, hosts)) for bookie_id in members}):
        yield finding("malformed-rack", path, f"Bookie {each.bookie_id} has {each.problem}.", each.bookie_id)
