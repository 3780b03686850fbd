"""Whether the bookies accept this client: asked before work that changes anything, and again when work fails."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TypeAlias

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import SILENCE, AuthenticationRequiredError, BookieError
from bkctl.storage.errors import BkctlError

_Answer: TypeAlias = AuthenticationRequiredError | bool | None


async def require_access(
    ports: ClientPorts, needed: Collection[str] = (), *, is_under_way: bool = False, waits_for_all: bool = False
) -> dict[str, str]:
    """AuthenticationRequiredError if a bookie of ``needed`` refuses this client, or if all that answer do.

    Asks the registered bookies, and waits only until one accepts and those of ``needed`` have answered. Single bookies
    that refuse, for example with an expired certificate, do not stop work that can use the others. MetadataError.

    ``is_under_way``: waits for all answers, because those of older connections prove nothing: one refusal is enough if
    this client's certificate has expired. Returns the bookies that are known to refuse this client, each with a
    sentence that names it: all of them with ``waits_for_all``.
    """
    live = (await ports.registrations.snapshot()).live
    unanswered = live.intersection(needed)
    refusals: list[AuthenticationRequiredError] = []
    asked = {asyncio.create_task(_ask(ports, bookie_id)): bookie_id for bookie_id in sorted(live)}
    waiting = set(asked)
    is_accepted = False
    try:
        while waiting and (unanswered or not is_accepted or is_under_way or waits_for_all):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                unanswered -= {asked[task]}
                answer = task.result()
                if isinstance(answer, AuthenticationRequiredError):
                    refusals.append(answer)
                is_accepted = is_accepted or answer is True
    finally:
        for task in waiting:
            task.cancel()
    for error in sorted(refusals, key=lambda error: error.bookie_id):
        if not is_accepted or error.bookie_id in needed or (is_under_way and error.is_expired):
            raise error
    return {error.bookie_id: str(error) for error in refusals}


async def refusals(ports: ClientPorts, bookie_ids: Collection[str], others: int = 0) -> dict[str, str]:
    """Those of these registered bookies that refuse this client, each with a sentence that names it. MetadataError.

    ``others``: asks as many more, drawn at random.
    """
    live = (await ports.registrations.snapshot()).live
    asked, rest = sorted(live.intersection(bookie_ids)), sorted(live.difference(bookie_ids))
    asked += ports.clock.random.sample(rest, min(others, len(rest)))
    answers = await asyncio.gather(*(_ask(ports, each) for each in asked))
    return {each.bookie_id: str(each) for each in answers if isinstance(each, AuthenticationRequiredError)}


async def _ask(ports: ClientPorts, bookie_id: str) -> _Answer:
    """Whether a bookie accepts this client; None if it did not answer or has no known address."""
    try:
        await ports.bookies.info(bookie_id)
    except AuthenticationRequiredError as error:
        return error
    except SILENCE:
        return None
    except BookieError:
        return True
    except BkctlError:
        return None
    return True
