"""Decoders of everything that maps bookies to racks: Pulsar's node, a table, the answer of a script. Pure.

Pulsar keeps racks and isolation groups in one node, ``/bookies`` in its own ZooKeeper directory:
``{"group": {"host:3181": {"rack": "/rack1", "hostname": "bk1"}}}``. See docs/reference/placement.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from runtime.errors import ConfigurationError, MetadataFormatError
from runtime.ledger.metadata import parse_host_and_port

SCRIPT_ARGUMENTS_MAX = 100
"""Most hosts in one call of a rack script, as in Java."""


class RackTable(msgspec.Struct, frozen=True):
    """Racks by name: bookie ids, hosts, or ``host:port``."""

    racks: Mapping[str, str]

    def rack_of(self, names: Sequence[str]) -> str | None:
        """The rack of the first name that the table has, most specific name first; None if it has none."""
        return next((self.racks[name] for name in names if name in self.racks), None)


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
    for bookie_id, rack in _entries(groups):
        racks.setdefault(bookie_id, rack)
    for bookie_id, rack in tuple(racks.items()):
        address = parse_host_and_port(bookie_id)
        if address is not None:
            racks.setdefault(address[0], rack)
    return PulsarBookies(RackTable(racks), {name: frozenset(members) for name, members in groups.items()})


def _entries(groups: Mapping[str, Mapping[str, _BookieEntry | None]]) -> Iterator[tuple[str, str]]:
    for name in sorted(groups):
        for bookie_id, entry in groups[name].items():
            rack = normal_rack(None if entry is None else entry.rack)
            if rack is not None:
                yield bookie_id, rack


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
    found = ((host, normal_rack(rack)) for host, rack in zip(hosts, racks, strict=True))
    return RackTable({host: rack for host, rack in found if rack is not None})
