"""Ledgers of which an operator gave up bookies, and bookies of which nothing else is left. Writes nothing."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Set
from contextlib import aclosing
from typing import TYPE_CHECKING

from bkctl.runtime.errors import BookieNotFoundError, LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote, bookies_given_up
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.replication.judge.advice import GivenUpLedger
from bkctl.runtime.replication.judge.verdict import ReplicationState, judge_metadata, wanted_members
from bkctl.storage.words import counted

if TYPE_CHECKING:  # bkctl status --help does not load a client
    from bkctl.runtime.client.ports import ClientPorts

_READ_IN_FLIGHT_MAX = 64


async def judge_given_up(
    ledgers: LedgerStore, given_up: Mapping[int, GivenUpNote], live: Set[str]
) -> dict[int, GivenUpLedger]:
    """Of the ledgers with notes, those that exist and have no other copy of some entries."""

    async def judge(ledger_id: int) -> tuple[int, GivenUpLedger] | None:
        try:
            stored = await ledgers.read(ledger_id)
        except (LedgerNotFoundError, MetadataFormatError):
            return None
        given = frozenset(bookies_given_up(given_up[ledger_id]))
        verdict = judge_metadata(ledger_id, stored.value, live, given_up[ledger_id])
        loss = GivenUpLedger(stored.value, given - live, verdict.replication)
        states = {verdict.replication, *(row.replication for row in verdict.rows)}
        is_lost = ReplicationState.GIVEN_UP in states
        return (ledger_id, loss) if is_lost else None

    async with aclosing(pipelined(each_of(given_up), judge, _READ_IN_FLIGHT_MAX)) as judged:
        return dict([each async for each in judged if each is not None])


async def find_removed(ports: ClientPorts, store: MetadataStore, bookie_ids: Collection[str]) -> dict[str, int]:
    """Those of the bookies that are not in the cluster, with the ledgers that name each: all were given up with it.

    The others are registered, have a cookie, or a ledger needs, or may need, what they had. Reads all ledgers if one
    has neither.
    """
    live = (await ports.registrations.snapshot()).live
    absent = set(bookie_ids).difference(live, await ports.registrations.with_cookie())
    if not absent:
        return {}
    given_up = await read_given_up(RecoveryNotes(store, ports.ledgers.root))
    named: collections.Counter[str] = collections.Counter()
    wanted: set[str] = set()
    is_complete = True
    async with aclosing(ports.ledgers.read_all()) as ledgers:
        async for ledger_id, found in ledgers:
            if not isinstance(found, Versioned):
                is_complete = False
            elif members := absent & found.value.bookies():
                rows = judge_metadata(ledger_id, found.value, live, given_up.get(ledger_id)).rows
                wanted |= wanted_members(rows, members) & members
                named.update(members)
    wanted |= set() if is_complete else named.keys()
    return {each: named[each] for each in absent - wanted}


def require_none_named(removed: Mapping[str, int]) -> None:
    """BookieNotFoundError if one of these bookies, of which ``find_removed`` found how many ledgers name them, is
    named."""
    for bookie_id, count in sorted(removed.items()):
        if count:
            raise removed_error(bookie_id, count)


def removed_error(bookie_id: str, ledgers: int) -> BookieNotFoundError:
    """The error for such a bookie, which so many ledgers name."""
    names = counted(ledgers, "ledger still names", "ledgers still name")
    sentence = f"bookie {bookie_id} is not in the cluster: {names} it, whose loss was accepted with it"
    return BookieNotFoundError(f"{sentence}; nothing is left to do", bookie_id)
