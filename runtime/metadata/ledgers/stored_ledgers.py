"""Ledgers as stored: bytes, version and times, with the decoded metadata if it is readable.

For tools that list, save and restore ledgers: an unreadable ledger is a row with the reason and does not end the list.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Sequence

import msgspec

from bkctl.runtime.errors import LedgerNotFoundError, MetadataAuthError, MetadataFormatError, NoNodeError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import NewerFormatError, decode_ledger_metadata
from bkctl.runtime.metadata.ledgers.ledgers import WINDOW, LedgerStore
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.store import MetadataStore, Node, Versioned


class StoredLedger(msgspec.Struct, frozen=True):
    """One ledger's node. ``node`` None: this session may not read it. ``metadata`` None: ``problem`` is the reason.

    ``is_newer``: a newer release wrote it, so it is not damaged and must be kept.
    """

    ledger_id: int
    path: str
    node: Node | None
    metadata: LedgerMetadata | None = None
    problem: str = ""
    is_newer: bool = False

    @property
    def versioned(self) -> Versioned[LedgerMetadata] | None:
        """Metadata with its version; None if unreadable."""
        if self.node is None or self.metadata is None:
            return None
        return Versioned(self.metadata, self.node.stat.version, self.node.stat.ctime_ms)

    @property
    def created_ms(self) -> int | None:
        """Creation time, also of an unreadable ledger; None if its node cannot be read."""
        node_ctime_ms = None if self.node is None else self.node.stat.ctime_ms
        return node_ctime_ms if self.metadata is None else self.metadata.created_ms(node_ctime_ms)


async def read_stored(store: MetadataStore, ledgers: LedgerStore, ledger_id: int) -> StoredLedger:
    """One ledger; LedgerNotFoundError, RefusedError."""
    path = ledgers.path(ledger_id)
    try:
        node = await store.get(path)
    except NoNodeError:
        raise LedgerNotFoundError(ledger_id, "there is no such ledger") from None
    except MetadataAuthError as error:
        return StoredLedger(ledger_id, path, None, problem=str(error))
    return describe_stored(ledger_id, path, node)


def describe_stored(ledger_id: int, path: str, node: Node) -> StoredLedger:
    """Decode a ledger's node."""
    try:
        return StoredLedger(ledger_id, path, node, decode_ledger_metadata(node.data))
    except MetadataFormatError as error:
        is_newer = isinstance(error, NewerFormatError)
        return StoredLedger(ledger_id, path, node, problem=str(error), is_newer=is_newer)


async def scan_stored(store: MetadataStore, ledgers: LedgerStore) -> AsyncGenerator[StoredLedger, None]:
    """Every ledger, ascending; omits those deleted meanwhile."""

    async def read(ledger_id: int) -> StoredLedger | None:
        try:
            return await read_stored(store, ledgers, ledger_id)
        except LedgerNotFoundError:
            return None

    ids = ledgers.list_ids()
    found = pipelined(ids, read, WINDOW)
    async with contextlib.aclosing(ids), contextlib.aclosing(found):
        async for ledger in found:
            if ledger is not None:
                yield ledger


IDS_KEPT_MAX = 10
_PROGRESS_STEP = 256


class BookieReferences(msgspec.Struct, frozen=True):
    """Result of one scan. Unreadable ledgers may refer to any bookie. Some ids of both kinds are kept as examples.

    ``counts`` and ``first_ledger_ids`` have an item for each requested bookie. ``first_newer_ids``: those of
    ``first_unreadable_ids`` that a newer release wrote.
    """

    ledgers_scanned: int
    counts: dict[str, int]
    first_ledger_ids: dict[str, tuple[int, ...]]
    unreadable_count: int
    first_unreadable_ids: tuple[int, ...]
    first_newer_ids: tuple[int, ...] = ()

    @property
    def counts_at_most(self) -> dict[str, int]:
        """Ledgers that refer to each bookie, plus the unreadable ones, which may do so."""
        return {bookie_id: count + self.unreadable_count for bookie_id, count in self.counts.items()}

    @property
    def unreadable_advice(self) -> str:
        """How to fix the unreadable ledgers."""
        return unreadable_advice(self.first_unreadable_ids, self.first_newer_ids)


def unreadable_advice(unreadable: Sequence[int], newer: Sequence[int]) -> str:
    """How to fix ledgers with unreadable metadata, of which a newer release wrote those in ``newer``."""
    damaged = " ".join(str(each) for each in unreadable if each not in newer)
    advice = []
    if damaged:
        advice.append(
            "bkctl ledger import FILE --if-version N replaces the metadata with an export; without one, bkctl ledger "
            f"delete --unreadable {damaged} moves it to the trash"
        )
    if newer:
        named = ", ".join(map(str, newer))
        advice.append(f"a newer release wrote ledger {named}: use a bkctl release that reads it, do not delete it")
    return "; ".join(advice)


async def find_references(
    store: MetadataStore,
    ledgers: LedgerStore,
    bookie_ids: Collection[str],
    on_progress: Callable[[int], None] = lambda _: None,
) -> BookieReferences:
    """Read every ledger and count those with a segment on these bookies; ``on_progress`` gets the ledgers so far.

    Sees everything finished before the call. MetadataUnavailableError, and the error of a part that cannot be listed.
    MetadataAuthError if this user may not read a ledger: no advice about damaged metadata may name it.
    """
    await store.sync(ledgers.root)
    counts = dict.fromkeys(bookie_ids, 0)
    first: dict[str, list[int]] = {bookie_id: [] for bookie_id in bookie_ids}
    scanned, unreadable_count = 0, 0
    unreadable: list[int] = []
    newer: list[int] = []
    async for ledger_id, found in ledgers.read_all():
        scanned += 1
        if scanned % _PROGRESS_STEP == 0:
            on_progress(scanned)
        if isinstance(found, MetadataAuthError):
            raise found
        if not isinstance(found, Versioned):
            unreadable_count += 1
            if len(unreadable) < IDS_KEPT_MAX:
                unreadable.append(ledger_id)
                newer += [ledger_id] if isinstance(found, NewerFormatError) else []
            continue
        for bookie_id in found.value.bookies().intersection(counts):
            counts[bookie_id] += 1
            if len(first[bookie_id]) < IDS_KEPT_MAX:
                first[bookie_id].append(ledger_id)
    on_progress(scanned)
    return BookieReferences(
        ledgers_scanned=scanned,
        counts=counts,
        first_ledger_ids={bookie_id: tuple(ids) for bookie_id, ids in first.items()},
        unreadable_count=unreadable_count,
        first_unreadable_ids=tuple(unreadable),
        first_newer_ids=tuple(newer),
    )
