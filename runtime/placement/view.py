"""What a placement decision knows about the bookies of a cluster: racks, free space, mode, groups. Pure.

A survey is what was read at one moment. A view is a survey for the members of one ensemble.

A rack is a path: ``/rack``, or ``/region/rack``. Source: protocol section 9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from runtime.ledger.metadata import parse_host_and_port
from runtime.placement.rack_sources import RackTable

DEFAULT_RACK = "/default-rack"
"""The rack of a registered bookie that no source of racks names, as in Java. All such bookies share it."""
_DEFAULT_RACKS = frozenset({DEFAULT_RACK, "/default-region/default-rack"})


class KnownBookie(msgspec.Struct, frozen=True, kw_only=True):
    """One bookie. ``rack`` None: unknown, counts for no rack. A bookie that is down keeps the rack of its source.

    ``total_bytes`` and ``free_bytes`` are None if the bookie was not asked, or did not answer.
    """

    is_writable: bool = True
    rack: str | None = DEFAULT_RACK
    total_bytes: int | None = None
    free_bytes: int | None = None


class ClusterView(msgspec.Struct, frozen=True):
    """The bookies of a cluster by id, and Pulsar's isolation groups (bookie ids by group)."""

    bookies: Mapping[str, KnownBookie]
    groups: Mapping[str, frozenset[str]] = {}

    def rack_of(self, bookie_id: str) -> str | None:
        """The rack of a bookie; None if it is unknown."""
        known = self.bookies.get(bookie_id)
        return None if known is None else known.rack

    @property
    def writable(self) -> frozenset[str]:
        """The bookies that accept new ledgers."""
        return frozenset(bookie_id for bookie_id, known in self.bookies.items() if known.is_writable)


def region_of(rack: str | None) -> str | None:
    """The first part of a rack's path, as in Java; None if the rack is unknown."""
    return None if rack is None else rack.split("/")[1]


def is_default_rack(rack: str | None) -> bool:
    """Whether it is the rack of bookies that no source of racks names. An unknown rack is not."""
    return rack in _DEFAULT_RACKS


class BookieSpace(msgspec.Struct, frozen=True):
    """Bytes of a bookie's ledger directories."""

    total_bytes: int
    free_bytes: int


class BookieSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The writable bookies, and what the sources know. A rack is from the first of the ``tables`` that has one.

    ``hosts``: hosts of registered bookies whose ids do not contain them. ``groups``: Pulsar's isolation groups.
    """

    writable: frozenset[str]
    tables: tuple[RackTable, ...] = ()
    hosts: Mapping[str, str] = {}
    space: Mapping[str, BookieSpace] = {}
    groups: Mapping[str, frozenset[str]] = {}

    def rack_of(self, bookie_id: str) -> str | None:
        """The rack from the sources; None if none of them has it."""
        names = tuple(names_of(bookie_id, self.hosts))
        return next((rack for table in self.tables if (rack := table.rack_of(names)) is not None), None)

    def view(self, members: Collection[str] = (), bytes_assigned: Mapping[str, int] | None = None) -> ClusterView:
        """The writable bookies and the given ``members`` of an ensemble, which may be down.

        ``bytes_assigned``: copies on their way, which take space that the bookies still report as free.
        """
        assigned = bytes_assigned or {}
        bookies = {
            bookie_id: KnownBookie(is_writable=False, rack=self.rack_of(bookie_id))
            for bookie_id in members
            if bookie_id not in self.writable
        }
        for bookie_id in self.writable:
            space = self.space.get(bookie_id)
            bookies[bookie_id] = KnownBookie(
                rack=(self.rack_of(bookie_id) if self.tables else None) or DEFAULT_RACK,
                total_bytes=None if space is None else space.total_bytes,
                free_bytes=None if space is None else space.free_bytes - assigned.get(bookie_id, 0),
            )
        return ClusterView(bookies, self.groups)


def names_of(bookie_id: str, hosts: Mapping[str, str]) -> Iterator[str]:
    """The names by which a source may know a bookie, most specific first: its id, its host."""
    yield bookie_id
    host = hosts.get(bookie_id)
    if host is not None:
        yield host
    address = parse_host_and_port(bookie_id)
    if address is not None:
        yield address[0]
