"""A last look before an unclosed ledger is deleted: does any bookie of the cluster have an entry of it?"""

from __future__ import annotations

import asyncio

import msgspec

from runtime.client.ports import ClientPorts, credentials_of
from runtime.ledger.metadata import LedgerMetadata
from runtime.metadata.bookies.registration import RegistrationClient
from runtime.replication.loss_proof import last_entry_on


class LastLook(msgspec.Struct, frozen=True):
    """What the bookies answered.

    ``reason``: why the ledger must not be deleted; None when every registered bookie denies having an entry of it.
    ``unseen``: bookies that the metadata names, that are not registered and do not answer.
    """

    reason: str | None
    unseen: tuple[str, ...]


async def look_for_entries(
    ports: ClientPorts,
    registration: RegistrationClient,
    ledger_id: int,
    metadata: LedgerMetadata,
    *,
    is_fencing: bool = False,
) -> LastLook:
    """Ask every registered bookie, and every bookie that the metadata names, for its last entry of the ledger.

    ``is_fencing``: the bookies of the last segment fence the ledger first, so its writer can add nothing afterwards.
    """
    live = (await registration.snapshot()).live
    credentials = credentials_of(ledger_id, metadata)
    fenced = frozenset(metadata.last_segment.ensemble) if is_fencing else frozenset()
    bookie_ids = sorted(live | metadata.bookies())
    answers = await asyncio.gather(
        *(last_entry_on(ports, each, credentials, is_fencing=each in fenced) for each in bookie_ids)
    )
    reason = None
    unseen = []
    for bookie_id, answer in zip(bookie_ids, answers, strict=True):
        if isinstance(answer, str) and bookie_id not in live:
            unseen.append(bookie_id)
        elif isinstance(answer, str):
            reason = reason or answer
        elif answer >= 0:
            reason = f"bookie {bookie_id} has entry {answer}"
    return LastLook(reason, tuple(unseen))
