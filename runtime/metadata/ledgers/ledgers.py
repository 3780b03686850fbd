"""Ledger metadata in the store: create, read, compare-and-set, delete, list. Source: metadata sections 3.3, 4 and 6.7.

Listings are streams with a bounded number of requests in flight and constant memory. They leave out ledgers and
buckets that are deleted meanwhile. Ids ascend.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

import msgspec

from bkctl.runtime.config import LayoutConfig, ZooKeeperConfig
from bkctl.runtime.errors import (
    ClusterNotFoundError,
    ConfigurationError,
    LedgerExistsError,
    LedgerNotFoundError,
    MetadataAuthError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    RefusedError,
)
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, encode_ledger_metadata
from bkctl.runtime.metadata.ledgers.ids import LedgerIdGenerator
from bkctl.runtime.metadata.ledgers.layout import (
    LedgerLayout,
    LedgerNode,
    LedgerTree,
    choose_tree,
    encode_layout,
    find_foreign_branch,
    interior_children,
    node_at,
    read_layout,
)
from bkctl.runtime.metadata.ledgers.listing import LedgerListing, PartListing
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.pulsar_migration import MigrationWatch
from bkctl.runtime.metadata.store import (
    ANY_VERSION,
    CreateNode,
    MetadataStore,
    Node,
    NodeWrite,
    SetNode,
    Versioned,
    Watch,
)

WINDOW = ZooKeeperConfig().in_flight_max
_SUBTREES_ENOUGH = 4096
_SAMPLE_SIZE = 256
_CREATOR_TOKEN_FORMAT_MIN = 3

FoundLedgers: TypeAlias = AsyncGenerator[
    tuple[int, Versioned[LedgerMetadata] | MetadataFormatError | MetadataAuthError], None
]
"""Ledgers with their metadata, or the reason why that cannot be read."""


async def open_ledger_store(
    store: MetadataStore,
    root: str,
    tree: LedgerTree | None = None,
    *,
    layout_config: LayoutConfig | None = None,
) -> LedgerStore:
    """Open the ledgers below ``root`` with the layout that the cluster records; ``tree`` is the one in the URI.

    Writes nothing: Java would record a missing LAYOUT now; bkctl does so when the first ledger is created.
    ClusterNotFoundError, ConfigurationError when the layouts differ, MetadataFormatError.
    """
    config = layout_config or LayoutConfig()
    layout = await read_layout(store, root, is_shaded_factory_allowed=config.is_shaded_factory_allowed)
    if layout is None and await store.exists(root) is None:
        raise ClusterNotFoundError(root)
    return LedgerStore(
        store,
        root,
        choose_tree(layout, tree, config),
        layout_config=config,
        is_layout_recorded=layout is not None,
    )


async def require_no_other_tree(store: MetadataStore, root: str, tree: LedgerTree) -> None:
    """MetadataFormatError if a cluster without LAYOUT has nodes of another layout. ClusterNotFoundError."""
    try:
        found = await find_foreign_branch(tree, lambda path: store.children(f"{root}/{path}".rstrip("/")))
    except NoNodeError as error:
        if error.path == root:
            raise ClusterNotFoundError(root) from None
        return  # deleted meanwhile
    if found is not None:
        path = Paths(root).layout
        raise MetadataFormatError(
            f"{path} is missing, and {root}/{found} does not belong to the layout {tree.value}: run bkctl cluster init "
            "--if-not-exists with the layout of the ledgers in the metadata URI",
            path,
        )


class LedgerStore:
    """Ledger metadata of one cluster; obtain it from ``open_ledger_store``.

    While Pulsar migrates its metadata, all changes raise RefusedError.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        tree: LedgerTree,
        *,
        layout_config: LayoutConfig,
        is_layout_recorded: bool,
    ) -> None:
        self._store = store
        self._paths = Paths(root)
        self._tree = tree
        self._layout_config = layout_config
        self.is_layout_recorded = is_layout_recorded
        """Whether the cluster has a LAYOUT, as far as this store knows."""
        self._ids = LedgerIdGenerator(store, root, tree)
        self.migration = MigrationWatch(store, root)
        """For callers that change other metadata, or work for long before they change something."""

    @property
    def root(self) -> str:
        """Ledgers root of the cluster."""
        return self._paths.root

    @property
    def tree(self) -> LedgerTree:
        """Shape of the ledger tree."""
        return self._tree

    def path(self, ledger_id: int) -> str:
        """Path of a ledger's node; RefusedError for an id that cannot or must not be stored."""
        return f"{self.root}/{self._tree.ledger_path(ledger_id)}"

    # -- one ledger ---------------------------------------------------------------------------------------------

    async def find_existing(self, ledger_id: int) -> int | None:
        """The id, if it is one of a ledger that exists. One operation, without its metadata."""
        try:
            return None if await self._store.exists(self.path(ledger_id)) is None else ledger_id
        except RefusedError:
            return None  # an id that no ledger can have

    async def create(
        self,
        metadata: LedgerMetadata,
        *,
        ledger_id: int | None = None,
        together_with: Callable[[int], SetNode] | None = None,
    ) -> tuple[int, Versioned[LedgerMetadata]]:
        """Store a new ledger; return its id, allocated unless given, and what was stored, at version 0.

        A unique ``creator_token``, from 1 to 2**63 - 1, identifies the ledger after a lost answer. ``together_with``:
        for the id, a write to another node that is carried out in the same transaction, or neither is; its
        BadVersionError or NoNodeError has its path.
        LedgerExistsError when a given id is taken, RefusedError when it must not be used.
        """
        await self.migration.require_none()
        await self._ensure_layout_recorded()
        while True:
            chosen_id = await self._ids.next_id() if ledger_id is None else ledger_id
            if await self._create_at(chosen_id, metadata, None if together_with is None else together_with(chosen_id)):
                return chosen_id, Versioned(metadata, 0)
            if ledger_id is not None:
                raise LedgerExistsError(ledger_id, "the id is already in use")

    async def _create_at(self, ledger_id: int, metadata: LedgerMetadata, other: SetNode | None) -> bool:
        """Create the node; False when another ledger has the id. After a lost answer the creator token decides."""
        path, data = self.path(ledger_id), encode_ledger_metadata(metadata)
        try:
            if other is None:
                await self._store.create(path, data, make_parents=True)
            else:
                await self._create_with(CreateNode(path, data), other)
        except NodeExistsError:
            return False
        except MetadataUnavailableError:
            if await self._is_our_creation(ledger_id, metadata):
                return True
            raise
        return True

    async def _create_with(self, ledger: CreateNode, other: SetNode) -> None:
        """Both writes or none. A transaction creates no parents, and a deletion may remove those that are empty."""
        while True:
            try:
                await self._store.write_all([ledger, other])
            except NoNodeError as error:
                if error.path != ledger.path:
                    raise
            else:
                return
            with contextlib.suppress(NodeExistsError):
                await self._store.create(ledger.path.rpartition("/")[0], make_parents=True)

    async def _is_our_creation(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        try:
            found = await self.read(ledger_id)
        except (LedgerNotFoundError, MetadataFormatError):
            return False
        is_token_stored = metadata.format_version >= _CREATOR_TOKEN_FORMAT_MIN
        return is_token_stored and metadata.creator_token != 0 and found.value.creator_token == metadata.creator_token

    async def read(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Metadata, its version, and the creation time of its node, which applies if the metadata has none.

        LedgerNotFoundError, MetadataFormatError. Without a LAYOUT no ledger counts as absent while there are nodes of
        another layout.
        """
        try:
            node = await self._store.get(self.path(ledger_id))
        except NoNodeError:
            if not self.is_layout_recorded:
                await self._check_layout()
            raise _not_found(ledger_id) from None
        return Versioned(self._decode(ledger_id, node.data), node.stat.version, node.stat.ctime_ms)

    def watch(
        self,
        ledger_id: int,
        callback: Callable[[Versioned[LedgerMetadata] | MetadataError | LedgerNotFoundError], None],
    ) -> Watch:
        """Call back on the loop with the metadata now and after every change, or with the reason why there is none:
        LedgerNotFoundError, MetadataFormatError."""

        def decode(node: Node | None) -> None:
            if node is None:
                callback(_not_found(ledger_id))
                return
            try:
                metadata = self._decode(ledger_id, node.data)
            except MetadataFormatError as error:
                callback(error)
                return
            callback(Versioned(metadata, node.stat.version, node.stat.ctime_ms))

        return self._store.watch_node(self.path(ledger_id), decode)

    async def write(
        self, ledger_id: int, metadata: LedgerMetadata, expected_version: int, *others: NodeWrite
    ) -> Versioned[LedgerMetadata]:
        """Compare-and-set; BadVersionError, LedgerNotFoundError. Returns what is stored.

        ``others``: carried out in the same transaction, or none; their errors name their paths.
        A rewrite clears the creator token, which is no longer needed; Java does the same.
        """
        metadata = msgspec.structs.replace(metadata, creator_token=0)
        data = encode_ledger_metadata(metadata)
        write = SetNode(self.path(ledger_id), data, expected_version)
        await self.migration.require_none()
        try:
            if others:
                stat = (await self._store.write_all([write, *others]))[0]
                assert stat is not None, "every SetNode has one"
            else:
                stat = await self._store.set(write.path, data, expected_version)
        except NoNodeError as error:
            if error.path != write.path:
                raise
            raise _not_found(ledger_id) from None
        return Versioned(metadata, stat.version, stat.ctime_ms)

    async def delete(self, ledger_id: int, expected_version: int = ANY_VERSION) -> None:
        """Delete the metadata, in any state; an absent ledger counts as deleted. BadVersionError.

        Bookies delete the entries later. Empty interior nodes are deleted too if the layout does so; a creator that
        needs one meanwhile creates it again.
        """
        path = self.path(ledger_id)
        await self.migration.require_none()
        try:
            await self._store.delete(path, expected_version)
        except NoNodeError:
            return
        if not self._tree.prunes_parents:
            return
        parent = path.rpartition("/")[0]
        with contextlib.suppress(MetadataError):  # not empty, or another process deleted it first
            while parent != self.root:
                await self._store.delete(parent)
                parent = parent.rpartition("/")[0]

    def _decode(self, ledger_id: int, data: bytes) -> LedgerMetadata:
        try:
            return decode_ledger_metadata(data)
        except MetadataFormatError as error:
            raise type(error)(f"ledger {ledger_id}: {error}", self.path(ledger_id)) from error

    async def _ensure_layout_recorded(self) -> None:
        """Record the layout before creating a ledger, so that no client mistakes the tree for one of another shape."""
        while not self.is_layout_recorded:
            await self._check_layout()
            if not self.is_layout_recorded:
                with contextlib.suppress(NodeExistsError):
                    await self._store.create(self._paths.layout, encode_layout(LedgerLayout(self._tree)))

    async def _check_layout(self) -> None:
        """Make sure that the cluster has this tree. ConfigurationError, ClusterNotFoundError, MetadataFormatError.

        Another process may have recorded a layout since, or created the cluster again with another one. If none is
        recorded, there must be no nodes that only another one has.
        """
        shaded = self._layout_config.is_shaded_factory_allowed
        layout = await read_layout(self._store, self.root, is_shaded_factory_allowed=shaded)
        if layout is None:
            await require_no_other_tree(self._store, self.root, self._tree)
            return
        if layout.tree is not self._tree:
            raise ConfigurationError(
                f"the cluster at {self.root} was created as {layout.tree.value}, but was opened as {self._tree.value}"
            )
        self.is_layout_recorded = True

    # -- all ledgers --------------------------------------------------------------------------------------------

    async def list_ids(self, subtree: str | None = None, *, window: int = WINDOW) -> AsyncGenerator[int, None]:
        """Ids of all ledgers, or of those in a subtree, with at most ``window`` requests in flight on each level.

        Lists all that were created before the call; may list some that are deleted meanwhile. ClusterNotFoundError, and
        the error of a node that cannot be listed, so that an incomplete list never looks complete.
        """
        async with contextlib.aclosing(self._buckets(subtree, window)) as buckets:
            async for ids in buckets:
                for ledger_id in ids:
                    yield ledger_id

    async def count(self, subtree: str | None = None) -> int:
        """Number of ids that ``list_ids`` yields."""
        async with contextlib.aclosing(self._buckets(subtree, WINDOW)) as buckets:
            return sum([len(ids) async for ids in buckets])

    def list_parts(self, *, window: int = WINDOW) -> AsyncGenerator[PartListing, None]:
        """Every possible ledger id, part by part, for a collector; the contract is in ``listing``."""
        return self._listing(window, is_every_node_synced=True).parts()

    async def _buckets(self, subtree: str | None, window: int) -> AsyncGenerator[Sequence[int], None]:
        start = node_at(self._tree, subtree or "")
        if start is None:
            raise ValueError(f"{subtree!r} is not a subtree of a {self._tree.value} ledger tree")
        async with contextlib.aclosing(self._listing(window).buckets(start)) as parts:
            async for part in parts:
                if part.error is not None:
                    raise part.error
                yield part.ledger_ids

    def _listing(self, window: int, *, is_every_node_synced: bool = False) -> LedgerListing:
        return LedgerListing(
            self._store,
            self.root,
            self._tree,
            window,
            check_layout=self._check_layout,
            is_every_node_synced=is_every_node_synced,
        )

    async def read_all(self, subtree: str | None = None, *, window: int = WINDOW) -> FoundLedgers:
        """Every ledger with its metadata, or the reason why that cannot be read; omits deleted ones.

        A ledger that this user may not read hides no other one, so that is a reason too.
        """
        ids = self.list_ids(subtree, window=window)
        results = pipelined(ids, self._read_or_reason, window)
        async with contextlib.aclosing(ids), contextlib.aclosing(results):
            async for result in results:
                if result is not None:
                    yield result

    async def subtrees(self) -> list[str]:
        """Subtrees that together contain every ledger once, to divide ``list_ids`` and ``read_all`` among workers.

        They are leaf buckets of at most 10000 ledgers, found by listing only interior nodes; if there are very many,
        nodes of the level above.
        """
        return [node.path for node in await self._listing(WINDOW).interior_nodes(_SUBTREES_ENOUGH)]

    async def estimate_count(self) -> int:
        """About how many ledgers there are. Exact in a tree with few buckets; in a large one a sample is counted."""
        nodes = await self._listing(WINDOW).interior_nodes(_SUBTREES_ENOUGH)
        sample = nodes[:: max(1, len(nodes) // _SAMPLE_SIZE)]
        counts = await asyncio.gather(*(self._estimate_below(node) for node in sample))
        return sum(counts) * len(nodes) // max(1, len(sample))

    async def _estimate_below(self, node: LedgerNode) -> int:
        path = f"{self.root}/{node.path}" if node.path else self.root
        try:
            if not node.digits_below:
                stat = await self._store.exists(path)
                return 0 if stat is None else stat.children_count
            children = interior_children(self._tree, node, await self._store.children(path), lambda _: None)
        except NoNodeError:
            return 0
        return len(children) * await self._estimate_below(children[len(children) // 2]) if children else 0

    async def _read_or_reason(
        self, ledger_id: int
    ) -> tuple[int, Versioned[LedgerMetadata] | MetadataFormatError | MetadataAuthError] | None:
        try:
            return ledger_id, await self.read(ledger_id)
        except LedgerNotFoundError:
            return None
        except (MetadataFormatError, MetadataAuthError) as error:
            return ledger_id, error


def _not_found(ledger_id: int) -> LedgerNotFoundError:
    return LedgerNotFoundError(ledger_id, "there is no such ledger")
