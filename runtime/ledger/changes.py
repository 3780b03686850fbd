"""Legal changes of a ledger's metadata. Source: metadata section 6.7, protocol sections 1.1 and 4.2.

    OPEN -> OPEN                  replace_bookies: append a segment, or swap within the last one
    OPEN -> IN_RECOVERY           to_in_recovery
    OPEN, IN_RECOVERY -> CLOSED   to_closed
    any -> same                   replace_in_segment: copies of old entries were moved

Each function takes one value and returns the next. The caller writes it by compare-and-set, and decides again after a
conflict. An illegal change raises ValueError: the caller must check the state first.

For metadata from a backup, an export or the trash, which may be outdated, see ``find_regression``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment
from bkctl.storage.ids import INVALID_ENTRY_ID


def check_quorum_sizes(ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
    """ConfigurationError unless ensemble >= write quorum >= ack quorum > 0."""
    if not ensemble_size >= write_quorum_size >= ack_quorum_size > 0:
        raise ConfigurationError(
            "ensemble size >= write quorum >= ack quorum > 0 is required, "
            f"got {ensemble_size}/{write_quorum_size}/{ack_quorum_size}"
        )


def new_ledger(
    ensemble: tuple[str, ...],
    write_quorum_size: int,
    ack_quorum_size: int,
    digest_type: DigestType,
    password: bytes,
    *,
    custom_metadata: tuple[tuple[str, bytes], ...] = (),
    ctime_ms: int | None = None,
) -> LedgerMetadata:
    """Metadata of a new ledger; ConfigurationError for invalid quorum sizes."""
    check_quorum_sizes(len(ensemble), write_quorum_size, ack_quorum_size)
    return LedgerMetadata(
        ensemble_size=len(ensemble),
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
        segments=(Segment(0, ensemble),),
        digest_type=digest_type,
        password=password,
        ctime_ms=ctime_ms,
        custom_metadata=custom_metadata,
    )


def replace_bookies(metadata: LedgerMetadata, first_entry_id: int, replacements: Mapping[int, str]) -> LedgerMetadata:
    """Replace bookies by ``replacements`` (index to bookie id) from ``first_entry_id`` on, which is LAC + 1.

    Appends a segment, or replaces the last one if it starts at this entry, because none of its entries is confirmed
    then. A recovery keeps such changes in memory until ``to_closed`` publishes them.
    """
    if metadata.is_closed:
        raise ValueError("a closed ledger accepts no new segment")
    last = metadata.last_segment
    if first_entry_id < last.first_entry_id:
        raise ValueError(f"a segment at entry {first_entry_id} would precede the last one at {last.first_entry_id}")
    segment = Segment(first_entry_id, _replace(last.ensemble, replacements))
    kept = metadata.segments[:-1] if first_entry_id == last.first_entry_id else metadata.segments
    return msgspec.structs.replace(metadata, segments=(*kept, segment))


def replace_in_segment(
    metadata: LedgerMetadata, first_entry_id: int, replacements: Mapping[int, str]
) -> LedgerMetadata:
    """Replace bookies in the segment that starts at ``first_entry_id`` by others with verified copies of its entries.

    Raises ValueError for the last segment of a ledger that is not CLOSED: it belongs to its writer or its recovery.
    """
    starts = [segment.first_entry_id for segment in metadata.segments]
    if first_entry_id not in starts:
        raise ValueError(f"no segment starts at entry {first_entry_id}")
    index = starts.index(first_entry_id)
    if not metadata.is_closed and index == len(starts) - 1:
        raise ValueError("the last segment of an open ledger must not be changed here")
    segments = list(metadata.segments)
    segments[index] = Segment(first_entry_id, _replace(segments[index].ensemble, replacements))
    return msgspec.structs.replace(metadata, segments=tuple(segments))


def _replace(ensemble: tuple[str, ...], replacements: Mapping[int, str]) -> tuple[str, ...]:
    for index in replacements:
        if not 0 <= index < len(ensemble):
            raise ValueError(f"no index {index} in an ensemble of {len(ensemble)}")
    changed = tuple(replacements.get(index, bookie_id) for index, bookie_id in enumerate(ensemble))
    introduced = set(changed).difference(ensemble)
    if len(introduced) < sum(new != old for new, old in zip(changed, ensemble, strict=True)):
        raise ValueError(f"a bookie would appear twice in {changed}")
    return changed


def to_in_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
    """Mark the ledger as in recovery; if it already is, return it unchanged."""
    if metadata.is_closed:
        raise ValueError("a closed ledger is never recovered again")
    return msgspec.structs.replace(metadata, state=LedgerState.IN_RECOVERY)


def to_closed(
    metadata: LedgerMetadata, last_entry_id: int, length: int, segments: tuple[Segment, ...] | None = None
) -> LedgerMetadata:
    """Set the final end. ``length`` is in payload bytes; an empty ledger has the end -1 and the length 0.

    ``segments``: the segments as changed by recovery, which are published only by the close (protocol 6).
    """
    if metadata.is_closed:
        raise ValueError("the ledger is already closed")
    if last_entry_id < INVALID_ENTRY_ID or length < 0 or (last_entry_id == INVALID_ENTRY_ID and length > 0):
        raise ValueError(f"a ledger cannot end at entry {last_entry_id} with length {length}")
    closed = msgspec.structs.replace(
        metadata,
        state=LedgerState.CLOSED,
        last_entry_id=last_entry_id,
        length=length,
        segments=metadata.segments if segments is None else segments,
    )
    if fault := find_fault(closed):
        raise ValueError(fault)
    return closed


def find_fault(metadata: LedgerMetadata) -> str | None:
    """The first structural rule that the metadata violates, as a sentence; None if it is valid."""
    if not metadata.ensemble_size >= metadata.write_quorum_size >= metadata.ack_quorum_size > 0:
        sizes = f"{metadata.ensemble_size}/{metadata.write_quorum_size}/{metadata.ack_quorum_size}"
        return f"quorum sizes {sizes} are impossible"
    if metadata.password is not None and metadata.digest_type is None:
        return "there is a password but no digest type"
    return _find_segment_fault(metadata)


def _find_segment_fault(metadata: LedgerMetadata) -> str | None:
    starts = [segment.first_entry_id for segment in metadata.segments]
    if not starts:
        return "there is no segment"
    if starts[0] != 0:
        return f"the first segment starts at entry {starts[0]}, not 0"
    if any(following <= start for start, following in itertools.pairwise(starts)):
        return "the segments do not ascend"
    for segment in metadata.segments:
        count = len(segment.ensemble)
        if count != metadata.ensemble_size:
            return f"the segment at {segment.first_entry_id} has {count} bookies, not {metadata.ensemble_size}"
    return None


def find_regression(present: LedgerMetadata, following: LedgerMetadata, source: str) -> str | None:
    """Why ``following``, which is from ``source`` ("the backup"), must not replace ``present``; None if it may.

    A state never moves back, a last entry never becomes lower, and a closed end never changes. Fields that are fixed at
    creation stay, and the new segments continue the present ones.
    """
    if present.state > following.state:
        return f"its state is {present.state.name}, in {source} {following.state.name}: a state never moves back"
    if present.is_closed and has_other_end(present, following):
        return _other_end(present, following, source)
    if _fixed_at_creation(present) != _fixed_at_creation(following):
        return f"{source} has a different ledger with the same id"
    if following.is_closed and following.last_entry_id < present.last_segment.first_entry_id - 1:
        last_known = present.last_segment.first_entry_id - 1
        return f"it has entries up to at least {last_known}, but in {source} it ends at {following.last_entry_id}"
    return None if _goes_on(present, following) else f"its segments differ from those in {source}"


def _other_end(present: LedgerMetadata, following: LedgerMetadata, source: str) -> str:
    if present.last_entry_id != following.last_entry_id:
        return f"it is closed at entry {present.last_entry_id}, but in {source} at {following.last_entry_id}"
    return f"it is closed with {present.length} bytes, but in {source} with {following.length}"


def _goes_on(present: LedgerMetadata, following: LedgerMetadata) -> bool:
    """Whether the new segments start at the same entries as the present ones, and continue after them.

    A close may drop an empty last segment (as Java's writer does). A closed ledger must keep all segments.
    """
    starts, following_starts = _starts(present), _starts(following)
    if present.is_closed:
        return starts == following_starts
    if following.is_closed and starts[-1] == following.last_entry_id + 1 and starts[-1] not in following_starts:
        starts.pop()
    return starts == following_starts[: len(starts)]


def has_other_end(present: LedgerMetadata, following: LedgerMetadata) -> bool:
    """Whether two closed ledgers end differently."""
    return (present.last_entry_id, present.length) != (following.last_entry_id, following.length)


def _starts(metadata: LedgerMetadata) -> list[int]:
    return [segment.first_entry_id for segment in metadata.segments]


def _fixed_at_creation(metadata: LedgerMetadata) -> tuple[object, ...]:
    return (
        metadata.ensemble_size,
        metadata.write_quorum_size,
        metadata.ack_quorum_size,
        metadata.digest_type,
        metadata.password,
        metadata.ctime_ms,
        sorted(metadata.custom_metadata),
    )
