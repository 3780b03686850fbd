"""What a disk may hold after the power fails at a chosen moment of a trace.

Two rules of what survives, the choice among the outcomes drawn from a seed:

- ``ORDERED``, as ext4 keeps metadata: of the changes of names a first part survives, at least up to what a sync has
  committed. A sync of a file commits the names that were made before the file last changed its name or length.
- ``STRICT``, what POSIX promises: each change of a name survives or not, on its own, until its directory is synced.

In both, of what was written to a file and not synced, each sector survives or not, on its own. What did not survive
reads as what was there before, or as zeros where nothing was.
"""

from __future__ import annotations

import enum
import os
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.crash.trace import (
    Change,
    Create,
    Link,
    MakeDirectory,
    Note,
    Remove,
    Rename,
    SyncDirectory,
    SyncFile,
    Truncate,
    Write,
)

SECTOR_BYTES = 512

_ROOT = -1
"""Number of the root directory; directories count down from here, files up from 0."""


class Mode(enum.Enum):
    """What survives of the changes of names."""

    ORDERED = "ordered"
    STRICT = "strict"


class _File:
    """Bytes of a file: those that are durable, and the writes behind them."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.unsynced: list[tuple[int, Write | Truncate]] = []
        self.size_bytes = 0
        self.last_metadata_change = 0
        """Number of the change that gave it its name or its length."""

    def change(self, number: int, change: Write | Truncate) -> None:
        self.unsynced.append((number, change))
        end = change.size_bytes if isinstance(change, Truncate) else change.offset + len(change.data)
        if isinstance(change, Truncate) or end > self.size_bytes:
            self.size_bytes = end
            self.last_metadata_change = number

    def sync(self, began: int) -> None:
        """Make durable what was written before the change of number ``began``."""
        while self.unsynced and self.unsynced[0][0] < began:
            _apply(self.durable, self.unsynced.pop(0)[1])


class _Entry(NamedTuple):
    """A name in a directory, and what it stands for from now on; None: nothing."""

    directory: int
    name: str
    node: int | None


class _NameChange:
    """A change of names; survives as a whole or not at all."""

    def __init__(self, number: int, entries: tuple[_Entry, ...]) -> None:
        self.number = number
        self.entries = entries
        self.is_durable = False


class ModelDisk:
    """A disk that changes are applied to one by one; ``survivors`` draws one outcome of a power failure."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._files: dict[int, _File] = {}
        self._directories: dict[int, dict[str, int]] = {_ROOT: {}}
        """Names as the running program sees them."""
        self._name_changes: list[_NameChange] = []
        self._committed = -1

    def apply(self, number: int, change: Change) -> None:
        """Take the change that has this number in the trace; numbers ascend."""
        match change:
            case Write(file) | Truncate(file):
                self._files[file].change(number, change)
            case SyncFile(file, began):
                self._files[file].sync(began)
                # The journal of the file system commits in order: with this file's name and length all earlier names.
                self._commit(min(self._files[file].last_metadata_change, began - 1))
            case SyncDirectory(path, began):
                self._sync_directory(self._node(path), began)
            case Note():
                pass
            case _:
                self._change_names(number, change)

    def survivors(self, chance: random.Random) -> dict[str, bytes | None]:
        """Path and contents of each file, None for directories, parents first, after a power failure now."""
        directories: dict[int, dict[str, int]] = {_ROOT: {}}
        for name_change in self._surviving_name_changes(chance):
            _change(directories, name_change.entries)
        contents: dict[int, bytes] = {}
        tree: dict[str, bytes | None] = {}
        for path, node in _walk(directories, _ROOT, ""):
            if node < 0:
                tree[path] = None
                continue
            if node not in contents:
                contents[node] = self._contents(node, chance)
            tree[path] = contents[node]
        return tree

    def _sync_directory(self, directory: int, began: int) -> None:
        touching = [
            item
            for item in self._name_changes
            if item.number < began and any(entry.directory == directory for entry in item.entries)
        ]
        for item in touching:
            item.is_durable = True
        if touching:
            self._commit(touching[-1].number)

    def _commit(self, number: int) -> None:
        self._committed = max(self._committed, number)

    def _change_names(self, number: int, change: Create | MakeDirectory | Rename | Link | Remove) -> None:
        entries = self._entries(change)
        self._name_changes.append(_NameChange(number, entries))
        for entry in entries:
            if entry.node is not None and entry.node >= 0:
                self._files.setdefault(entry.node, _File()).last_metadata_change = number
        _change(self._directories, entries)

    def _entries(self, change: Create | MakeDirectory | Rename | Link | Remove) -> tuple[_Entry, ...]:
        match change:
            case Create(path, file):
                return (_Entry(*self._place(path), file),)
            case MakeDirectory(path):
                return (_Entry(*self._place(path), -1 - len(self._directories)),)
            case Rename(source, target):
                moved = _Entry(*self._place(target), self._node(source))
                return _Entry(*self._place(source), None), moved
            case Link(source, target):
                return (_Entry(*self._place(target), self._node(source)),)
            case Remove(path):
                return (_Entry(*self._place(path), None),)

    def _place(self, path: str) -> tuple[int, str]:
        directory, name = os.path.split(path)
        return self._node(directory), name

    def _node(self, path: str) -> int:
        node = _ROOT
        for name in path.split(os.sep) if path else ():
            node = self._directories[node][name]
        return node

    def _surviving_name_changes(self, chance: random.Random) -> list[_NameChange]:
        if self._mode is Mode.ORDERED:
            certain = sum(item.number <= self._committed for item in self._name_changes)
            return self._name_changes[: chance.randint(certain, len(self._name_changes))]
        share = chance.choice((0.0, 0.5, 0.9, 1.0))
        return [item for item in self._name_changes if item.is_durable or chance.random() < share]

    def _contents(self, file: int, chance: random.Random) -> bytes:
        state = self._files[file]
        contents = bytearray(state.durable)
        # Often nothing or all of it survives; in between, each sector decides.
        share = chance.choice((0.0, 1.0, 0.5, chance.random()))
        for _, change in state.unsynced:
            if isinstance(change, Write):
                _write_sectors(contents, change, share, chance)
            elif chance.random() < share:
                _apply(contents, change)
        return bytes(contents)


def write_tree(root: str, tree: dict[str, bytes | None]) -> None:
    """Put what survived into the directory ``root``."""
    os.makedirs(root, exist_ok=True)
    for path, contents in tree.items():
        full = os.path.join(root, path)
        if contents is None:
            os.makedirs(full, exist_ok=True)
            continue
        with open(full, "wb") as file:
            file.write(contents)


def _apply(contents: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del contents[change.size_bytes :]
        contents.extend(bytes(change.size_bytes - len(contents)))
        return
    end = change.offset + len(change.data)
    contents.extend(bytes(max(0, change.offset - len(contents))))
    contents[change.offset : end] = change.data


def _write_sectors(contents: bytearray, write: Write, share: float, chance: random.Random) -> None:
    """Write some sectors of ``write``; the length covers the last of them, or all of it over zeros."""
    end = write.offset + len(write.data)
    offset = write.offset
    while offset < end:
        stop = min(end, offset - offset % SECTOR_BYTES + SECTOR_BYTES)
        if chance.random() < share:
            piece = write.data[offset - write.offset : stop - write.offset]
            _apply(contents, Write(write.file, offset, piece))
        offset = stop
    if len(contents) < end and chance.random() < share / 4:
        contents.extend(bytes(end - len(contents)))


def _change(directories: dict[int, dict[str, int]], entries: Sequence[_Entry]) -> None:
    for directory, name, node in entries:
        names = directories.setdefault(directory, {})
        if node is None:
            names.pop(name, None)
            continue
        names[name] = node
        if node < 0:
            directories.setdefault(node, {})


def _walk(directories: dict[int, dict[str, int]], directory: int, prefix: str) -> Iterator[tuple[str, int]]:
    for name, node in sorted(directories.get(directory, {}).items()):
        path = os.path.join(prefix, name)
        yield path, node
        if node < 0:
            yield from _walk(directories, node, path)
