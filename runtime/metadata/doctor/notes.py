"""Rules of the metadata doctor for autorecovery's notes, which are outside of the ledgers root.

Losses and failures may be many: they are read one after another, and memory does not grow with them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Set
from typing import Any

import msgspec

from bkctl.runtime.errors import MetadataAuthError, NoNodeError, RefusedError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.doctor.catalogue import MetadataFinding, finding
from bkctl.runtime.metadata.doctor.rules import sentence
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.replication.recovery_notes import (
    CollectionNote,
    MaintenanceNote,
    NoteDirectory,
    RecoveryNotes,
    notes_path,
)
from bkctl.runtime.metadata.store import MetadataStore, Versioned, children_of
from bkctl.storage.ids import LEDGER_ID_MAX
from bkctl.storage.words import duration

_LEDGER_ID = re.compile(r"0|[1-9]\d{0,18}", re.ASCII)


class NotedCluster(msgspec.Struct, frozen=True):
    """What the rules need. ``bookies``: all that are registered, have a cookie or are referenced; None: unknown."""

    root: str
    tree: LedgerTree
    bookies: Set[str] | None
    now_ms: int


async def examine_notes(store: MetadataStore, cluster: NotedCluster) -> AsyncGenerator[MetadataFinding, None]:
    """Problems of all notes."""
    notes = RecoveryNotes(store, cluster.root)
    try:
        kinds = [_of_ledgers(store, cluster, each) for each in (notes.losses, notes.given_up, notes.failures)]
        kinds += [_of_bookies(cluster, each) for each in (notes.deadlines, notes.maintenance, notes.collection)]
        for kind in (*kinds, _of_daemons(store, notes)):
            async with contextlib.aclosing(kind) as found:
                async for each in found:
                    yield each
    except MetadataAuthError as error:
        path = error.path or notes_path(cluster.root)
        yield finding("node-without-permission", path, "This user has no permission to read it.")


async def _of_ledgers(
    store: MetadataStore, cluster: NotedCluster, directory: NoteDirectory[Any]
) -> AsyncGenerator[MetadataFinding, None]:
    async with contextlib.aclosing(directory.all()) as notes:
        async for key, note in notes:
            path = directory.path_of(key)
            if not _LEDGER_ID.fullmatch(key) or int(key) > LEDGER_ID_MAX:
                yield _stray(path)
            elif not isinstance(note, Versioned):
                yield finding("unreadable-note", path, sentence(note), key)
            elif not await _is_ledger(store, cluster, int(key)) and await store.exists(path) is not None:
                yield finding("note-without-ledger", path, f"There is no ledger {key}.", key)


async def _is_ledger(store: MetadataStore, cluster: NotedCluster, ledger_id: int) -> bool:
    try:
        return await store.exists(f"{cluster.root}/{cluster.tree.ledger_path(ledger_id)}") is not None
    except RefusedError:
        return False  # an id that no ledger can have


async def _of_bookies(cluster: NotedCluster, directory: NoteDirectory[Any]) -> AsyncGenerator[MetadataFinding, None]:
    """A bookie that was removed leaves its note of garbage collection."""
    async for key, note in directory.all():
        path = directory.path_of(key)
        is_known = cluster.bookies is None or key in cluster.bookies
        if not is_valid_bookie_id(key):
            yield _stray(path)
        elif not isinstance(note, Versioned):
            yield finding("unreadable-note", path, sentence(note), key)
        elif isinstance(note.value, CollectionNote):
            if note.value.stopped and is_known:
                yield finding("deletion-stopped", path, f"Bookie {key} deletes no ledgers: {note.value.stopped}.", key)
        elif not is_known:
            yield finding("note-without-bookie", path, f"There is no bookie {key}.", key)
        elif isinstance(note.value, MaintenanceNote) and note.value.end_ms < cluster.now_ms:
            late = duration((cluster.now_ms - note.value.end_ms) / 1000)
            problem = f"The maintenance of bookie {key} should have ended {late} ago."
            yield finding("maintenance-overdue", path, problem, key)


async def _of_daemons(store: MetadataStore, notes: RecoveryNotes) -> AsyncGenerator[MetadataFinding, None]:
    for name in await children_of(store, notes.daemons.path):
        path = f"{notes.daemons.path}/{name}"
        with contextlib.suppress(NoNodeError):
            if not (await store.get(path)).stat.ephemeral_owner:
                yield finding("session-node-without-session", path, "It is persistent, and must be ephemeral.")


def _stray(path: str) -> MetadataFinding:
    return finding("stray-node", path, "No process writes a node of this name here.")
