"""The node that asks bkctl's auditor to audit now, for clusters that store no recovery delay.

Java's auditor audits when its delay is written again. bkctl's auditor does so too, but never creates that node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from bkctl.runtime.errors import NodeExistsError, NoNodeError
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes, notes_path
from bkctl.runtime.metadata.store import ANY_VERSION, MetadataStore, Node, Versioned, Watch


class AuditRequest:
    """The node of one cluster, next to the notes of autorecovery."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._notes = RecoveryNotes(store, root)
        self.path = f"{notes_path(root)}/audit"

    async def is_understood(self) -> bool:
        """Whether a daemon of bkctl says that it is the auditor. One operation, and one for each daemon."""
        async with contextlib.aclosing(self._notes.daemons.all()) as daemons:
            return any([isinstance(note, Versioned) and note.value.is_auditor async for _, note in daemons])

    async def send(self) -> None:
        """Ask for an audit. One operation, two the first time."""
        try:
            await self._store.set(self.path, b"", ANY_VERSION)
        except NoNodeError:
            with contextlib.suppress(NodeExistsError):  # another operator asks at this moment
                await self._store.create(self.path, make_parents=True, is_open_acl=True)

    def watch(self, callback: Callable[[], None]) -> Watch:
        """Call back after each request from now on. Several in quick succession may count as one."""
        last: tuple[int, int] | None = (-1, -1)  # not read yet

        def on_change(node: Node | None) -> None:
            nonlocal last
            before, last = last, (node.stat.ctime_ms, node.stat.version) if node is not None else None
            if node is not None and before not in {(-1, -1), last}:
                callback()

        return self._store.watch_node(self.path, on_change)
