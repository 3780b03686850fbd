"""Writes bad copies of a ledger again, on the bookies that its metadata names."""

from __future__ import annotations

import msgspec

from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.copy.stripe_task import StripeTask
from bkctl.runtime.replication.judge.fragments import fragments_naming, in_and_out_of
from bkctl.runtime.replication.turn.state import BadStripe, StripePosition, TurnState


async def rewrite(turn: TurnState, metadata: LedgerMetadata) -> None:
    """Write bad copies again. Stripes with bad records that must not be written over leave their bookies, too."""
    credentials = credentials_of(turn.task.ledger_id, metadata)
    turn.bad_left.clear()
    turn.bad_stripes.clear()
    live = (await turn.tools.live_bookies.refresh()).live
    for bookie_id, entries in turn.task.bad.items():
        for fragment in fragments_naming(metadata, (bookie_id,)):
            inside, _ = in_and_out_of(entries, (fragment.entries,))
            if fragment.is_open or not inside:
                continue
            for index in fragment.bookie_indexes:
                outside = tuple(sorted(live.difference(fragment.ensemble)))
                stripe_task = StripeTask(
                    credentials, metadata, fragment, index, bookie_id, frozenset(), bad=inside, outside=outside
                )
                outcome = await turn.tools.replicator.copy(
                    stripe_task, turn.activity, turn.require_lock, turn.tools.silent_members
                )
                turn.written.copies += outcome.entries
                turn.written.size_bytes += outcome.bytes_copied
                turn.bad_left += outcome.left
                if outcome.must_move_count:
                    position = StripePosition(fragment.entries.first_entry_id, index)
                    bad = BadStripe(bookie_id, outcome.must_move_count, outcome.must_move)
                    turn.bad_stripes[position] = bad
    if turn.bad_stripes:
        leaving: dict[int, frozenset[str]] = {}
        for position, bad in turn.bad_stripes.items():
            leaving[position.first_entry_id] = leaving.get(position.first_entry_id, frozenset()) | {bad.bookie_id}
        down = metadata.bookies() - (await turn.tools.live_bookies.refresh()).live
        unreachable = turn.task.unreachable | down
        turn.task = msgspec.structs.replace(turn.task, leaving_segments=leaving, unreachable=unreachable)
    turn.is_rewritten = True  # last: after an error, all this begins again
