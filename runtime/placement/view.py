"""What a placement decision knows about the bookies of a cluster: racks, free space, mode, groups. Pure.

A rack is a path: ``/rack``, or ``/region/rack``. Source: protocol section 9.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

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
