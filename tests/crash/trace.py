"""An strace log as a list of changes to a disk, in the order of the system calls.

A change counts from the start of its call on, because the kernel may have begun it. A sync counts at its return, and
only if it succeeded. What the traced program wrote to its notes (``NOTES_NAME``) counts at the start of the call: that
is the moment at which an acknowledgement leaves a process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

NOTES_NAME = "notes"
"""File name of what the program says of itself; kept outside the traced directory."""

TRACED = (
    "openat,open,creat,close,dup,dup2,dup3,write,pwrite64,pwritev,pwritev2,writev,fsync,fdatasync,sync_file_range,"
    "ftruncate,truncate,fallocate,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir"
)

_START = re.compile(r"^(\d+) +(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_UNFINISHED = "<unfinished ...>"


class Create(NamedTuple):
    """A file came into being, empty."""

    path: str
    file: int


class MakeDirectory(NamedTuple):
    """A directory came into being."""

    path: str


class Write(NamedTuple):
    """Bytes of a file were replaced or appended."""

    file: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A file got a length."""

    file: int
    size_bytes: int


class Rename(NamedTuple):
    """A file got another name, whose former file lost it."""

    source: str
    target: str


class Link(NamedTuple):
    """A file got a second name."""

    source: str
    target: str


class Remove(NamedTuple):
    """A name is gone."""

    path: str


class SyncFile(NamedTuple):
    """What was written to a file before this began is durable."""

    file: int
    began: int
    """How many changes had begun when the call did."""


class SyncDirectory(NamedTuple):
    """The names in a directory, as of when this began, are durable."""

    path: str
    began: int


class Note(NamedTuple):
    """A line that the program wrote about itself."""

    text: str


Change = Create | MakeDirectory | Write | Truncate | Rename | Link | Remove | SyncFile | SyncDirectory | Note


class _Call(NamedTuple):
    name: str
    arguments: str
    began: int


class _Open:
    """A file behind a descriptor, with its position."""

    def __init__(self, path: str, file: int, *, is_append: bool) -> None:
        self.path = path
        self.file = file
        self.is_append = is_append
        self.position = 0


class TraceReader:
    """Changes below ``root``, an empty directory at first; files are numbered in the order of their creation."""

    def __init__(self, root: str) -> None:
        self._root = os.path.join(root, "")
        self._changes: list[Change] = []
        self._descriptors: dict[int, _Open] = {}
        self._names: dict[str, int] = {}
        self._sizes: dict[int, int] = {}

    def read(self, lines: Iterable[str]) -> list[Change]:
        """All changes of a log; AssertionError for a call whose effect is not modelled."""
        pending: dict[str, _Call] = {}
        for line in lines:
            if (started := _START.match(line)) is not None:
                thread, name, arguments = started.groups()
                call = _Call(name, arguments.replace(_UNFINISHED, ""), len(self._changes))
                self._begin(call)
                if _UNFINISHED in arguments:
                    pending[thread] = call
                else:
                    self._end(call)
            elif (resumed := _RESUMED.match(line)) is not None:
                call = pending.pop(resumed[1])
                self._end(call._replace(arguments=call.arguments + resumed[3]))
        return self._changes

    def _begin(self, call: _Call) -> None:
        """Changes whose call needs no result to be understood."""
        match call.name:
            case "close":
                # Not at its end: by then another thread may have got the same number.
                self._descriptors.pop(_descriptor(call.arguments), None)
            case "write" | "writev":
                self._append(call)
            case "pwrite64" | "pwritev" | "pwritev2":
                opened = self._opened(call)
                if opened is not None:
                    numbers = _numbers_behind_data(call.arguments)
                    offset = int(numbers[-2 if call.name == "pwritev2" else -1])  # flags come last
                    self._write(opened, offset, _data(call.arguments))
            case "ftruncate":
                opened = self._opened(call)
                if opened is not None:
                    size_bytes = int(call.arguments.split(",")[1].rstrip().rstrip(")").split(")")[0])
                    self._sizes[opened.file] = size_bytes
                    self._changes.append(Truncate(opened.file, size_bytes))

    def _append(self, call: _Call) -> None:
        opened = self._opened(call)
        if opened is None:
            return
        data = _data(call.arguments)
        if opened.path == NOTES_NAME:
            self._changes += [Note(text) for text in data.decode().splitlines()]
            return
        offset = self._sizes[opened.file] if opened.is_append else opened.position
        self._write(opened, offset, data)
        opened.position = offset + len(data)

    def _write(self, opened: _Open, offset: int, data: bytes) -> None:
        self._sizes[opened.file] = max(self._sizes[opened.file], offset + len(data))
        self._changes.append(Write(opened.file, offset, data))

    def _end(self, call: _Call) -> None:
        """Changes that only their result shows, and what a call returned."""
        found = _RESULT.search(call.arguments, _end_of_strings(call.arguments))
        if found is None or (result := int(found[1])) < 0:
            return
        match call.name:
            case "openat" | "open" | "creat":
                self._open(call, result)
            case "dup" | "dup2" | "dup3":
                self._duplicate(call, result)
            case "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2":
                opened = self._opened(call)
                assert opened is None or result == len(_data(call.arguments)), f"a short write: {call.arguments[-80:]}"
            case "fsync" | "fdatasync":
                self._sync(call)
            case "ftruncate" | "close" | "sync_file_range":  # the last makes nothing durable
                pass
            case _:
                self._name(call)

    def _open(self, call: _Call, descriptor: int) -> None:
        path = self._inside(_paths(call.arguments)[0])
        if path is None:
            return
        flags = call.arguments
        if path == NOTES_NAME or "O_DIRECTORY" in flags or (path not in self._names and "O_CREAT" not in flags):
            self._descriptors[descriptor] = _Open(path, -1, is_append=False)
            return
        if path not in self._names:
            file = len(self._sizes)
            self._names[path] = file
            self._sizes[file] = 0
            self._changes.append(Create(path, file))
        file = self._names[path]
        if "O_TRUNC" in flags and self._sizes[file]:
            self._sizes[file] = 0
            self._changes.append(Truncate(file, 0))
        self._descriptors[descriptor] = _Open(path, file, is_append="O_APPEND" in flags)

    def _duplicate(self, call: _Call, result: int) -> None:
        opened = self._descriptors.get(_descriptor(call.arguments))
        if opened is not None:
            self._descriptors[result] = opened

    def _sync(self, call: _Call) -> None:
        opened = self._opened(call)
        if opened is None:
            return
        if opened.file < 0:
            self._changes.append(SyncDirectory(opened.path, call.began))
        else:
            self._changes.append(SyncFile(opened.file, call.began))

    def _name(self, call: _Call) -> None:
        paths = [self._inside(path) for path in _paths(call.arguments)]
        if not paths or paths[0] is None:
            assert not paths or all(path is None for path in paths), f"in or out of the directory: {call}"
            return
        source = paths[0]
        match call.name:
            case "mkdir" | "mkdirat":
                self._changes.append(MakeDirectory(source))
            case "rename" | "renameat" | "renameat2":
                target = _require(paths[1])
                moved = {path for path in self._names if path == source or path.startswith(source + os.sep)}
                for path in moved:
                    self._names[target + path[len(source) :]] = self._names.pop(path)
                self._changes.append(Rename(source, target))
            case "link" | "linkat":
                target = _require(paths[1])
                self._names[target] = self._names[source]
                self._changes.append(Link(source, target))
            case "unlink" | "unlinkat" | "rmdir":
                self._names.pop(source, None)
                self._changes.append(Remove(source))
            case name:
                raise AssertionError(f"{name} is not modelled")

    def _opened(self, call: _Call) -> _Open | None:
        return self._descriptors.get(_descriptor(call.arguments))

    def _inside(self, path: str) -> str | None:
        """Path relative to the root, or None outside of it; the notes count as inside."""
        if path.startswith(self._root) or os.path.join(path, "") == self._root:
            return path[len(self._root) :]
        return NOTES_NAME if os.path.basename(path) == NOTES_NAME else None


def read_trace(log_path: str, root: str) -> list[Change]:
    """Changes of the log of ``strace -f -xx -s <large> -e trace=TRACED`` below ``root``, and the notes."""
    with open(log_path) as lines:
        return TraceReader(root).read(lines)


def _require(path: str | None) -> str:
    assert path is not None, "out of the directory"
    return path


def _descriptor(arguments: str) -> int:
    return int(re.split(r"[,) ]", arguments, maxsplit=1)[0])


def _strings(arguments: str) -> Iterator[bytes]:
    for text, is_cut in _STRING.findall(arguments):
        assert not is_cut, "strace cut a string: -s is too small"
        yield bytes.fromhex(text.replace("\\x", ""))


def _data(arguments: str) -> bytes:
    return b"".join(_strings(arguments))


def _paths(arguments: str) -> list[str]:
    return [path.decode() for path in _strings(arguments)]


def _end_of_strings(arguments: str) -> int:
    return arguments.rfind('"') + 1


def _numbers_behind_data(arguments: str) -> list[str]:
    return re.findall(r"\d+", arguments[_end_of_strings(arguments) :].split(")", maxsplit=1)[0])
