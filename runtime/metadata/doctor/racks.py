"""Rule of the metadata doctor for Pulsar's racks, which are outside of the ledgers root."""

from __future__ import annotations

from collections.abc import Iterator

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.doctor.bookies import Snapshot, host_of
from bkctl.runtime.metadata.doctor.catalogue import MetadataFinding, finding
from bkctl.runtime.placement.rack_sources import decode_pulsar_bookies, rack_problems
from bkctl.runtime.placement.survey import names_of


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
