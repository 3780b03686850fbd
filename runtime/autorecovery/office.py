"""The auditor's office: held by one daemon at a time, which runs the auditor meanwhile.

Pulsar's metadata driver elects an auditor of its own, the owner of the node ``leader``. By default no second auditor
runs next to it. If the settings ask for one, it holds both offices, so that Pulsar's auditor waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Final

from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.lane import end_tasks, is_set_within
from bkctl.runtime.errors import NodeExistsError, NoNodeError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import UnderReplicationTree
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.format import encode_pulsar_auditor
from bkctl.runtime.metadata.store import MetadataStore, Node
from bkctl.runtime.ports import Clock
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

PULSAR_ABSENCE_S: Final = 60.0
"""How long Pulsar's auditor must be gone before another one runs: in this time Pulsar elects the next."""
RESIGN_S_MAX: Final = 2.0
"""How long giving back the office may take; after that it ends with the session."""
_AUDITOR_END_S_MAX: Final = 3.0
_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 30.0


@dataclasses.dataclass(eq=False)
class AuditorOffice:
    """Stands for election, and runs an auditor while it is elected; steps down immediately when it is deposed.

    ``daemon_id``: what the vote contains. ``is_pulsar_cluster``: Pulsar's metadata driver may elect an auditor later.
    """

    store: MetadataStore
    root: str
    daemon_id: str
    clock: Clock
    new_auditor: Callable[[], Auditor]
    is_beside_pulsar: bool = False
    is_pulsar_cluster: bool = False

    def __post_init__(self) -> None:
        self.auditor: Auditor | None = None
        self.problem: str | None = None
        """Why it does not stand for election, or what fails; None if there is nothing to report."""
        self._leader_path = Paths(self.root).pulsar_auditor
        self._tree = UnderReplicationTree(self.store, self.root)
        self._election = AuditorElection(self.store, self.root, self.daemon_id, self._depose)
        self._deposed = asyncio.Future[None]()

    async def serve(self) -> None:
        """Run until cancelled. Errors are reported, and the election is tried again."""
        retry_s = _RETRY_FIRST_S
        try:
            while True:
                try:
                    await self._hold_once()
                    retry_s = _RETRY_FIRST_S
                except Exception as error:  # the daemon must survive everything
                    retry_s = min(2 * retry_s, _RETRY_MAX_S)
                    logger.debug("election of the auditor", exc_info=True)
                    self._report(f"the election of the auditor failed: {str(error) or type(error).__name__}")
                await self.clock.sleep(retry_s)
        finally:
            await self._resign()

    async def _hold_once(self) -> None:
        """Wait for the office, and hold it until deposed."""
        await self._wait_for_pulsar()
        self._deposed = asyncio.Future()
        if not self._election.is_elected:
            await self._election.campaign()
        watch = None
        try:
            if self.is_beside_pulsar:
                await self._take_leader()
            elif await self.store.exists(self._leader_path) is not None:
                return  # elected while this process waited
            watch = self.store.watch_node(self._leader_path, self._note_leader)
            self.problem = None
            await self._audit()
        finally:
            if watch is not None:
                watch.cancel()
            await self._resign()

    async def _audit(self) -> None:
        if self._deposed.done():
            return
        auditor = self.auditor = self.new_auditor()
        logger.info("this process is the auditor now")
        serving = asyncio.ensure_future(auditor.serve())
        try:
            await asyncio.wait((serving, self._deposed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.auditor = None
            await end_tasks((serving,), _AUDITOR_END_S_MAX)
        if serving.done() and not serving.cancelled():
            serving.result()

    def _depose(self, reason: str) -> None:
        """Another process deleted the vote, or the session expired."""
        self.problem = reason
        if not self._deposed.done():
            self._deposed.set_result(None)

    async def _resign(self) -> None:
        """Give back both offices; bounded."""
        try:
            async with asyncio.timeout(RESIGN_S_MAX):
                if self.is_beside_pulsar:
                    stat = await self.store.exists(self._leader_path)
                    if stat is not None and stat.ephemeral_owner == self.store.session_id:
                        with contextlib.suppress(NoNodeError):
                            await self.store.delete(self._leader_path)
                await self._election.resign()
        except (BkctlError, TimeoutError) as error:
            logger.warning("the office of the auditor may remain until the session ends: %s", str(error) or "no answer")

    # -- Pulsar's office --------------------------------------------------------------------------------------------

    async def _wait_for_pulsar(self) -> None:
        """Return when no auditor of Pulsar's driver is expected, or when this one is to run next to it."""
        if self.is_beside_pulsar:
            return
        if self.is_pulsar_cluster:
            self._report(
                "no auditor runs here: the metadata URI names Pulsar's metadata driver, which elects its own; set "
                "is_beside_pulsar_auditor to run one all the same"
            )
            await asyncio.Event().wait()
        wait_s = 0.0
        while True:
            changed = asyncio.Event()
            if await self.store.exists(self._leader_path, changed.set) is not None:
                self._report(
                    f"no auditor runs here: Pulsar's metadata driver has elected one ({self._leader_path}); set "
                    "is_beside_pulsar_auditor to run one all the same"
                )
                await changed.wait()
                wait_s = PULSAR_ABSENCE_S
                continue
            if not await is_set_within(changed, wait_s):
                return

    async def _take_leader(self) -> None:
        """Create Pulsar's node, when it is free, unless deposed meanwhile."""
        while not self._deposed.done():
            with contextlib.suppress(NodeExistsError):
                data = encode_pulsar_auditor(self.daemon_id)
                await self._tree.create_node(self._leader_path, data, is_ephemeral=True, is_open_acl=True)
                return
            changed = asyncio.Future[None]()
            stat = await self.store.exists(self._leader_path, functools.partial(changed.set_result, None))
            if stat is None:
                continue
            if stat.ephemeral_owner == self.store.session_id:
                return  # the answer to the creation was lost
            self._report(f"waiting for the end of the auditor of Pulsar's metadata driver ({self._leader_path})")
            await asyncio.wait((changed, self._deposed), return_when=asyncio.FIRST_COMPLETED)

    def _note_leader(self, node: Node | None) -> None:
        if self.is_beside_pulsar:
            if node is not None and node.stat.ephemeral_owner == self.store.session_id:
                return
            reason = f"another process deleted {self._leader_path}"
        elif node is None:
            return
        else:
            reason = f"Pulsar's metadata driver has elected an auditor ({self._leader_path})"
        if not self._deposed.done():
            logger.warning("this auditor steps down: %s", reason)
        self._depose(reason)

    def _report(self, problem: str) -> None:
        """Log a problem once, and keep it for the status."""
        if problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem
