"""Reads the last add confirmed from an ensemble, until the answers cover every write quorum.

Sources: protocol sections 2.3 (coverage), 6.1 step 2 (fencing) and 7.2 (last add confirmed of an open ledger).
"""

from __future__ import annotations

from collections.abc import Callable

from bkctl.runtime.client.entry_read import Replies, damaged_copy
from bkctl.runtime.client.ports import ClientPorts, LedgerCredentials
from bkctl.runtime.errors import (
    AuthenticationRequiredError,
    BookieError,
    EntryDigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.write_set import QuorumCoverage
from bkctl.runtime.ports import LacReply, ReadReply
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import INVALID_ENTRY_ID


async def read_last_add_confirmed(
    ports: ClientPorts,
    credentials: LedgerCredentials,
    metadata: LedgerMetadata,
    *,
    is_fencing: bool,
    on_answer: Callable[[str, BkctlError | None], None] = lambda _bookie_id, _error: None,
) -> int:
    """Last add confirmed according to the bookies of the last segment; -1: no entry is confirmed. At least the LAC that
    the writer stored with its last acknowledged entry.

    ``is_fencing``: every bookie asked fences the ledger first, so on return no ordinary add can reach an ack quorum.
    Returns at the first valid answer (an entry with a correct digest, or a negative) that completes coverage.
    ``on_answer`` is called for each answer before that, with None if it is valid.

    Raises UnauthorizedError as soon as any bookie rejects the key. If all have answered without coverage, raises the
    last error, BookieError or DigestMismatchError, or the first refusal of this client: AuthenticationRequiredError.
    """
    coverage = QuorumCoverage(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    ensemble = metadata.last_segment.ensemble
    replies = Replies[int, ReadReply | LacReply](ports.clock)
    for index, bookie_id in enumerate(ensemble):
        if is_fencing:
            key = credentials.master_key
            request = ports.bookies.read(bookie_id, credentials.ledger_id, INVALID_ENTRY_ID, fence_with=key)
            replies.expect(index, request)
        else:
            replies.expect(index, ports.bookies.read_lac(bookie_id, credentials.ledger_id))
    # Earlier segments contain only acknowledged entries; starting lower could undo a segment (rule 11).
    confirmed = metadata.last_segment.first_entry_id - 1
    error: BkctlError | None = None
    refusal: AuthenticationRequiredError | None = None
    while replies.outstanding:
        answer = await replies.next()
        assert answer is not None, "without a time-out there is an answer"
        index, outcome = answer
        if isinstance(outcome, UnauthorizedError):
            raise outcome
        if isinstance(outcome, BookieError) and not isinstance(outcome, NoSuchEntryError | NoSuchLedgerError):
            ports.suspects.add(ensemble[index])
            error = outcome
            refusal = refusal or (outcome if isinstance(outcome, AuthenticationRequiredError) else None)
            on_answer(ensemble[index], error)
            continue
        coverage.note_known(index)  # the bookie processed the request, even if its copy is damaged
        if not isinstance(outcome, BookieError):
            try:
                confirmed = max(confirmed, reported_lac(outcome, credentials.codec))
            except EntryDigestError as damage:
                # A damaged copy does not complete the coverage, because its LAC is unknown.
                error = damaged_copy(credentials.ledger_id, INVALID_ENTRY_ID, ensemble[index], damage)
                on_answer(ensemble[index], error)
                continue
        on_answer(ensemble[index], None)
        if coverage.is_covered:
            return confirmed
    assert error is not None, "valid answers of all bookies are coverage"
    raise refusal or error


async def try_read_last_add_confirmed(
    ports: ClientPorts, credentials: LedgerCredentials, metadata: LedgerMetadata, above: int
) -> int:
    """The first last add confirmed greater than ``above`` that any bookie of the last segment reports; otherwise, once
    all have answered, the highest reported.

    One answer suffices, so this works with most bookies down, but acknowledged entries may be missing from it. If no
    bookie gives a valid answer, raises the last error: BookieError or DigestMismatchError.
    """
    ensemble = metadata.last_segment.ensemble
    replies = Replies[int, LacReply](ports.clock)
    for index, bookie_id in enumerate(ensemble):
        replies.expect(index, ports.bookies.read_lac(bookie_id, credentials.ledger_id))
    highest: int | None = None
    error: BkctlError | None = None
    while replies.outstanding and (highest is None or highest <= above):
        answer = await replies.next()
        assert answer is not None, "without a time-out there is an answer"
        index, outcome = answer
        try:
            reported = (
                INVALID_ENTRY_ID if isinstance(outcome, BookieError) else reported_lac(outcome, credentials.codec)
            )
        except EntryDigestError as damage:
            error = damaged_copy(credentials.ledger_id, INVALID_ENTRY_ID, ensemble[index], damage)
            continue
        if isinstance(outcome, BookieError) and not isinstance(outcome, NoSuchEntryError | NoSuchLedgerError):
            error = outcome
            continue
        highest = reported if highest is None else max(highest, reported)
    if highest is None:
        assert error is not None, "an ensemble has at least one member"
        raise error
    return highest


def reported_lac(reply: ReadReply | LacReply, codec: EntryCodec) -> int:
    """The last add confirmed in an answer, from digest-protected parts only; EntryDigestError."""
    if isinstance(reply, ReadReply):
        return codec.decode(None, reply.body).credible_last_add_confirmed
    explicit = INVALID_ENTRY_ID if reply.lac_body is None else codec.decode_lac(reply.lac_body)
    if reply.last_entry_body is None:
        return explicit
    return max(explicit, codec.decode(None, reply.last_entry_body).credible_last_add_confirmed)
