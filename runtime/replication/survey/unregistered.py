"""Whether bookies that are not registered serve all the same, for example because they may not register again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from bkctl.runtime.errors import SILENCE, BookieError, BookieUnavailableError
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.ports import Bookies


async def likely_address(registrations: RegistrationClient, bookie_id: str) -> tuple[str, int]:
    """The registered address, or what the id of a bookie names that is not registered, unless another one is there.

    Errors as ``RegistrationClient.service_info``.
    """
    try:
        return await registrations.address(bookie_id)
    except BookieUnavailableError:
        named, live = parse_host_and_port(bookie_id), (await registrations.snapshot()).live
        if named is None or bookie_id in live or named in await _addresses(registrations, live):
            raise
        return named


async def _addresses(registrations: RegistrationClient, bookie_ids: Collection[str]) -> list[object]:
    """Of registered bookies; something else for those without one."""
    return await asyncio.gather(*map(registrations.address, bookie_ids), return_exceptions=True)


async def find_serving(bookies: Bookies, bookie_ids: Collection[str], timeout_s: float) -> frozenset[str]:
    """Those of these bookies that answer, with whatever. ``bookies`` reaches them by ``likely_address``."""

    async def answers(bookie_id: str) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await bookies.info(bookie_id)
        except (*SILENCE, TimeoutError):
            return False
        except BookieError:
            return True
        return True

    ids = sorted(bookie_ids)
    found = await asyncio.gather(*map(answers, ids))
    return frozenset(bookie_id for bookie_id, is_serving in zip(ids, found, strict=True) if is_serving)
