"""Operators' settings for autorecovery, and when its checks last ran. Source: metadata sections 10.7, 10.8.

Reading creates nothing. The delay is never deleted: a running Java auditor would ignore it from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import enum
import re
from collections.abc import Callable

import msgspec

from bkctl.runtime.errors import BadVersionError, ConflictError, MetadataFormatError, NodeExistsError, NoNodeError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import UnderReplicationTree
from bkctl.runtime.metadata.replication.format import decode_check_time, encode_check_time
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes, notes_path
from bkctl.runtime.metadata.store import ANY_VERSION, MetadataStore, Node, Versioned, Watch, decode_node, find_node
from bkctl.storage.json_text import JsonTextError, decode_json


class SwitchNote(msgspec.Struct, frozen=True):
    """Who disabled replication, why, and the intended end; None: not given."""

    by: str | None = None
    reason: str | None = None
    until: str | None = None

    def is_overdue(self, now_ms: int) -> bool:
        """Whether replication should be enabled again by now."""
        try:
            moment = datetime.datetime.fromisoformat(self.until or "")
        except ValueError:
            return False
        return moment.tzinfo is not None and moment.timestamp() * 1000 < now_ms


def decode_note(data: bytes) -> SwitchNote:
    """The note; an empty one if the data is something else."""
    try:
        return decode_json(data, SwitchNote)
    except JsonTextError:
        return SwitchNote()


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
    """Replication is off: since when, and the note in the node, if any (Java writes none)."""

    since_ms: int
    note: bytes


class RecoveryDelay(msgspec.Struct, frozen=True):
    """How long an auditor waits before it acts on one lost bookie, and the version of the node."""

    seconds: int
    version: int


class WatchedSwitch:
    """Whether replication is switched off, read again only after a change; ``on_change`` is called then."""

    def __init__(self, store: MetadataStore, root: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._path = Paths(root).replication_disabled
        self._on_change = on_change
        self._is_off = False
        self._has_changed = asyncio.Event()
        self._has_changed.set()

    async def is_off(self) -> bool:
        """Whether it is switched off. One operation after a change, otherwise none. Calls may overlap."""
        if self._has_changed.is_set():
            has_changed = asyncio.Event()  # of this read: its watch may fire before its answer is here

            def note_change() -> None:
                has_changed.set()
                self._on_change()

            self._is_off = await self._store.exists(self._path, note_change) is not None
            self._has_changed = has_changed
        return self._is_off


class ReplicationSwitches:
    """Switches of one cluster. The docstring of each method states its cost in operations."""

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
        node = await find_node(self._store, self._paths.replication_disabled)
        return SwitchedOff(node.stat.ctime_ms, node.data) if node is not None else None

    async def disable(self, note: bytes = b"") -> bool:
        """Switch replication off; False when it was off. One operation if the tree exists.

        Java checks only that the node exists and never reads it, so it can hold a note. ClusterNotFoundError.
        """
        return await self._create(self._paths.replication_disabled, note)

    async def enable(self) -> bool:
        """Switch replication on; False when it was on. One operation."""
        try:
            await self._store.delete(self._paths.replication_disabled)
        except NoNodeError:
            return False
        return True

    # --- delay ---------------------------------------------------------------------------------------------------

    async def recovery_delay(self) -> RecoveryDelay | None:
        """The delay, None before any auditor ran or set it. One operation; MetadataFormatError."""
        node = await find_node(self._store, self._paths.lost_bookie_recovery_delay)
        return RecoveryDelay(self._parse_delay(node.data), node.stat.version) if node is not None else None

    async def set_recovery_delay(self, seconds: int) -> None:
        """Set the delay. One operation, three when there was none (if the tree exists).

        The running auditor audits immediately when the value is 0 or unchanged; otherwise a pending audit waits again.
        """
        if not 0 <= seconds <= DELAY_S_MAX:
            raise ValueError(f"a delay of {seconds} s is not between 0 and {DELAY_S_MAX}")
        await self._put(self._paths.lost_bookie_recovery_delay, str(seconds).encode("ascii"), is_open_acl=True)

    async def rewrite_recovery_delay(self) -> RecoveryDelay | None:
        """Write the delay unchanged: the auditor audits immediately. None when there is none. Two operations.

        Uses compare-and-set, so it does not overwrite a value that is set at the same time.
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

    async def replace_recovery_delay(self, seconds: int, expected: RecoveryDelay) -> bool:
        """Set another delay by compare-and-set; False when another process changed it meanwhile. One operation."""
        assert seconds != expected.seconds, "the same value would trigger an audit"
        data = str(seconds).encode("ascii")
        try:
            await self._store.set(self._paths.lost_bookie_recovery_delay, data, expected.version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    def watch_recovery_delay(self, callback: Callable[[RecoveryDelay | MetadataFormatError | None], None]) -> Watch:
        """Call back for the value now and for every later write, even of an unchanged value, never twice for one.

        None: there is no node. Several writes in quick succession may be reported as one, with the last value. One
        operation, and one per change (two when the node is absent).
        """
        last: tuple[int, int] | None = (-1, -1)  # no node yet

        def on_change(node: Node | None) -> None:
            nonlocal last
            identity = (node.stat.ctime_ms, node.stat.version) if node is not None else None
            if identity == last:
                return  # the same node again after a lost connection
            last = identity
            if node is None:
                callback(None)
                return
            try:
                seconds = self._parse_delay(node.data)
            except MetadataFormatError as error:
                callback(error)
            else:
                callback(RecoveryDelay(seconds, node.stat.version))

        return self._store.watch_node(self._paths.lost_bookie_recovery_delay, on_change)

    def _parse_delay(self, data: bytes) -> int:
        seconds = parse_delay(data)
        if seconds is None:
            path, text = self._paths.lost_bookie_recovery_delay, data.decode("utf-8", "replace")
            raise MetadataFormatError(f"{path}: {text!r} is not a number of seconds", path)
        return seconds

    # --- when checks ran -----------------------------------------------------------------------------------------

    async def check_time_ms(self, check: PeriodicCheck) -> int | None:
        """When the check last ran to its end, None when it never did. One operation; MetadataFormatError."""
        path = self._check_path(check)
        node = await find_node(self._store, path)
        return decode_node(path, node, decode_check_time) if node is not None else None

    async def set_check_time_ms(self, check: PeriodicCheck, time_ms: int) -> None:
        """Store when the check ran; an auditor reads it when it starts. One operation, two the first time."""
        await self._put(self._check_path(check), encode_check_time(time_ms))

    def _check_path(self, check: PeriodicCheck) -> str:
        return f"{self._paths.under_replication}/{check.value}"

    async def _put(self, path: str, data: bytes, *, is_open_acl: bool = False) -> None:
        """Set a node, or create it. ``is_open_acl``: for the delay, which Java's tools write without logging in."""
        for _ in range(_ATTEMPTS_MAX):
            with contextlib.suppress(NoNodeError):
                await self._store.set(path, data, ANY_VERSION)
                return
            if await self._create(path, data, is_open_acl=is_open_acl):
                return
        raise _contended(path)

    async def _create(self, path: str, data: bytes, *, is_open_acl: bool = False) -> bool:
        """Create a node; False when it exists."""
        try:
            await self._tree.create_node(path, data, is_open_acl=is_open_acl)
        except NodeExistsError:
            return False
        return True


def parse_delay(data: bytes) -> int | None:
    """Seconds; None for bytes that Java does not read as a delay."""
    text = data.decode("utf-8", "replace")
    return int(text) if _DELAY.fullmatch(text) and 0 <= int(text) <= DELAY_S_MAX else None


def _contended(path: str) -> ConflictError:
    return ConflictError(f"{path}: other processes keep changing it: stop them, then try again")


class AuditRequest:
    """The node that asks bkctl's auditor to audit now, next to the notes of autorecovery.

    Java's auditor audits when its delay is written again. bkctl's does so too, but never creates that node.
    """

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
