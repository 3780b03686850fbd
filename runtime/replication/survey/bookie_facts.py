"""What the bookies of a cluster say of themselves, for its status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from bkctl.runtime.errors import SILENCE, AuthenticationRequiredError, BookieError
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.ports import Bookies
from bkctl.runtime.replication.judge.cluster_facts import BookieFacts
from bkctl.runtime.replication.survey.unregistered import find_serving
from bkctl.storage.errors import BkctlError


async def ask_bookies(
    bookies: Bookies,
    registrations: Registrations,
    with_cookie: frozenset[str],
    troubles: Mapping[str, str],
    timeout_s: float,
) -> tuple[BookieFacts, ...]:
    """All bookies that are registered or have a cookie, by id. They are asked once, at the same time.

    ``troubles``: what their registrations say is wrong with them.
    """

    async def ask(bookie_id: str) -> BookieFacts:
        has_cookie = bookie_id in with_cookie
        if bookie_id not in registrations.live:
            return await ask_unregistered(bookies, bookie_id, timeout_s, has_cookie=has_cookie)
        status = BookieFacts(
            bookie_id,
            is_writable=bookie_id in registrations.writable,
            has_cookie=has_cookie,
            trouble=troubles.get(bookie_id, ""),
        )
        try:
            async with asyncio.timeout(timeout_s):
                info = await bookies.info(bookie_id)
        except TimeoutError:
            return msgspec.structs.replace(status, problem=f"no answer within {timeout_s:g} s")
        except BkctlError as error:
            is_refusing = isinstance(error, BookieError) and not isinstance(error, SILENCE)
            is_client_refused = isinstance(error, AuthenticationRequiredError)
            return msgspec.structs.replace(
                status, problem=str(error), is_refusing=is_refusing, is_client_refused=is_client_refused
            )
        return msgspec.structs.replace(status, total_bytes=info.total_bytes, free_bytes=info.free_bytes)

    return tuple(await asyncio.gather(*map(ask, sorted(with_cookie | registrations.live))))


async def ask_unregistered(bookies: Bookies, bookie_id: str, timeout_s: float, *, has_cookie: bool) -> BookieFacts:
    """A bookie that is not registered: it may answer all the same."""
    is_serving = await find_serving(bookies, [bookie_id], timeout_s)
    return BookieFacts(bookie_id, None, has_cookie, serves_unregistered=bool(is_serving))
