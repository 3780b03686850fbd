"""Ledger metadata as no writer makes it and every reader may meet it: all that can be decoded from a node."""

from __future__ import annotations

from hypothesis import strategies as st

from bkctl.runtime.ledger.changes import find_fault
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment

GREATEST = 2**63 - 1
BOOKIES = tuple(f"b{number}" for number in range(5))
EDGES = st.sampled_from([-(2**63), -2, -1, 0, 1, 4, 5, 2**31, 2**32, 2**53, 2**62, GREATEST - 1, GREATEST])
NUMBERS = EDGES | st.integers(-(2**63), GREATEST) | st.integers(-3, 40)


@st.composite
def any_metadata(draw: st.DrawFn) -> LedgerMetadata:
    """Sound in shape, but with any end, length and time, and bookies that may appear twice in an ensemble."""
    size = draw(st.integers(1, 4))
    write_quorum_size = draw(st.integers(1, size))
    starts = {0, *draw(st.lists(st.sampled_from([1, 5, 6, 2**62, GREATEST]) | st.integers(1, 30), max_size=3))}
    ensembles = st.tuples(*[st.sampled_from(BOOKIES)] * size)
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        ensemble_size=size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=draw(st.integers(1, write_quorum_size)),
        segments=tuple(Segment(start, draw(ensembles)) for start in sorted(starts)),
        state=state,
        last_entry_id=draw(NUMBERS) if is_closed else -1,
        length=draw(NUMBERS) if is_closed else 0,
        digest_type=draw(st.sampled_from(DigestType)),
        password=draw(st.none() | st.binary(max_size=5)),
        ctime_ms=draw(st.none() | NUMBERS),
        custom_metadata=tuple(
            sorted(draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=2)).items())
        ),
    )
    assert find_fault(metadata) is None
    return metadata
