"""Waits until the registration of an earlier process of a bookie expires."""

from __future__ import annotations

import asyncio
import logging

from bkctl.runtime.errors import RegistrationError
from bkctl.runtime.metadata.store import MetadataStore, Node

logger = logging.getLogger(__name__)


async def wait_for_expiry(store: MetadataStore, path: str, bookie_id: str, wait_s: float) -> None:
    """Return once the node of another session is gone; RegistrationError. Never deletes it by force."""
    logger.warning(
        "bookie %s is still registered by another session: waiting up to %g s for it to expire", bookie_id, wait_s
    )
    gone = asyncio.Event()

    def look(node: Node | None) -> None:
        if node is None:
            gone.set()

    watch = store.watch_node(path, look)
    try:
        async with asyncio.timeout(wait_s):
            await gone.wait()
    except TimeoutError:
        raise RegistrationError(
            f"another running process is registered as bookie {bookie_id}: stop it, or choose another id"
        ) from None
    finally:
        watch.cancel()
