"""One bookie id for another in a ledger's ensembles: the same data answers to a new name. Pure. Source: card 28.

No entry moves. So the new id must be the same bookie, which whoever calls this has to make sure of. The last segment of
a ledger that is not closed belongs to its writer or recoverer, who would lose the next compare-and-set: it is left,
unless the caller knows that nobody writes any more.
"""

from __future__ import annotations

import msgspec

from runtime.ledger.metadata import LedgerMetadata, Segment


class Rewrite(msgspec.Struct, frozen=True):
    """What a rewrite does to one ledger.

    ``segments``: indexes of those that change, none when ``metadata`` is None. ``is_end_left``: the last segment names
    the old id and stays, because the ledger is not closed. ``obstacle``: why the ledger must not be rewritten at all.
    """

    metadata: LedgerMetadata | None = None
    segments: tuple[int, ...] = ()
    is_end_left: bool = False
    obstacle: str | None = None


def rewrite_bookie(metadata: LedgerMetadata, source: str, destination: str, *, has_open_ends: bool) -> Rewrite:
    """The ledger with ``destination`` wherever ``source`` is named; ``has_open_ends``: in open last segments too."""
    segments: list[Segment] = []
    changed: list[int] = []
    is_end_left = False
    for index, segment in enumerate(metadata.segments):
        ensemble = segment.ensemble
        if source not in ensemble:
            segments.append(segment)
            continue
        if destination in ensemble or ensemble.count(source) > 1:
            return Rewrite(obstacle=f"the segment at entry {segment.first_entry_id} would name {destination} twice")
        is_open_end = index == len(metadata.segments) - 1 and not metadata.is_closed
        if is_open_end and not has_open_ends:
            is_end_left = True
            segments.append(segment)
            continue
        renamed = tuple(destination if bookie_id == source else bookie_id for bookie_id in ensemble)
        segments.append(Segment(segment.first_entry_id, renamed))
        changed.append(index)
    if not changed:
        return Rewrite(is_end_left=is_end_left)
    # The creator's token has done its work; whoever rewrites a ledger sets it to 0 (metadata section 6.6).
    renamed_metadata = msgspec.structs.replace(metadata, segments=tuple(segments), creator_token=0)
    return Rewrite(renamed_metadata, tuple(changed), is_end_left)
