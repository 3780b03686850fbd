"""Why bookies are read-only, as their admin interfaces say, and what is left on those that a drain made so."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import msgspec

from bkctl.commands.bookie.admin_access import admin_of, read_credentials
from bkctl.commands.bookie.admin_state import read_state_of
from bkctl.commands.context import CommandContext
from bkctl.commands.session import Session
from bkctl.runtime.replication.judge.cluster_facts import BookieFacts
from bkctl.runtime.replication.judge.drained_bookies import LeavingBookie, leaving_bookies_of
from bkctl.runtime.replication.survey.status import StatusLimits, read_drained
from bkctl.storage.errors import BkctlError

_ASKED_MAX = 100


async def with_reasons(
    context: CommandContext, session: Session, bookies: Sequence[BookieFacts], timeout_s: float
) -> tuple[BookieFacts, ...]:
    """The same; bookies that are read-only say why, as far as their admin interfaces answer."""
    asked = [each for each in bookies if each.is_writable is False][:_ASKED_MAX]
    if not asked:
        return tuple(bookies)
    import bkctl.runtime.admin.client  # noqa: F401, PLC0415  on a busy machine it takes as long as the answers may

    try:
        credentials = read_credentials(context, None)
    except BkctlError:
        return tuple(bookies)

    async def ask(bookie: BookieFacts) -> BookieFacts:
        try:
            async with asyncio.timeout(timeout_s), admin_of(context, session, bookie.bookie_id, credentials) as client:
                state = await read_state_of(client, bookie.bookie_id)
        except (BkctlError, TimeoutError):
            return bookie
        reasons = {each.reason: each.text for each in state.reasons or ()}
        order = "" if state.operator is None else state.operator.reason
        return msgspec.structs.replace(bookie, read_only_reasons=reasons, order=order)

    found = {each.bookie_id: each for each in await asyncio.gather(*map(ask, asked))}
    return tuple(found.get(each.bookie_id, each) for each in bookies)


async def find_leaving(
    session: Session, bookies: Sequence[BookieFacts], moved: Collection[str], removed: Collection[str]
) -> tuple[LeavingBookie, ...]:
    """Those that a drain made read-only, of bookies that have said why they are; as the status finds them.

    ``moved``, ``removed``: see ``moved_bookies``.
    """
    orders = {each.bookie_id: each.order for each in bookies if each.leaves(moved)}
    where = session.store, session.root, session.ledgers
    return leaving_bookies_of(orders, await read_drained(*where, orders, StatusLimits().ledgers_s), moved, removed)
