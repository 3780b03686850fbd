"""The nodes of a cluster's logs of ledgers, outside of the ledgers root: ``/bkctl/logs/<ledgers root>/<name>``.

The ledgers root is without its first slash, percent-encoded. Java's nukeexistingcluster would refuse unknown nodes
below the ledgers root.
"""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncGenerator, Callable

from bkctl.runtime.errors import (
    BadVersionError,
    ConflictError,
    LogExistsError,
    LogNotFoundError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog, decode_log, encode_log
from bkctl.runtime.metadata.store import MetadataStore, SetNode, Versioned, children_of, decode_node, find_node

DIRECTORY = "/bkctl/logs"
ATTEMPTS_MAX = 20

DecideLog = Callable[[LedgerLog], LedgerLog | None]
"""The log after a change; None if nothing is left to change. It may raise, and is called again after a conflict."""


def logs_path(root: str) -> str:
    """The node above the logs of the cluster at this ledgers root."""
    return f"{DIRECTORY}/{urllib.parse.quote(root.removeprefix('/'), safe='')}"


def always_changed(name: str) -> ConflictError:
    """After ``ATTEMPTS_MAX`` conflicts."""
    return ConflictError(f"log {name}: other processes change it all the time: try again")


class LogNodes:
    """All logs of one cluster. Names must have passed ``check_log_name``."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self.directory = logs_path(root)

    def path(self, name: str) -> str:
        """The node of a log."""
        return f"{self.directory}/{name}"

    async def names(self) -> list[str]:
        """The names of all logs, sorted."""
        return await children_of(self._store, self.directory)

    async def find(self, name: str) -> Versioned[LedgerLog] | None:
        """The log, or None; MetadataFormatError."""
        path = self.path(name)
        node = await find_node(self._store, path)
        if node is None:
            return None
        return Versioned(decode_node(path, node, decode_log), node.stat.version, node.stat.ctime_ms)

    async def read(self, name: str) -> Versioned[LedgerLog]:
        """The log; LogNotFoundError, MetadataFormatError."""
        found = await self.find(name)
        if found is None:
            raise LogNotFoundError(name)
        return found

    async def create(self, name: str, log: LedgerLog) -> None:
        """Create the node; LogExistsError."""
        try:
            await self.create_raw(name, encode_log(log))
        except NodeExistsError as error:
            raise LogExistsError(name) from error

    async def create_raw(self, name: str, data: bytes) -> None:
        """Create the node with these bytes; NodeExistsError. The directory of all clusters is open to everyone."""
        if await self._store.exists(DIRECTORY) is None:
            with contextlib.suppress(NodeExistsError):
                await self._store.create(DIRECTORY, make_parents=True, is_open_acl=True)
        await self._store.create(self.path(name), data, make_parents=True)

    async def change(self, name: str, decide: DecideLog) -> Versioned[LedgerLog]:
        """Change the log by compare-and-set; returns what is stored then.

        After a conflict, and after a write without an answer, the node is read and ``decide`` called again. So its
        result must show that a change was made already. Raises what ``decide`` raises, LogNotFoundError, ConflictError
        after many conflicts, MetadataError.
        """
        path = self.path(name)
        is_unanswered = False
        for _ in range(ATTEMPTS_MAX):
            if is_unanswered:
                await self._store.sync(path)
            found = await self.read(name)
            wanted = decide(found.value)
            if wanted is None:
                return found
            try:
                stat = await self._store.set(path, encode_log(wanted), found.version)
            except BadVersionError:
                continue
            except NoNodeError as error:
                raise LogNotFoundError(name) from error
            except MetadataUnavailableError:
                if is_unanswered:
                    raise
                is_unanswered = True
                continue
            return Versioned(wanted, stat.version, found.ctime_ms)
        raise always_changed(name)

    def replacement(self, name: str, found: Versioned[LedgerLog], wanted: LedgerLog) -> SetNode:
        """The write of a change, for a transaction."""
        return SetNode(self.path(name), encode_log(wanted), found.version)

    async def delete(self, name: str, version: int) -> None:
        """Delete the node at this version; an absent one counts as deleted. BadVersionError."""
        with contextlib.suppress(NoNodeError):
            await self._store.delete(self.path(name), version)

    async def wait_for_change(self, name: str, version: int) -> None:
        """Return when the node may no longer have this version; LogNotFoundError if it is deleted."""
        event = asyncio.Event()
        stat = await self._store.exists(self.path(name), event.set)
        if stat is None:
            raise LogNotFoundError(name)
        if stat.version == version:
            await event.wait()

    async def raw_nodes(self) -> AsyncGenerator[tuple[str, bytes], None]:
        """Names and bytes of all logs, also of those that cannot be decoded."""
        for name in await self.names():
            node = await find_node(self._store, self.path(name))
            if node is not None:
                yield name, node.data
