"""What a ZooKeeper server wrote to its transaction log: which session changed which node, in order.

With it a test proves from outside that no two processes repaired a ledger at the same time: every change of a ledger
node by a session that takes replication locks happened while that session held the lock of the ledger. Locks are
ephemeral nodes, so the log has all of their beginnings and ends.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bkctl.runtime.metadata.paths import Paths

_FILE_HEADER_BYTES = 16
_CREATES = {1, 15, 19, 21}
_DELETES = {2, 20}
_SET, _MULTI, _CLOSE, _ERROR = 5, 14, -11, -1
_HEADER = struct.Struct(">qiqqi")
_LEDGER = re.compile(r"/(\d{2})/(\d{4})/L(\d{4})", re.ASCII)
_LOCK = re.compile(r"/urL(\d{10,19})", re.ASCII)


class Change(NamedTuple):
    """One change; ``kind`` is "create", "delete", "set", or "close" for the end of a session (without a path)."""

    zxid: int
    time_ms: int
    session: int
    kind: str
    path: str = ""
    is_ephemeral: bool = False


class ZooKeeperLog:
    """The log of a server, read bit by bit while the server writes it. ``directory`` is its ``dataDir``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._positions: dict[Path, int] = {}

    def new_changes(self) -> Iterator[Change]:
        """Changes since the last call, oldest first."""
        for path in sorted(self._directory.glob("version-2/log.*"), key=lambda each: int(each.suffix[1:], 16)):
            yield from self._changes_of(path)

    def _changes_of(self, path: Path) -> Iterator[Change]:
        begin = self._positions.get(path, _FILE_HEADER_BYTES)
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read()
        position = 0
        while position + 12 <= len(data):
            length = struct.unpack_from(">i", data, position + 8)[0]
            end = position + 12 + length
            if length <= 0 or data[end : end + 1] != b"B":
                break  # the end, or a record that a kill has cut off
            session, _, zxid, time_ms, kind = _HEADER.unpack_from(data, position + 12)
            for each in _operations(kind, data[position + 12 + _HEADER.size : end]):
                yield Change(zxid, time_ms, session, *each)
            position = end + 1
        self._positions[path] = begin + position


def _operations(kind: int, body: bytes) -> Iterator[tuple[str, str, bool]]:
    if kind == _MULTI:
        parts = list(_parts(body))
        if all(part_kind != _ERROR for part_kind, _ in parts):  # else nothing of it took place
            for part_kind, part in parts:
                yield from _operations(part_kind, part)
    elif kind in _CREATES:
        path, rest = _string(body)
        yield "create", path, kind in {1, 15} and _is_ephemeral(rest)
    elif kind in _DELETES:
        yield "delete", _string(body)[0], False
    elif kind == _SET:
        yield "set", _string(body)[0], False
    elif kind == _CLOSE:
        yield "close", "", False


def _parts(body: bytes) -> Iterator[tuple[int, bytes]]:
    position = 4
    for _ in range(struct.unpack_from(">i", body)[0]):
        kind, length = struct.unpack_from(">ii", body, position)
        yield kind, body[position + 8 : position + 8 + length]
        position += 8 + length


def _string(data: bytes) -> tuple[str, bytes]:
    length = max(0, struct.unpack_from(">i", data)[0])
    return data[4 : 4 + length].decode(), data[4 + length :]


def _is_ephemeral(body: bytes) -> bool:
    """``body``: data, access rights, the flag."""
    (data_length,) = struct.unpack_from(">i", body)
    body = body[4 + max(0, data_length) :]
    rights = struct.unpack_from(">i", body)[0]
    body = body[4:]
    for _ in range(max(0, rights)):
        _, body = _string(body[4:])
        _, body = _string(body)
    return body[0] == 1


class RepairWatch:
    """Compares each change of a ledger node with the locks that were held."""

    def __init__(self, directory: Path, root: str) -> None:
        self.problems: list[str] = []
        """Changes of ledger nodes by a session that takes locks, without the lock of the ledger."""
        self.repairs: Counter[tuple[int, int]] = Counter()
        """Changes of ledger nodes under the lock of the ledger, by session and ledger."""
        self._log = ZooKeeperLog(directory)
        self._root = root
        self._locks_path = Paths(root).replication_locks
        self._owners: dict[int, int] = {}
        self._lock_users: set[int] = set()

    def read(self) -> None:
        """Go on to the end of the log."""
        for change in self._log.new_changes():
            self._take(change)

    def _take(self, change: Change) -> None:
        if change.kind == "close":
            self._owners = {each: owner for each, owner in self._owners.items() if owner != change.session}
        elif (lock := _number(_LOCK, change.path, self._locks_path)) is not None:
            if change.kind == "create":
                self._owners[lock] = change.session
                self._lock_users.add(change.session)
            elif change.kind == "delete":
                self._owners.pop(lock, None)
        elif (
            change.kind == "set"
            and change.session in self._lock_users
            and (ledger_id := _number(_LEDGER, change.path, self._root)) is not None
        ):
            self._judge(ledger_id, change.session)

    def _judge(self, ledger_id: int, session: int) -> None:
        owner = self._owners.get(ledger_id)
        if owner == session:
            self.repairs[session, ledger_id] += 1
        else:
            by = "no session" if owner is None else f"session {owner:#x}"
            self.problems.append(f"session {session:#x} changed ledger {ledger_id}, whose lock {by} had")


def _number(pattern: re.Pattern[str], path: str, directory: str) -> int | None:
    if not path.startswith(directory):
        return None
    match = pattern.fullmatch(path, len(directory))
    return int("".join(match.groups())) if match else None
