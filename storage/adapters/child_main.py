"""Start of a child process: ``python -P -m bkctl.storage.adapters.child_main MODULE``. Creates the child's adapters.

The module's handlers answer the tasks from standard input. The child exits when standard input or standard output is
closed, so it always ends with its parent.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.child_protocol import LENGTH, Part, Result, TaskProgress, TaskStage, failure_of, frame, raw
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import StorageError
from bkctl.storage.ports import ChildContext, ChildHandler, ChildHandlers, IndexStore


class _ReaderGoneError(Exception):
    """The parent has ended. Not a BrokenPipeError, because an OSError of a task is sent as an answer."""


def serve(handlers: ChildHandlers) -> None:
    """Answer tasks by their type until the parent ends."""
    decoder = _task_decoder(handlers)
    context = ChildContext(
        file_system=OsFileSystem(),
        open_index=_open_index,
        children=ChildProcesses(),
        directory=".",
        report=lambda amount: _send(TaskProgress(amount)),
        begin=lambda name, total: _send(TaskStage(name, total)),
    )
    try:
        while head := sys.stdin.buffer.read(LENGTH.size):
            task = decoder.decode(sys.stdin.buffer.read(*LENGTH.unpack(head)))
            _send(_answer(handlers[type(task)], task, context))
    except _ReaderGoneError:
        # At exit the interpreter flushes its buffer again, which would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _task_decoder(handlers: ChildHandlers) -> msgspec.msgpack.Decoder[Any]:
    union: Any = None
    for kind in handlers:
        union = kind if union is None else union | kind
    return msgspec.msgpack.Decoder(union)


def _answer(handler: ChildHandler, task: Any, context: ChildContext) -> msgspec.Struct:
    try:
        answer = handler(task, context)
        if not isinstance(answer, Iterator):
            return Result(raw(answer))
        for part in answer:
            _send(Part(raw(part)))
        return Result(raw(None))
    except (StorageError, OSError) as error:
        return failure_of(error)


def _send(message: msgspec.Struct) -> None:
    try:
        sys.stdout.buffer.write(frame(message))
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise _ReaderGoneError from error


def _open_index(path: str, *, create: bool, strict: bool) -> IndexStore:
    from bkctl.storage.adapters.index_store import open_plyvel  # noqa: PLC0415  few children need LevelDB

    return open_plyvel(path, create=create, strict=strict)


def main(module_name: str) -> None:
    """Serve the tasks of a module."""
    module = importlib.import_module(module_name)
    os.nice(getattr(module, "NICENESS", 0))
    serve(module.HANDLERS)


if __name__ == "__main__":
    main(sys.argv[1])
