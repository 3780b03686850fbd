"""The directories of the under-replication tree, as every Java process creates them. Source: metadata section 10.1.

Only writers call this module. Readers treat a missing directory as empty and create nothing, unlike Java's read-only
commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from bkctl.runtime.errors import ClusterNotFoundError, NodeExistsError, NoNodeError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.format import check_layout, encode_layout
from bkctl.runtime.metadata.store import MetadataStore, decode_node

T = TypeVar("T")

logger = logging.getLogger(__name__)

_WARNED_MAX = 100


class UnderReplicationTree:
    """Checks the tree once and caches the result. A writer that finds a directory missing calls ``create``."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._paths = Paths(root)
        self._is_known = False
        self._checking = asyncio.Lock()

    async def require(self) -> None:
        """Check the format of the tree, creating it if it is missing; ClusterNotFoundError, MetadataFormatError."""
        async with self._checking:  # hundreds of ledgers may ask for their first lock together
            if self._is_known:
                return
            try:
                await self._check_layout()
            except NoNodeError:
                await self.create()
            self._is_known = True

    async def create(self) -> None:
        """Create missing directories: ``metaformat`` deletes them while other processes expect them."""
        await self.create_root()
        if not await self._add(self._paths.under_replication_layout, encode_layout()):
            await self._check_layout()
        await self._add(self._paths.under_replicated_ledgers)
        await self._add(self._paths.replication_locks)

    async def create_node(
        self, path: str, data: bytes, *, is_ephemeral: bool = False, is_open_acl: bool = False
    ) -> None:
        """Create a node below, after the directories if they are missing; NodeExistsError."""
        try:
            await self._store.create(path, data, is_ephemeral=is_ephemeral, is_open_acl=is_open_acl)
        except NoNodeError:
            await self.create()
            await self._store.create(path, data, is_ephemeral=is_ephemeral, is_open_acl=is_open_acl)

    async def create_root(self) -> bool:
        """Create only the topmost node; False when it exists. ClusterNotFoundError when there is no cluster."""
        try:
            return await self._add(self._paths.under_replication)
        except NoNodeError:
            raise ClusterNotFoundError(self._paths.root) from None

    async def _check_layout(self) -> None:
        path = self._paths.under_replication_layout
        decode_node(path, await self._store.get(path), check_layout)

    async def _add(self, path: str, data: bytes = b"") -> bool:
        try:
            await self._store.create(path, data)
        except NodeExistsError:
            return False
        return True


class ForeignNames:
    """Names that neither bkctl nor Java writes: reports each path once, at most a hundred of them."""

    def __init__(self, report: Callable[[str], None] = logger.warning) -> None:
        self._report = report
        self._warned: set[str] = set()

    def skip(self, path: str, what: str) -> None:
        """Report that ``path`` is skipped because it is not ``what`` (with its article)."""
        if path in self._warned or len(self._warned) >= _WARNED_MAX:
            return
        self._warned.add(path)
        ending = "; further ones are not reported" if len(self._warned) == _WARNED_MAX else ""
        self._report(f"{path} is not {what}: ignored{ending}")

    def parsed(self, directory: str, names: Iterable[str], parse: Callable[[str], T | None], what: str) -> dict[str, T]:
        """The valid names with their parsed values; the others are skipped."""
        found = {}
        for name in names:
            meaning = parse(name)
            if meaning is None:
                self.skip(f"{directory}/{name}", what)
            else:
                found[name] = meaning
        return found
