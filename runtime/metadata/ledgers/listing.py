"""Listing the ledger tree node by node: for tools, which need every id, and for collectors, which need proof.

A collector deletes what is not listed. So it needs, for every possible id, either the existing ledgers or the
information that they are unknown. Parts follow each other without a gap, from 0 to 2^63-2. A part is a leaf bucket with
the empty space before it, which the listings of the nodes above prove empty. If a node cannot be listed, exactly the
ids of its range are an error. All ledgers created before the first part is requested are listed, so a caller that reads
its own list of ledgers before that may treat ledgers missing from the parts as deleted.

Requests are pipelined, level by level. Each answer is dropped as soon as it is passed on, so memory does not grow with
the tree. ``sync`` precedes the listing; it is repeated after a change of session and, for a collector, before each
node. Source: metadata section 4.3.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from bkctl.runtime.errors import ClusterNotFoundError, ConfigurationError, MetadataError, NoNodeError
from bkctl.runtime.metadata.ledgers.layout import LedgerNode, LedgerTree, interior_children, ledgers_in, root_node
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.storage.errors import BkctlError
from bkctl.storage.ids import LEDGER_ID_MAX

logger = logging.getLogger(__name__)

NAMES_HELD_MAX = 100_000
"""Approximate number of child names that one level holds in memory: ten full buckets."""

_WARNINGS_MAX = 5
_OVERLONG_LEAF = re.compile(r"\d\d/\d{4}/L\d{5,}", re.ASCII)


class PartListing(msgspec.Struct, frozen=True):
    """All ledgers with ids from ``first_ledger_id`` to ``last_ledger_id``, ascending; or why they are unknown."""

    first_ledger_id: int
    last_ledger_id: int
    ledger_ids: Sequence[int] = ()
    error: BkctlError | None = None


class _Listed(msgspec.Struct, frozen=True, gc=False):
    node: LedgerNode
    names: list[str] = []
    error: MetadataError | None = None


class LedgerListing:
    """One pass over the ledger tree. ``check_layout`` raises when the cluster does not have this tree, or no longer."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        tree: LedgerTree,
        window: int,
        *,
        check_layout: Callable[[], Awaitable[object]],
        is_every_node_synced: bool = False,
    ) -> None:
        self._store = store
        self._root = root
        self._tree = tree
        self._window = window
        self._check_layout = check_layout
        self._is_every_node_synced = is_every_node_synced
        self._synced_session_id = 0
        self._root_ctime_ms = 0
        self._ignored_count = 0
        self._is_overlong_seen = False

    async def parts(self) -> AsyncGenerator[PartListing, None]:
        """Contiguous parts that cover every possible id. An error becomes a part with the error; it is not raised."""
        cover = RangeCover()
        async with contextlib.aclosing(self.buckets(root_node(self._tree))) as listed:
            try:
                async for part in listed:
                    for covering in cover.add(part):
                        yield covering
            except (MetadataError, ConfigurationError) as error:
                yield cover.fail(error)
                return
        for covering in cover.finish(self._tree, is_overlong_seen=self._is_overlong_seen):
            yield covering

    async def buckets(self, start: LedgerNode) -> AsyncGenerator[PartListing, None]:
        """Leaf buckets below ``start``, ascending, and the nodes that cannot be listed.

        ClusterNotFoundError, MetadataError when nothing can be listed.
        """
        await self._begin()
        for branch in await self._branches(start):
            height = max((len(node.digits_below or ()) for node in branch), default=0)
            async with contextlib.AsyncExitStack() as levels:
                async for listed in self._levels(branch, height, levels):
                    yield self._part(listed)
        if self._ignored_count > _WARNINGS_MAX:
            logger.warning("%s: %d more nodes were ignored", self._root, self._ignored_count - _WARNINGS_MAX)

    async def interior_nodes(self, enough: int) -> list[LedgerNode]:
        """Nodes that together contain every ledger: leaf buckets or, in a large branch, nodes of the level above."""
        await self._begin()
        found: list[LedgerNode] = []
        for branch in await self._branches(root_node(self._tree)):
            nodes = branch
            while nodes and nodes[0].digits_below and len(nodes) < enough:
                below: list[LedgerNode] = []
                async with contextlib.AsyncExitStack() as levels:
                    async for listed in self._levels(nodes, 0, levels):
                        if listed.error is not None:
                            raise listed.error
                        below += interior_children(self._tree, listed.node, listed.names, self._ignore)
                nodes = below
            found += nodes
        return found

    # -- the walk -----------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Make reads see everything finished before this call; check that the tree has the expected layout."""
        await self._sync()
        stat = await self._store.exists(self._root)
        if stat is None:
            raise ClusterNotFoundError(self._root)
        self._root_ctime_ms = stat.ctime_ms
        await self._check_layout()

    async def _branches(self, start: LedgerNode) -> list[list[LedgerNode]]:
        """Start nodes of the walk, each list of one height: the root's two kinds of branches are separate."""
        if start.digits_below is not None:
            return [[start]]
        names = await self._names(start)
        children = interior_children(self._tree, start, names, self._ignore)
        return [
            [child for child in children if len(child.digits_below or ()) == len(digits) - 1]
            for digits in self._tree.level_digits
        ]

    def _levels(
        self, nodes: Sequence[LedgerNode], height: int, levels: contextlib.AsyncExitStack
    ) -> AsyncGenerator[_Listed, None]:
        """Answers for the nodes ``height`` levels below; each level has its own requests in flight.

        Leaving ``levels`` cancels the requests, the lowest level first.
        """

        def list_all(nodes: AsyncIterator[LedgerNode | _Listed]) -> AsyncGenerator[_Listed, None]:
            listed = pipelined(nodes, self._answer, self._window, weigh=_names_count, weight_max=NAMES_HELD_MAX)
            levels.push_async_callback(listed.aclose)
            return listed

        listed = list_all(each_of(nodes))
        for _ in range(height):
            children = self._interior_children(listed)
            levels.push_async_callback(children.aclose)
            listed = list_all(children)
        return listed

    async def _interior_children(
        self, listed: AsyncGenerator[_Listed, None]
    ) -> AsyncGenerator[LedgerNode | _Listed, None]:
        async for one in listed:
            if one.error is not None:
                yield one
                continue
            for child in interior_children(self._tree, one.node, one.names, self._ignore):
                yield child

    async def _answer(self, node: LedgerNode | _Listed) -> _Listed:
        if isinstance(node, _Listed):
            return node  # a node further up that could not be listed: pass it on to the consumer
        try:
            return _Listed(node, await self._names(node))
        except MetadataError as error:
            return _Listed(node, error=error)

    async def _names(self, node: LedgerNode) -> list[str]:
        """Children of a node; none when it is proven deleted."""
        path = f"{self._root}/{node.path}" if node.path else self._root
        while True:
            session_id = self._store.session_id
            if self._is_every_node_synced or session_id != self._synced_session_id:
                await self._sync()
            try:
                names = await self._store.children(path)
            except NoNodeError:
                await self._require_same_root()
                names = []
            if session_id == self._store.session_id:
                return names
            # Another session may be connected to a server that lags behind; without a sync its answer proves nothing.

    async def _sync(self) -> None:
        session_id = self._store.session_id
        await self._store.sync(self._root)
        self._synced_session_id = session_id

    async def _require_same_root(self) -> None:
        """A missing node proves that it has no ledgers only while the tree it belongs to exists."""
        stat = await self._store.exists(self._root)
        if stat is None or stat.ctime_ms != self._root_ctime_ms:
            raise MetadataError(f"{self._root}: the ledgers root disappeared while it was listed", self._root)

    def _part(self, listed: _Listed) -> PartListing:
        node = listed.node
        if listed.error is not None:
            return PartListing(node.first_ledger_id, node.last_ledger_id, error=listed.error)
        ids = ledgers_in(self._tree, node, listed.names, self._ignore)
        return PartListing(node.first_ledger_id, node.last_ledger_id, ids)

    def _ignore(self, path: str) -> None:
        self._ignored_count += 1
        self._is_overlong_seen |= _OVERLONG_LEAF.fullmatch(path) is not None
        if self._ignored_count <= _WARNINGS_MAX:
            logger.warning("%s/%s was ignored: no ledger can be stored there", self._root, path)


class RangeCover:
    """Turns ascending, disjoint parts into contiguous ones from 0 to 2^63-2; the space between them is empty."""

    def __init__(self) -> None:
        self._next_id = 0

    def add(self, part: PartListing) -> list[PartListing]:
        """The part, extended to begin where the last one ended; the gap before a failed part is a part of its own."""
        first, self._next_id = self._next_id, part.last_ledger_id + 1
        assert first <= part.first_ledger_id <= part.last_ledger_id, "parts ascend and do not overlap"
        if part.error is None:
            return [PartListing(first, part.last_ledger_id, part.ledger_ids)]
        return [*_empty(first, part.first_ledger_id - 1), part]

    def finish(self, tree: LedgerTree, *, is_overlong_seen: bool = False) -> list[PartListing]:
        """The part after the last one.

        Ids of more than ten digits do not fit into the legacy layout, but Java stores them in it. If such an id was
        seen, that part is unknown.
        """
        first, self._next_id = self._next_id, LEDGER_ID_MAX + 1
        if tree is not LedgerTree.LEGACY_HIERARCHICAL or not is_overlong_seen:
            return _empty(first, LEDGER_ID_MAX)
        error = MetadataError("some ledgers have longer ids than the legacy layout supports")
        return [*_empty(first, _LEGACY_ID_MAX), PartListing(_LEGACY_ID_MAX + 1, LEDGER_ID_MAX, error=error)]

    def fail(self, error: BkctlError) -> PartListing:
        """Mark everything after the last part as unknown."""
        return PartListing(self._next_id, LEDGER_ID_MAX, error=error)


_LEGACY_ID_MAX = 10**10 - 1


def _empty(first_ledger_id: int, last_ledger_id: int) -> list[PartListing]:
    return [PartListing(first_ledger_id, last_ledger_id)] if first_ledger_id <= last_ledger_id else []


def _names_count(listed: _Listed) -> int:
    return len(listed.names)
