"""Whether the bookies accept this client: asked before work that changes anything, and again when work fails."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import SILENCE, AuthenticationRequiredError, BookieError
from bkctl.storage.errors import BkctlError


async def require_access(ports: ClientPorts, needed: Collection[str] = ()) -> None:
    """AuthenticationRequiredError if a bookie of ``needed`` refuses this client, or if all that answer do.

    Asks each registered bookie once. Single bookies that refuse, for example with an expired certificate, do not stop
    work that can use the others. MetadataError.
    """
    live = sorted((await ports.registrations.snapshot()).live)
    accepted, refusals = 0, list[AuthenticationRequiredError]()

    async def ask(bookie_id: str) -> None:
        nonlocal accepted
        try:
            await ports.bookies.info(bookie_id)
        except AuthenticationRequiredError as error:
            refusals.append(error)
        except SILENCE:
            pass
        except BookieError:
            accepted += 1
        except BkctlError:
            pass  # it is no longer registered, or its address is unknown
        else:
            accepted += 1

    await asyncio.gather(*map(ask, live))
    for error in sorted(refusals, key=lambda error: error.bookie_id):
        if not accepted or error.bookie_id in needed:
            raise error
