"""Decoders of everything that maps bookies to racks: Pulsar's node, a table, the answer of a script. Pure.

Pulsar keeps racks and isolation groups in one node, ``/bookies`` in its own ZooKeeper directory:
``{"group": {"host:3181": {"rack": "/rack1", "hostname": "bk1"}}}``. See docs/reference/placement.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bkctl.runtime.errors import ConfigurationError, MetadataFormatError
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.placement.view import DEFAULT_RACK
from bkctl.storage.words import counted

SCRIPT_ARGUMENTS_MAX = 100
"""Most hosts in one call of a rack script, as in Java."""


class RackTable(msgspec.Struct, frozen=True):
    """Racks by name: bookie ids, hosts, or ``host:port``. ``invalid``: values that are no path, by name."""

    racks: Mapping[str, str]
    invalid: Mapping[str, str] = {}

    def rack_of(self, names: Sequence[str]) -> str | None:
        """The rack of the first name that the table has, most specific name first; None if it has none."""
        return next((self.racks[name] for name in names if name in self.racks), None)


class RackProblem(msgspec.Struct, frozen=True):
    """A rack of a bookie that is no path, or that Java refuses. ``problem`` follows "bookie ID has"."""

    bookie_id: str
    problem: str

    def __str__(self) -> str:
        return f"bookie {self.bookie_id} has {self.problem}"


class PulsarBookies(msgspec.Struct, frozen=True):
    """Contents of Pulsar's node: racks, and the bookie ids of each isolation group."""

    racks: RackTable
    groups: Mapping[str, frozenset[str]]


class _BookieEntry(msgspec.Struct):
    rack: str | None = None


def normal_rack(text: str | None) -> str | None:
    """A rack as every source of racks is compared: with a leading slash and no trailing one; None if it is empty."""
    path = (text or "").strip().strip("/")
    return f"/{path}" if path else None


def decode_pulsar_bookies(data: bytes) -> PulsarBookies:
    """Decode Pulsar's node; MetadataFormatError. A bookie in several groups has the rack of the first that has one.

    A rack applies to all bookies of the host that have no entry of their own, because Pulsar looks up hosts. It never
    looks at ``hostname``.
    """
    try:
        groups = msgspec.json.decode(data or b"{}", type=dict[str, dict[str, _BookieEntry | None]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MetadataFormatError(f"the racks and groups of Pulsar's bookies cannot be decoded: {error}") from error
    racks: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for bookie_id, text in _entries(groups):
        rack = normal_rack(text)
        if rack is None:
            invalid.setdefault(bookie_id, text)
        else:
            racks.setdefault(bookie_id, rack)
    for known in (racks, invalid):
        for bookie_id, rack in tuple(known.items()):
            address = parse_host_and_port(bookie_id)
            if address is not None:
                known.setdefault(address[0], rack)
    invalid = {name: text for name, text in invalid.items() if name not in racks}
    return PulsarBookies(RackTable(racks, invalid), {name: frozenset(members) for name, members in groups.items()})


def _entries(groups: Mapping[str, Mapping[str, _BookieEntry | None]]) -> Iterator[tuple[str, str]]:
    for name in sorted(groups):
        for bookie_id, entry in groups[name].items():
            if entry is not None and entry.rack is not None:
                yield bookie_id, entry.rack


def decode_rack_table(text: str) -> RackTable:
    """Decode a table with a bookie id, host or address, and its rack, on each line; ConfigurationError.

    Blank lines, and everything after a ``#``, are ignored.
    """
    racks: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        rack = normal_rack(words[1]) if len(words) == 2 else None
        if rack is None:
            raise ConfigurationError(f"rack table, line {number}: write a bookie or host, a blank, and a rack")
        if racks.setdefault(words[0], rack) != rack:
            raise ConfigurationError(f"rack table, line {number}: {words[0]} has another rack further up")
    return RackTable(racks)


def decode_script_answer(hosts: Sequence[str], output: str) -> RackTable:
    """Decode what a rack script printed: one rack for each host, in their order; ConfigurationError.

    Java puts all hosts of a wrong answer into the default rack. That would break placement rules without notice.
    """
    racks = output.split()
    if len(racks) != len(hosts):
        raise ConfigurationError(f"the rack script printed {len(racks)} racks for {len(hosts)} hosts")
    found = {host: (normal_rack(text), text) for host, text in zip(hosts, racks, strict=True)}
    return RackTable(
        {host: rack for host, (rack, _) in found.items() if rack is not None},
        {host: text for host, (rack, text) in found.items() if rack is None},
    )


def rack_problems(tables: Sequence[RackTable], names_of: Mapping[str, Sequence[str]]) -> tuple[RackProblem, ...]:
    """Bookies whose racks are no paths, or paths of another depth than most have, by id.

    ``names_of``: the names of each bookie, most specific first. Of different depths a Java client keeps the one that it
    meets first, and never chooses the others. A bookie that no table names is in the default rack, without a problem.
    """
    racks: dict[str, str] = {}
    problems: dict[str, str] = {}
    for bookie_id, names in names_of.items():
        rack = next((rack for table in tables if (rack := table.rack_of(names)) is not None), None)
        if rack is not None:
            racks[bookie_id] = rack
            continue
        text = next((table.invalid[name] for table in tables for name in names if name in table.invalid), None)
        if text is not None:
            problems[bookie_id] = f'the rack "{text}", which counts as {DEFAULT_RACK}: write /RACK, or /REGION/RACK'
    depths = Counter(rack.count("/") for rack in racks.values())
    usual = max(depths, key=lambda depth: (depths[depth], -depth), default=0)
    for bookie_id, rack in racks.items():
        if rack.count("/") != usual:
            form = {1: "/RACK", 2: "/REGION/RACK"}.get(usual, f"a path of {usual} parts")
            others = counted(depths[usual], "other bookie has", "other bookies have")
            problems[bookie_id] = f'the rack "{rack}", which Java refuses: {others} the form {form}, use one form'
    return tuple(RackProblem(*each) for each in sorted(problems.items()))
