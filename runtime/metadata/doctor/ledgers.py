"""Problems of a ledger's metadata, with a rule for each. Source: metadata section 6.2. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata, is_valid_bookie_id
from bkctl.runtime.ledger.metadata_format import MissingEndError, NewerFormatError, decode_unsound_metadata
from bkctl.runtime.metadata.doctor.catalogue import MetadataFinding, finding
from bkctl.storage.ids import INVALID_ENTRY_ID
from bkctl.storage.words import listed

Fault = tuple[str, str]
"""Id of the rule, and the sentence that describes the problem."""


def examine_ledger(path: str, ledger_id: int, data: bytes) -> Iterator[MetadataFinding]:
    """All problems of one ledger's bytes."""
    try:
        metadata = decode_unsound_metadata(data)
    except MissingEndError:
        yield finding("closed-without-end", path, "It is closed, but has no last entry id.", ledger_id)
        return
    except NewerFormatError as error:
        yield finding("newer-ledger-format", path, f"Not understood as {error}.", ledger_id)
        return
    except MetadataFormatError as error:
        text = str(error).replace("\n", " ")[:300].rstrip(".")
        yield finding("unreadable-ledger", path, f"Cannot be parsed as {text}.", ledger_id)
        return
    for find in _FAULTS:
        for rule_id, problem in find(metadata):
            yield finding(rule_id, path, problem, ledger_id)


def _quorum_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    sizes = (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    if not sizes[0] >= sizes[1] >= sizes[2] > 0:
        yield "quorums-out-of-order", "Ensemble, write and ack quorum are {}, {} and {}.".format(*sizes)
    elif sizes[1] > sizes[2] == 1:
        yield "ledger-ack-quorum-one", f"One of {sizes[1]} copies is enough to acknowledge an entry."


def _digest_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    if metadata.password is not None and metadata.digest_type is None:
        yield "password-without-digest", "It has a password, but no digest type."
    if metadata.format_version == 1:
        yield "ledger-format-one", "It is stored in version 1, without password and digest type."


def _segment_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    starts = [segment.first_entry_id for segment in metadata.segments]
    if not starts:
        yield "ledger-without-segment", "It has no segment, so no bookie."
        return
    if starts[0] != 0:
        yield "first-segment-not-at-zero", f"The first segment starts at entry {starts[0]}."
    for start, following in itertools.pairwise(starts):
        if following <= start:
            yield "segments-out-of-order", f"A segment at entry {following} follows one at entry {start}."
            break


def _ensemble_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    invalid: dict[str, None] = {}
    for segment in metadata.segments:
        if len(segment.ensemble) != metadata.ensemble_size:
            counts = f"{len(segment.ensemble)} bookies instead of {metadata.ensemble_size}"
            yield "ensemble-size-mismatch", f"The segment at entry {segment.first_entry_id} has {counts}."
            break
    for segment in metadata.segments:
        if len(set(segment.ensemble)) < len(segment.ensemble):
            twice = next(each for each in segment.ensemble if segment.ensemble.count(each) > 1)
            problem = f"The segment at entry {segment.first_entry_id} has bookie {twice!r} more than once."
            yield "duplicate-bookie-in-ensemble", problem
            break
    for segment in metadata.segments:
        invalid.update(dict.fromkeys(each for each in segment.ensemble if not is_valid_bookie_id(each)))
    if invalid:
        names = listed([repr(each[:100]) for each in invalid])
        yield "invalid-bookie-in-ledger", f"It has invalid bookie ids: {names}."


def _end_faults(metadata: LedgerMetadata) -> Iterator[Fault]:
    if not metadata.is_closed:
        return
    last = metadata.last_entry_id
    if metadata.entry_count is None or metadata.length < 0 or (last == INVALID_ENTRY_ID and metadata.length > 0):
        yield "impossible-end", f"It is closed at entry {last} with {metadata.length} bytes."
    # The last segment may be empty: a writer may replace bookies and close before the next entry.
    elif metadata.segments and last + 1 < metadata.segments[-1].first_entry_id:
        start = metadata.segments[-1].first_entry_id
        yield "end-before-last-segment", f"It is closed at entry {last}, but its last segment starts at entry {start}."


_FAULTS: tuple[Callable[[LedgerMetadata], Iterator[Fault]], ...] = (
    _quorum_faults,
    _digest_faults,
    _segment_faults,
    _ensemble_faults,
    _end_faults,
)
