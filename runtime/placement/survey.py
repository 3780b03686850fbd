"""A survey of the bookies of a cluster: what was read at one moment, and the rules that follow from it. Pure.

A view is a survey for the members of one ensemble.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping

import msgspec

from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.placement.rack_sources import RackProblem, RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.view import DEFAULT_RACK, BookieSpace, ClusterView, KnownBookie, region_of


class BookieSurvey(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The writable bookies, and what the sources know. A rack is from the first of the ``tables`` that has one.

    ``hosts``: hosts of registered bookies whose ids do not contain them. ``groups``: Pulsar's isolation groups.
    ``rules``: what a choice has to keep. ``are_rules_known`` False: there are none because no source was found, but
    other clients may know racks. ``origin``: a sentence that says where racks and groups come from.
    ``rack_problems``: bookies whose racks are no paths or of another depth.
    """

    writable: frozenset[str]
    tables: tuple[RackTable, ...] = ()
    hosts: Mapping[str, str] = {}
    space: Mapping[str, BookieSpace] = {}
    groups: Mapping[str, frozenset[str]] = {}
    rules: PlacementRules = PlacementRules()
    are_rules_known: bool = False
    origin: str = ""
    rack_problems: tuple[RackProblem, ...] = ()

    @property
    def has_rules(self) -> bool:
        """Whether an ensemble can break a rule."""
        return self.rules.has_racks or bool(self.groups)

    def rack_of(self, bookie_id: str) -> str | None:
        """The rack from the sources; None if none of them has it."""
        names = tuple(names_of(bookie_id, self.hosts))
        return next((rack for table in self.tables if (rack := table.rack_of(names)) is not None), None)

    @functools.cached_property
    def _known(self) -> dict[str, KnownBookie]:
        """The writable bookies. For each copy that is placed, all of them are looked at."""
        found = {}
        for bookie_id in self.writable:
            space = self.space.get(bookie_id)
            found[bookie_id] = KnownBookie(
                rack=(self.rack_of(bookie_id) if self.tables else None) or DEFAULT_RACK,
                total_bytes=None if space is None else space.total_bytes,
                free_bytes=None if space is None else space.free_bytes,
            )
        return found

    def view(self, members: Collection[str] = (), bytes_assigned: Mapping[str, int] | None = None) -> ClusterView:
        """The writable bookies and the given ``members`` of an ensemble, which may be down.

        ``bytes_assigned``: copies on their way, which take space that the bookies still report as free.
        """
        bookies = self._known.copy()
        for bookie_id in members:
            if bookie_id not in self.writable:
                bookies[bookie_id] = KnownBookie(is_writable=False, rack=self.rack_of(bookie_id))
        for bookie_id, size_bytes in (bytes_assigned or {}).items() if self.space else ():
            known = self._known.get(bookie_id)
            if known is not None and known.free_bytes is not None:
                bookies[bookie_id] = msgspec.structs.replace(known, free_bytes=known.free_bytes - size_bytes)
        return ClusterView(bookies, self.groups)


def rules_that_apply(survey: BookieSurvey, live: Collection[str]) -> PlacementRules:
    """The rules of the cluster, without those that no ensemble of the ``live`` bookies could keep."""
    view = survey.view(live)
    racks = {rack for bookie_id in live if (rack := view.rack_of(bookie_id)) is not None}
    rules = survey.rules
    if len({region_of(rack) for rack in racks}) < 2:
        rules = msgspec.structs.replace(rules, min_regions_per_write_quorum=0)
    if len(racks) < 2:
        rules = msgspec.structs.replace(rules, min_racks_per_write_quorum=0, needs_known_rack=False)
    return rules


def names_of(bookie_id: str, hosts: Mapping[str, str]) -> Iterator[str]:
    """The names by which a source may know a bookie, most specific first: its id, its host."""
    yield bookie_id
    host = hosts.get(bookie_id)
    if host is not None:
        yield host
    address = parse_host_and_port(bookie_id)
    if address is not None:
        yield address[0]
