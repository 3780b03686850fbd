"""Child processes for work over all entries, spoken to over pipes. ``storage`` starts no thread and forks no pool.

A child is ``python -P -m <module>``; it reads one JSON task per line and answers each with any number of lines
``{"progress": n}`` and one line ``{"result": ...}`` or ``{"error": "sentence", "errno": n or null}``, which
also has the class and the fields of a ``StorageError``. It ends when its input does: so it ends with its parent,
however that ended. A child writes in its working folder, under relative names,
or in others made for the same job: once they are deleted, a child that outlived its parent can write nothing any more.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import msgspec

from storage import errors
from storage.errors import ChildFailedError, StorageError
from storage.ports import Progress

Task = TypeVar("Task", bound=msgspec.Struct)

_READ_BYTES = 1 << 20
_END_S_MAX = 5.0


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ChildPool:
    """Up to ``count`` children of one module; ``with`` ends them."""

    def __init__(self, module: str, directory: str, count: int) -> None:
        self._module = module
        self._directory = directory
        self._count = count
        self._children: list[_Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _class: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.release()
        self._children = []

    def run(
        self,
        tasks: Iterable[Task],
        on_progress: Progress | None = None,
        patience_s: float | None = None,
        ahead_count_max: int | None = None,
    ) -> Iterator[tuple[Task, Any]]:
        """Give each task to a child that is free; yields (task, result) as they come.

        ``on_progress`` gets what the children report. ``patience_s``: a child with a task that says nothing for so long
        has failed; None: it may take its time. ``ahead_count_max``: tasks that may have been given, from the oldest one
        on that is not done; None: any number. ChildFailedError, StorageError or OSError as the child told it.
        """
        waiting = iter(tasks)
        busy: dict[_Child, tuple[int, Task]] = {}
        free = list(self._children)
        given_count = 0

        def give() -> None:
            nonlocal given_count
            while len(busy) < self._count:
                oldest = min((number for number, _ in busy.values()), default=given_count)
                if ahead_count_max is not None and given_count - oldest >= ahead_count_max:
                    return
                if (task := next(waiting, None)) is None:
                    return
                child = free.pop() if free else self._start()
                child.send(task)
                selector.register(child.output, selectors.EVENT_READ, child)
                busy[child] = given_count, task
                given_count += 1

        with selectors.DefaultSelector() as selector:
            give()
            while busy:
                ready = {key.data for key, _ in selector.select(patience_s)}
                if patience_s is not None:
                    for child in busy:
                        child.require_heard(patience_s, is_heard=child in ready)
                for child in ready:
                    for answer in child.receive():
                        if "progress" in answer:
                            if on_progress is not None:
                                on_progress(answer["progress"])
                            continue
                        _, done = busy.pop(child)
                        result = _result_of(answer, self._directory)
                        selector.unregister(child.output)
                        free.append(child)
                        give()  # before the caller takes its time over the answer: the child goes on meanwhile
                        yield done, result

    def _start(self) -> _Child:
        try:
            child = _Child(self._module, self._directory)
        except OSError as error:
            raise ChildFailedError(
                f"a child process ({self._module}) could not be started ({error.strerror})"
            ) from error
        self._children.append(child)
        return child


class _Child:
    """One process and the part of an answer that has come so far."""

    def __init__(self, module: str, directory: str) -> None:
        self._module = module
        self._process = subprocess.Popen(  # noqa: S603  this interpreter and a module of ours
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            # Ctrl-C is for the parent, which ends its children itself; it must not strike one that is still starting.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self.output: IO[bytes] = self._process.stdout
        self._parts: list[bytes] = []
        self._heard_s = 0.0

    def send(self, task: msgspec.Struct) -> None:
        """Hand over a task."""
        self._heard_s = time.monotonic()
        try:
            self._input.write(msgspec.json.encode(task) + b"\n")
            self._input.flush()
        except BrokenPipeError:
            self._raise_ended()

    def receive(self) -> list[dict[str, Any]]:
        """The answers that have come whole; at least a part of one is there."""
        data = os.read(self.output.fileno(), _READ_BYTES)
        if not data:
            self._raise_ended()
        *ends, rest = data.split(b"\n")
        if not ends:  # a long answer comes in many parts
            self._parts.append(rest)
            return []
        lines = [b"".join([*self._parts, ends[0]]), *ends[1:]]
        self._parts = [rest]
        return [msgspec.json.decode(line) for line in lines]

    def require_heard(self, patience_s: float, *, is_heard: bool) -> None:
        """ChildFailedError for a child that has said nothing for so long, and says nothing now."""
        now_s = time.monotonic()
        if is_heard:
            self._heard_s = now_s
        elif now_s - self._heard_s >= patience_s:
            raise ChildFailedError(f"a child process ({self._module}) has said nothing for {patience_s:.0f} s")

    def kill(self) -> None:
        """Stop it, whatever it does."""
        self._process.kill()

    def release(self) -> None:
        """Wait for its end and close what it was spoken to over."""
        for pipe in (self._input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()
        # One that waits for a disk which does not answer ends when that does, and does nothing more before.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S_MAX)

    def _raise_ended(self) -> None:
        try:
            status = self._process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            raise ChildFailedError(f"a child process ({self._module}) says nothing any more") from None
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        raise ChildFailedError(f"a child process ({self._module}) {how}")


class _ReaderGoneError(Exception):
    """The parent has ended. No BrokenPipeError: a task's own OSError is an answer, and there is nobody to answer."""


def serve(handlers: dict[type[Any], Callable[[Any, Progress], Any]]) -> None:
    """The child's side: answer the tasks of standard input by their type until it, or the parent, ends."""
    union: Any = None
    for kind in handlers:
        union = kind if union is None else union | kind
    decoder = msgspec.json.Decoder(union)
    try:
        for line in sys.stdin.buffer:
            task = decoder.decode(line)
            _answer(_answer_to(task, handlers[type(task)]))
    except _ReaderGoneError:
        forget_output()


def forget_output() -> None:
    """End quietly though nobody reads what is left: the interpreter must not try to write it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _answer_to(task: object, handler: Callable[[Any, Progress], Any]) -> dict[str, Any]:
    try:
        return {"result": handler(task, _report)}
    except StorageError as error:
        return {"error": str(error), "errno": None, "kind": type(error).__name__, "fields": vars(error)}
    except OSError as error:
        return {"error": f"{error.filename}: {error.strerror}", "errno": error.errno, "path": error.filename}


def _report(amount: int) -> None:
    _answer({"progress": amount})


def _answer(answer: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise _ReaderGoneError from error


def _result_of(answer: dict[str, Any], directory: str) -> Any:
    if "result" in answer:
        return answer["result"]
    if answer["errno"] is not None:
        # A write through an open file has no path, and a child's own are relative: people must know which disk.
        path = os.path.join(directory, answer["path"]) if answer["path"] else directory
        raise OSError(answer["errno"], os.strerror(answer["errno"]), path)
    # The class decides the exit code; its constructor may want other arguments than the finished sentence.
    kind = _KINDS[answer["kind"]]
    error = kind.__new__(kind, answer["error"])
    vars(error).update(answer["fields"])
    raise error


_KINDS: dict[str, type[StorageError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, StorageError)
}
