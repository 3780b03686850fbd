"""What an operator sets for automatic replication, and when its checks last ran. Source: metadata sections 10.7, 10.8.

Looking creates nothing. The delay is never deleted: a running Java auditor would be deaf to it from then on.
"""

from __future__ import annotations

import asyncio
import enum
import re
from collections.abc import Callable

import msgspec

from runtime.errors import BadVersionError, ConflictError, MetadataFormatError, NodeExistsError, NoNodeError
from runtime.metadata.paths import Paths
from runtime.metadata.replication.directories import UnderReplicationTree
from runtime.metadata.replication.format import decode_check_time, encode_check_time
from runtime.metadata.store import ANY_VERSION, MetadataStore, Node, Watch

DELAY_S_MAX = 2**31 - 1
"""Java reads the delay as an int of 32 bits."""

_ATTEMPTS_MAX = 20
_DELAY = re.compile(r"[+-]?\d{1,10}", re.ASCII)


class PeriodicCheck(enum.Enum):
    """Checks whose last run is stored; the value is the name of the node."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class SwitchedOff(msgspec.Struct, frozen=True):
    """Replication is off: since when, and what whoever switched it off left in the node (Java leaves nothing)."""

    since_ms: int
    note: bytes


class RecoveryDelay(msgspec.Struct, frozen=True):
    """How long an auditor waits before it acts on one lost bookie, and the version it was read at."""

    seconds: int
    version: int


class ReplicationSwitches:
    """Switches of one cluster. Every method says what it costs in operations."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._paths = Paths(root)
        self._tree = UnderReplicationTree(store, root)

    # --- on and off ----------------------------------------------------------------------------------------------

    async def is_enabled(self) -> bool:
        """Whether replication is on. One operation."""
        return await self._store.exists(self._paths.replication_disabled) is None

    async def switched_off(self) -> SwitchedOff | None:
        """Since when, and why, replication is off; None while it is on. One operation."""
        try:
            node = await self._store.get(self._paths.replication_disabled)
        except NoNodeError:
            return None
        return SwitchedOff(node.stat.ctime_ms, node.data)

    async def disable(self, note: bytes = b"") -> bool:
        """Switch replication off; False when it was off. One operation in a tree that is there.

        Java takes any node for the switch and never reads it, so a note may lie in it. ClusterNotFoundError.
        """
        try:
            await self._create(self._paths.replication_disabled, note)
        except NodeExistsError:
            return False
        return True

    async def enable(self) -> bool:
        """Switch replication on; False when it was on. One operation."""
        try:
            await self._store.delete(self._paths.replication_disabled)
        except NoNodeError:
            return False
        return True

    async def wait_enabled(self) -> None:
        """Return when replication is on: one operation, one more per change while it is off, none while it stays off.

        MetadataUnavailableError when the connection is lost for longer than the operation time-out.
        """
        while True:
            changed = asyncio.Event()
            if await self._store.exists(self._paths.replication_disabled, changed.set) is None:
                return
            await changed.wait()

    # --- delay ---------------------------------------------------------------------------------------------------

    async def recovery_delay(self) -> RecoveryDelay | None:
        """The delay, None before any auditor ran or set it. One operation; MetadataFormatError."""
        try:
            node = await self._store.get(self._paths.lost_bookie_recovery_delay)
        except NoNodeError:
            return None
        return RecoveryDelay(self._parse_delay(node.data), node.stat.version)

    async def set_recovery_delay(self, seconds: int) -> None:
        """Set the delay. One operation, three when there was none (in a tree that is there).

        The running auditor audits at once when the value is 0 or the one it knows; else a waiting audit starts anew.
        """
        if not 0 <= seconds <= DELAY_S_MAX:
            raise ValueError(f"a delay of {seconds} s is not within 0 and {DELAY_S_MAX}")
        data = str(seconds).encode("ascii")
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._store.set(self._paths.lost_bookie_recovery_delay, data, ANY_VERSION)
            except NoNodeError:
                if await self._init_delay(data):
                    return
            else:
                return
        raise _contended(self._paths.lost_bookie_recovery_delay)

    async def init_recovery_delay(self, seconds: int) -> bool:
        """Store the first value, as an auditor does at its start; False when there is one, which stays."""
        return await self._init_delay(str(seconds).encode("ascii"))

    async def rewrite_recovery_delay(self) -> RecoveryDelay | None:
        """Write the delay as it is, which makes the auditor audit at once; None when there is none. Two operations.

        By compare-and-set: a value that somebody sets at the same time is not overwritten.
        """
        for _ in range(_ATTEMPTS_MAX):
            delay = await self.recovery_delay()
            if delay is None:
                return None
            data = str(delay.seconds).encode("ascii")
            try:
                stat = await self._store.set(self._paths.lost_bookie_recovery_delay, data, delay.version)
            except (BadVersionError, NoNodeError):
                continue
            return RecoveryDelay(delay.seconds, stat.version)
        raise _contended(self._paths.lost_bookie_recovery_delay)

    def watch_recovery_delay(self, callback: Callable[[RecoveryDelay | MetadataFormatError], None]) -> Watch:
        """Call back for the value now and for every later write, of an unchanged value too, never twice for one.

        Several writes in quick succession may be told as the last of them. Deleting the node tells nothing; a node that
        is created again does. One operation, and one per change (two when the node is absent).
        """
        last: tuple[int, int] | None = None

        def look(node: Node | None) -> None:
            nonlocal last
            if node is None or (node.stat.ctime_ms, node.stat.version) == last:
                return  # the same node again after a lost connection
            last = (node.stat.ctime_ms, node.stat.version)
            try:
                seconds = self._parse_delay(node.data)
            except MetadataFormatError as error:
                callback(error)
            else:
                callback(RecoveryDelay(seconds, node.stat.version))

        return self._store.watch_node(self._paths.lost_bookie_recovery_delay, look)

    async def _init_delay(self, data: bytes) -> bool:
        """With an open ACL whatever the others have: Java's tools write it without logging in."""
        try:
            await self._create(self._paths.lost_bookie_recovery_delay, data, is_open_acl=True)
        except NodeExistsError:
            return False
        return True

    def _parse_delay(self, data: bytes) -> int:
        text = data.decode("utf-8", "replace")
        if not _DELAY.fullmatch(text) or not 0 <= int(text) <= DELAY_S_MAX:
            path = self._paths.lost_bookie_recovery_delay
            raise MetadataFormatError(f"{path}: {text!r} is not a number of seconds", path)
        return int(text)

    # --- when checks ran -----------------------------------------------------------------------------------------

    async def check_time_ms(self, check: PeriodicCheck) -> int | None:
        """When the check last ran to its end, None when it never did. One operation; MetadataFormatError."""
        path = self._check_path(check)
        try:
            return decode_check_time((await self._store.get(path)).data)
        except NoNodeError:
            return None
        except MetadataFormatError as error:
            raise MetadataFormatError(f"{path}: {error}", path) from error

    async def set_check_time_ms(self, check: PeriodicCheck, time_ms: int) -> None:
        """Say when the check ran; an auditor reads it when it starts. One operation, two the first time."""
        path, data = self._check_path(check), encode_check_time(time_ms)
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._store.set(path, data, ANY_VERSION)
            except NoNodeError:
                try:
                    await self._create(path, data)
                except NodeExistsError:
                    continue
            return
        raise _contended(path)

    def _check_path(self, check: PeriodicCheck) -> str:
        return f"{self._paths.under_replication}/{check.value}"

    async def _create(self, path: str, data: bytes, *, is_open_acl: bool = False) -> None:
        try:
            await self._store.create(path, data, is_open_acl=is_open_acl)
        except NoNodeError:
            await self._tree.create()
            await self._store.create(path, data, is_open_acl=is_open_acl)


def _contended(path: str) -> ConflictError:
    return ConflictError(f"{path}: others change it all the time: find out who, then try again")
