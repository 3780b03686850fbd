"""Migrations of Pulsar's metadata to another store: while one runs, no process may change the metadata in ZooKeeper.

Pulsar 5 (PIP-454) keeps the state of a migration in a node of its own ZooKeeper directory, the parent of the ledgers
root: ``{"phase": "COPYING", "targetUrl": "oxia://..."}``.
"""

from __future__ import annotations

import asyncio

import msgspec

from bkctl.runtime.errors import NoNodeError, RefusedError
from bkctl.runtime.metadata.store import MetadataStore

FLAG_PATH = "/pulsar/migration-coordinator/migration"
FLAG_AGE_S_MAX = 5.0
"""Changes rely on a flag that was read at most this long ago."""
_RUNNING = frozenset({"PREPARATION", "COPYING"})
_COMPLETED = "COMPLETED"
_WITHOUT_EFFECT = frozenset({"NOT_STARTED", "FAILED"})
"""A failed migration leaves ZooKeeper in use."""


class _MigrationFlag(msgspec.Struct):
    phase: str
    target_url: str | None = msgspec.field(default=None, name="targetUrl")


class MigrationWatch:
    """Reads the flag again and again while a command runs: a migration may begin at any time."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root
        self._reason: str | None = None
        self._read_at_s: float | None = None
        self._reading = asyncio.Lock()

    async def require_none(self) -> None:
        """RefusedError if a migration forbids changes of the metadata, at most ``FLAG_AGE_S_MAX`` ago."""
        if self._is_old():
            async with self._reading:
                if self._is_old():
                    started_s = asyncio.get_running_loop().time()
                    self._reason = await read_migration(self._store, self._root)
                    self._read_at_s = started_s
        if self._reason is not None:
            raise RefusedError(f"{self._reason} ({flag_path(self._root)})")

    def _is_old(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self._read_at_s is None or now_s - self._read_at_s >= FLAG_AGE_S_MAX


async def read_migration(store: MetadataStore, root: str) -> str | None:
    """Why a migration forbids changes of the metadata below ``root``; None if it does not. One operation."""
    try:
        return why_forbidden((await store.get(flag_path(root))).data)
    except NoNodeError:
        return None


def flag_path(root: str) -> str:
    """Node with the state of a migration."""
    return root.rpartition("/")[0] + FLAG_PATH


def why_forbidden(data: bytes) -> str | None:
    """Why the state of a migration forbids changes; None if it does not. Pure."""
    try:
        flag = msgspec.json.decode(data, type=_MigrationFlag)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"the state of Pulsar's metadata migration cannot be decoded: {error}"
    target = f" to {flag.target_url}" if flag.target_url else ""
    if flag.phase in _RUNNING:
        return f"Pulsar is migrating its metadata{target}: wait until that has ended, then repeat the command"
    if flag.phase == _COMPLETED:
        return f"Pulsar has migrated its metadata{target}, so ZooKeeper no longer has the metadata of this cluster"
    return (
        None if flag.phase in _WITHOUT_EFFECT else f"Pulsar's metadata migration is in an unknown phase, {flag.phase}"
    )
