"""What metadata may take the place of other metadata of the same ledger, whoever brings it. Pure.

Metadata that comes back from a file, be it a backup, an export or the trash, is older than it looks. So a state never
moves back, a last entry is never lowered, a closed end never altered; what was fixed when the ledger was created stays,
and segments go on where the present ones end. Source: metadata section 6.7.
"""

from __future__ import annotations

from runtime.ledger.metadata import LedgerMetadata


def find_regression(present: LedgerMetadata, following: LedgerMetadata, source: str) -> str | None:
    """Why ``following``, which stands in ``source`` ("the backup"), must not replace ``present``; None if it may."""
    if present.state > following.state:
        return f"it is {present.state.name} by now, in {source} {following.state.name}: a state never moves back"
    if present.is_closed and has_other_end(present, following):
        return _other_end(present, following, source)
    if _fixed_at_creation(present) != _fixed_at_creation(following):
        return f"{source}'s is another ledger of the same id"
    if following.is_closed and following.last_entry_id < present.last_segment.first_entry_id - 1:
        last_known = present.last_segment.first_entry_id - 1
        return f"it has entries up to {last_known} at least, in {source} it ends at {following.last_entry_id}"
    return None if _goes_on(present, following) else f"its segments went another way than in {source}"


def _other_end(present: LedgerMetadata, following: LedgerMetadata, source: str) -> str:
    if present.last_entry_id != following.last_entry_id:
        return f"it is closed at entry {present.last_entry_id}, in {source} at {following.last_entry_id}"
    return f"it is closed with {present.length} bytes, in {source} with {following.length}"


def _goes_on(present: LedgerMetadata, following: LedgerMetadata) -> bool:
    """Whether segments start where the present ones do, and go on from there.

    Who closes a ledger may drop a last segment that got no entry (as Java's writer does); of a closed one nothing goes.
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
