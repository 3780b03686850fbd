"""Requests that a bookie makes as a client: the disk space of all bookies, and a test of this one."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bkctl.runtime.admin.api import SanityAnswer
from bkctl.runtime.admin.messages import AdminAnswer, AdminError, AdminRequest, Problem, Route, json_answer
from bkctl.runtime.bookie.admin.mode_routes import require_running
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.client.sanity import run_sanity_test
from bkctl.runtime.errors import BookieError
from bkctl.runtime.ports import BookieInfo
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

ASKED_AT_ONCE_MAX: Final = 16
ASKING_S_MAX: Final = 10.0
SANITY_S_MAX: Final = 30.0
SANITY_ENTRIES: Final = 10


class ClusterRoutes:
    """Requests that this bookie makes as a client."""

    def __init__(self, view: BookieView) -> None:
        self._view = view
        self._one_test_at_a_time = asyncio.Lock()
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("GET", "/api/v1/bookie/list_bookie_info", self._list_bookie_info),
            Route("GET", "/api/v1/bookie/sanity", self._sanity, changes=True),
        ]

    @property
    def _peers(self) -> ClientPorts:
        require_running(self._view)
        assert self._view.peers is not None
        return self._view.peers

    async def _list_bookie_info(self, _: AdminRequest) -> AdminAnswer:
        peers = self._peers
        registered = await peers.registrations.snapshot()
        found: dict[str, BookieInfo] = {}

        async def ask(bookie_id: str) -> None:
            async with self._turns:
                try:
                    found[bookie_id] = await peers.bookies.info(bookie_id)
                except BookieError as error:
                    logger.info("bookie %s did not report its disk space: %s", bookie_id, error)

        asking = [asyncio.ensure_future(ask(bookie_id)) for bookie_id in sorted(registered.live)]
        if asking:
            late = (await asyncio.wait(asking, timeout=ASKING_S_MAX))[1]
            for task in late:
                task.cancel()
        if not found:
            raise AdminError(Problem.NOT_FOUND, "no bookie reported its disk space")
        body = {bookie_id: f": {_space(found[bookie_id])}," for bookie_id in sorted(found)}
        body["ClusterInfo: "] = _space(
            BookieInfo(
                total_bytes=sum(each.total_bytes for each in found.values()),
                free_bytes=sum(each.free_bytes for each in found.values()),
            )
        )
        return json_answer(body)

    async def _sanity(self, _: AdminRequest) -> AdminAnswer:
        """Write, read back and delete a small ledger on this bookie. It changes the cluster, so TCP needs the token."""
        peers, view = self._peers, self._view
        if view.config.is_read_only:
            return json_answer(SanityAnswer(passed=False, read_only=True))
        if self._one_test_at_a_time.locked():
            raise AdminError(Problem.CONFLICT, "a sanity test is running")
        async with self._one_test_at_a_time:
            try:
                async with asyncio.timeout(SANITY_S_MAX):
                    await run_sanity_test(peers, view.bookie_id, SANITY_ENTRIES, _note_leftover)
            except (BkctlError, TimeoutError) as error:
                logger.warning("the sanity test failed: %s", str(error) or f"not finished after {SANITY_S_MAX:g} s")
                return json_answer(SanityAnswer(passed=False, read_only=False))
        return json_answer(SanityAnswer(passed=True, read_only=False))


def _note_leftover(ledger_id: int, error: BaseException) -> None:
    logger.warning("ledger %d of a sanity test is left over; delete it: %s", ledger_id, error)


def _space(space: BookieInfo) -> str:
    return f"{{Free: {_size(space.free_bytes)}, Total: {_size(space.total_bytes)}}}"


def _size(size_bytes: int) -> str:
    """Java's way: bytes, and three decimals of the largest unit, by powers of 1000."""
    size, unit = float(size_bytes), "B"
    for larger in ("KB", "MB", "GB", "TB", "PB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size_bytes}({size:.3f}{unit})" if unit != "B" else f"{size_bytes}({size_bytes}B)"
