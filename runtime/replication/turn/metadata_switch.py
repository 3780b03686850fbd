"""The write that names new members of a ledger: a compare-and-set that fails if one of them has left the cluster.

It is one transaction with a check that each target is writable and has its cookie. Another command makes a bookie
read-only, and deletes its cookie, before it scans all ledgers for the last time. So our write comes before that, and
the scan sees it, or it fails, and the stripes of that target are copied again. Source: replication section 15.1.
"""

from __future__ import annotations

from typing import TypeAlias

from bkctl.runtime.errors import NoNodeError
from bkctl.runtime.ledger.changes import replace_in_segment
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.replication.lock import ReplicationLock
from bkctl.runtime.metadata.store import NodeWrite, Versioned
from bkctl.runtime.replication.turn.live_bookies import LiveBookies

NewMembers: TypeAlias = dict[int, dict[int, str]]
"""New bookies by ensemble index, by first entry of the segment: one compare-and-set."""


class LockLostError(Exception):
    """The lock was lost, so another process may be copying now: stop writing."""


class TargetGoneError(Exception):
    """A target was not writable, or had no cookie, when the metadata was to name it; nothing was written."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target


def changed(metadata: LedgerMetadata, change: NewMembers) -> LedgerMetadata:
    """The metadata with the new bookies."""
    for first_entry_id, replacements in change.items():
        metadata = replace_in_segment(metadata, first_entry_id, replacements)
    return metadata


async def switch_metadata(
    ledgers: LedgerStore,
    live_bookies: LiveBookies,
    lock: ReplicationLock,
    stored: Versioned[LedgerMetadata],
    change: NewMembers,
    *,
    is_released: bool,
) -> Versioned[LedgerMetadata]:
    """Carry out a change of what is stored, and release the lock in the same transaction if ``is_released``.

    TargetGoneError, LockLostError, BadVersionError, LedgerNotFoundError. MetadataUnavailableError: it may be done.
    """
    targets = sorted({target for replacements in change.values() for target in replacements.values()})
    checks = {check: target for target in targets for check in live_bookies.checks(target)}
    metadata = changed(stored.value, change)

    async def write(*others: NodeWrite) -> Versioned[LedgerMetadata]:
        return await ledgers.write(lock.ledger_id, metadata, stored.version, *others, *checks)

    try:
        return await (lock.release_in(write) if is_released else write())
    except NoNodeError as error:
        for check, target in checks.items():
            if check.path == error.path:
                raise TargetGoneError(target) from error
        raise LockLostError from error
