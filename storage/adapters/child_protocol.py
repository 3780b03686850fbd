"""Messages between a parent and its child processes, and their encoding.

Each message is a 4-byte length and MessagePack. The parent sends tasks. The child answers each task with any number of
``TaskProgress``, ``TaskStage`` and ``Part`` messages and then one ``Result`` or ``Failure``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from bkctl.storage import errors
from bkctl.storage.errors import StorageError

LENGTH: Final = struct.Struct("<I")
"""Length prefix of every message."""


class TaskProgress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The task has progressed by ``amount``."""

    amount: int


class TaskStage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A stage of the task begins."""

    name: str
    total: int


class Part(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A part of a streamed answer."""

    data: msgspec.Raw


class Result(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The task is done; ``data`` is the answer, or nil at the end of a streamed one."""

    data: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The task failed: an OSError if ``errno`` is set, else the StorageError class ``kind`` with its ``fields``."""

    sentence: str
    errno: int | None = None
    path: str | None = None
    kind: str = ""
    fields: dict[str, Any] = {}


Message: TypeAlias = TaskProgress | TaskStage | Part | Result | Failure

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)


def frame(message: msgspec.Struct) -> bytes:
    """Encode a message or a task for the pipe."""
    encoded = _encoder.encode(message)
    return LENGTH.pack(len(encoded)) + encoded


def raw(value: Any) -> msgspec.Raw:
    """Encode an answer, or a part of one, for ``Result`` or ``Part``."""
    return msgspec.Raw(_encoder.encode(value))


class MessageReader:
    """Reassembles messages from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing_bytes = LENGTH.size

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that ``data`` completes. Exhaust this before the next call."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:  # join the pieces of a long answer only once
            return
        data = b"".join(self._pieces)
        start = 0
        missing_bytes = LENGTH.size - len(data)
        while missing_bytes <= 0:
            (size,) = LENGTH.unpack_from(data, start)
            body, end = start + LENGTH.size, start + LENGTH.size + size
            missing_bytes = end - len(data)
            if missing_bytes <= 0:
                yield _decoder.decode(memoryview(data)[body:end])
                start = end
                missing_bytes = start + LENGTH.size - len(data)
        self._pieces = [data[start:]]
        self._missing_bytes = missing_bytes


def failure_of(error: StorageError | OSError) -> Failure:
    """Encode an error of a task for the parent."""
    if isinstance(error, OSError):
        return Failure(f"{error.filename}: {error.strerror}", errno=error.errno or 0, path=error.filename)
    return Failure(str(error), kind=type(error).__name__, fields=vars(error))


def error_of(failure: Failure, directory: str) -> StorageError | OSError:
    """Recreate the error that the child raised. ``directory``: its working directory, to resolve relative paths."""
    if failure.errno is not None:
        # An error of an open file may have no path; the operator must know which disk failed.
        path = os.path.normpath(os.path.join(directory, failure.path or ""))
        return OSError(failure.errno, os.strerror(failure.errno), path)
    # The class determines the exit code. Bypass its constructor, which may take other arguments than the message.
    kind = _KINDS[failure.kind]
    error = kind.__new__(kind, failure.sentence)
    vars(error).update(failure.fields)
    return error


_KINDS: dict[str, type[StorageError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, StorageError)
}
