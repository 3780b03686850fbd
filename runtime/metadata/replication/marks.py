"""Marks of under-replicated ledgers: set, merged, listed, cleared. Source: metadata sections 10.2 to 10.7.

A mark is a request to check a ledger. Marking it again during the repair raises the version of its node. The repairer
clears only the version read before it took the lock, so it cannot drop the new request. A mark is the only child of a
directory with all 64 bits of the ledger id in its path, so the path of the mark follows from that of the directory.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import msgspec

from bkctl.runtime.errors import (
    BadVersionError,
    ConflictError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.ledgers.layout import require_storable_id
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.directories import ForeignNames, UnderReplicationTree
from bkctl.runtime.metadata.replication.format import (
    UnderReplicationMark,
    decode_mark,
    encode_mark,
    parse_group_name,
)
from bkctl.runtime.metadata.store import (
    CreateNode,
    MetadataStore,
    NodeReader,
    children_of,
    decode_node,
    find_node,
    read_or_problem,
)
from bkctl.runtime.ports import Clock
from bkctl.storage.ids import LEDGER_ID_MAX

LEVELS = 4
"""Interior nodes between the directory of marks and a mark."""

_ATTEMPTS_MAX = 100
_DIRECTORIES_AHEAD = 8
"""Directories read ahead of the marks; each may have 65536 children."""
_READS_IN_FLIGHT_MAX = 128


class MarkOutcome(enum.Enum):
    """What a call of ``mark`` changed."""

    CREATED = "created"
    MERGED = "merged"
    UNCHANGED = "unchanged"


class ListedMark(msgspec.Struct, frozen=True):
    """A mark that was found; ``mark`` is None when its bytes cannot be read, and ``problem`` is the reason."""

    ledger_id: int
    mark: UnderReplicationMark | None
    version: int
    changed_ms: int
    problem: MetadataFormatError | None = None

    @property
    def marked_ms(self) -> int:
        """When the ledger was last marked, ms since 1970: the time in the mark, else the time of the node."""
        if self.mark is None or self.mark.ctime_ms is None or self.mark.ctime_ms < 0:
            return self.changed_ms
        return self.mark.ctime_ms


class UnderReplicationMarks:
    """Marks of one cluster.

    ``is_ctime_stored`` False marks without the time (storeSystemTimeAsLedgerUnderreplicatedMarkTime).
    """

    def __init__(self, store: MetadataStore, root: str, clock: Clock, *, is_ctime_stored: bool = True) -> None:
        self._store = store
        self._paths = Paths(root)
        self._tree = UnderReplicationTree(store, root)
        self._clock = clock
        self._is_ctime_stored = is_ctime_stored

    async def mark(self, ledger_id: int, missing_bookies: Sequence[str]) -> MarkOutcome:
        """Request a check of a ledger; without missing bookies, a check of its placement.

        Writes nothing when the mark has them all. MetadataFormatError: the present mark cannot be read and is left
        unchanged; ConflictError: other processes keep changing it; ClusterNotFoundError, RefusedError.
        """
        require_storable_id(ledger_id)
        assert all(map(is_valid_bookie_id, missing_bookies)), "an invalid name in a mark breaks Java tools"
        await self._tree.require()
        for _ in range(_ATTEMPTS_MAX):
            outcome = await self._create(ledger_id, missing_bookies) or await self._merge(ledger_id, missing_bookies)
            if outcome is not None:
                return outcome
        raise ConflictError(f"ledger {ledger_id}: other processes keep marking and clearing it")

    async def _create(self, ledger_id: int, missing_bookies: Sequence[str]) -> MarkOutcome | None:
        """Create directory and mark in one step; None when either exists."""
        directory = self._paths.mark_directory(ledger_id)
        nodes = [CreateNode(directory), CreateNode(self._paths.mark(ledger_id), self._new_mark(missing_bookies))]
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._store.write_all(nodes)
            except NodeExistsError:
                return None
            except NoNodeError:
                await self._create_directory(directory.rpartition("/")[0])
            else:
                return MarkOutcome.CREATED
        return None

    async def _merge(self, ledger_id: int, missing_bookies: Sequence[str]) -> MarkOutcome | None:
        """Add to the present mark by compare-and-set; None when it must be tried again from the start."""
        path = self._paths.mark(ledger_id)
        node = await find_node(self._store, path)
        if node is None:
            return await self._create_in_directory(ledger_id, missing_bookies)
        mark = decode_node(path, node, decode_mark)
        added = tuple(dict.fromkeys(each for each in missing_bookies if each not in mark.missing_bookies))
        if not added:
            return MarkOutcome.UNCHANGED
        ctime_ms = self._ctime_ms() if self._is_ctime_stored else mark.ctime_ms
        merged = UnderReplicationMark(mark.missing_bookies + added, ctime_ms)
        try:
            await self._store.set(path, encode_mark(merged), node.stat.version)
        except (BadVersionError, NoNodeError):
            return None
        return MarkOutcome.MERGED

    async def _create_in_directory(self, ledger_id: int, missing_bookies: Sequence[str]) -> MarkOutcome | None:
        """The directory has no mark: its mark was cleared, or another marker has created only the directory so far."""
        try:
            await self._store.create(self._paths.mark(ledger_id), self._new_mark(missing_bookies))
        except (NodeExistsError, NoNodeError):
            return None
        return MarkOutcome.CREATED

    async def _create_directory(self, path: str) -> None:
        """Create an interior node and those above it. A process that clears marks may delete it: the caller loops."""
        if path == self._paths.under_replicated_ledgers:
            await self._tree.create()
            return
        try:
            await self._store.create(path)
        except NodeExistsError:
            pass
        except NoNodeError:
            await self._create_directory(path.rpartition("/")[0])
            with contextlib.suppress(NodeExistsError, NoNodeError):
                await self._store.create(path)

    async def clear(self, ledger_id: int, expected_version: int) -> bool:
        """Delete a mark at the version read before the repair, then the directories that become empty.

        False when the mark stays because it was renewed meanwhile. A mark that is already gone counts as cleared.
        """
        try:
            await self._store.delete(self._paths.mark(ledger_id), expected_version)
        except BadVersionError:
            return False
        except NoNodeError:
            pass  # perhaps an earlier delete succeeded and its answer was lost, before the directories were deleted
        await self._prune(self._paths.mark_directory(ledger_id))
        return True

    async def _prune(self, directory: str) -> None:
        for _ in range(LEVELS):
            stat = await self._store.exists(directory)
            if stat is None or stat.children_count > 0:
                return
            try:
                await self._store.delete(directory, stat.version)
            except (NoNodeError, NotEmptyError, BadVersionError):
                return  # another process marks a ledger in it, or clears one at the same time
            directory = directory.rpartition("/")[0]

    def _new_mark(self, missing_bookies: Sequence[str]) -> bytes:
        return encode_mark(UnderReplicationMark(tuple(dict.fromkeys(missing_bookies)), self._ctime_ms()))

    def _ctime_ms(self) -> int | None:
        return self._clock.now_ms() if self._is_ctime_stored else None


async def read_mark(store: MetadataStore, root: str, ledger_id: int) -> ListedMark | None:
    """The mark of a ledger, None when it has none. One operation."""
    found = await read_or_problem(store, Paths(root).mark(ledger_id), decode_mark)
    if found is None:
        return None
    stat, mark, problem = found
    return ListedMark(ledger_id, mark, stat.version, stat.mtime_ms, problem)


async def list_marks(
    store: MetadataStore,
    root: str,
    foreign: ForeignNames,
    *,
    missing: str | None = None,
    not_missing: str | None = None,
    window: int = _READS_IN_FLIGHT_MAX,
) -> AsyncGenerator[ListedMark, None]:
    """All marks by ledger id; with filters, only those that have ``missing`` and do not have ``not_missing``.

    One operation per mark and per directory, at most ``window`` + 24 in flight; memory does not grow with the number of
    marks. Marks created or deleted meanwhile may or may not be seen. Unreadable marks are always listed, because their
    bookies are unknown. Creates nothing. Close the iterator to stop early.
    """
    ids = list_marked_ids(store, root, foreign)
    async with (
        aclosing(ids),
        aclosing(pipelined(ids, lambda ledger_id: read_mark(store, root, ledger_id), window)) as marks,
    ):
        async for found in marks:
            if found is not None and _is_wanted(found.mark, missing, not_missing):
                yield found


def _is_wanted(mark: UnderReplicationMark | None, missing: str | None, not_missing: str | None) -> bool:
    if mark is None:
        return True
    return (missing is None or missing in mark.missing_bookies) and not_missing not in mark.missing_bookies


async def list_marked_ids(store: NodeReader, root: str, foreign: ForeignNames) -> AsyncGenerator[int, None]:
    """Ids of the ledgers that have a directory for a mark, ascending; a few may have no mark in it.

    One operation for each 65536 neighbouring ids. Creates nothing. Close the iterator to stop early.
    """
    top = Paths(root).under_replicated_ledgers

    async def names(directory: str) -> tuple[str, list[str]]:
        found = await children_of(store, directory)
        return directory, list(foreign.parsed(directory, found, parse_group_name, "a directory of marks"))

    def below(directories: AsyncIterator[str]) -> AsyncGenerator[str, None]:
        return _child_paths(pipelined(directories, names, _DIRECTORIES_AHEAD))

    first = below(each_of([top]))
    second = below(first)
    third = below(second)
    fourth = below(third)
    async with aclosing(first), aclosing(second), aclosing(third), aclosing(fourth):
        async for directory in fourth:
            ledger_id = int(directory.removeprefix(top).replace("/", ""), 16)
            if ledger_id <= LEDGER_ID_MAX:
                yield ledger_id
            else:
                foreign.skip(directory, "a directory of marks")


async def _child_paths(listings: AsyncGenerator[tuple[str, list[str]], None]) -> AsyncGenerator[str, None]:
    async with aclosing(listings):
        async for directory, names in listings:
            for name in names:
                yield f"{directory}/{name}"
