"""Child processes over pipes: the adapter of the ``Children`` port, and the only module that starts processes.

A child is ``python -P -m storage.adapters.child_main MODULE``. The pool uses no thread: it waits for all pipes at once.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, NoReturn

import msgspec

from storage.adapters.child_protocol import Failure, Message, MessageReader, Part, Result, TaskProgress, error_of, frame
from storage.errors import ChildFailedError
from storage.ports import AnswerT, ChildPool, OnProgress, TaskT

_READ_BYTES = 1 << 20
_END_S_MAX = 5.0


class ChildProcesses:
    """Child processes of this one; implements ``Children``.

    ``end_s_max``: how long a killed child may take to end before it is left alone.
    """

    def __init__(self, *, end_s_max: float = _END_S_MAX) -> None:
        self._end_s_max = end_s_max

    @property
    def core_count(self) -> int:
        """Cores that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @contextlib.contextmanager
    def pool(self, module: str, directory: str, count: int) -> Iterator[ChildPool]:
        """See ``Children``."""
        pool = _Pool(module, directory, count, self._end_s_max)
        try:
            yield pool
        finally:
            pool.stop()
            pool.release()


class _Pool:
    """Up to ``count`` children of one module; implements ``ChildPool``."""

    def __init__(self, module: str, directory: str, count: int, end_s_max: float) -> None:
        self._module = module
        self._directory = directory
        self._count = count
        self._end_s_max = end_s_max
        self._children: list[_Child] = []
        self._is_stopped = False

    def run(
        self, tasks: Iterable[TaskT], answer_type: type[AnswerT], on_progress: OnProgress | None = None
    ) -> Iterator[tuple[TaskT, AnswerT]]:
        """See ``ChildPool``."""
        waiting = iter(tasks)
        busy: dict[_Child, TaskT] = {}
        free = list(self._children)

        def give() -> None:
            while len(busy) < self._count:
                if (task := next(waiting, None)) is None:
                    return
                child = free.pop() if free else self._start()
                child.send(task)
                selector.register(child.output, selectors.EVENT_READ, child)
                busy[child] = task

        with selectors.DefaultSelector() as selector:
            give()
            while busy:
                for key, _ in selector.select():
                    child = key.data
                    for message in child.receive():
                        if isinstance(message, TaskProgress):
                            if on_progress is not None:
                                on_progress(message.amount)
                            continue
                        done = busy.pop(child)
                        answer = msgspec.msgpack.decode(self._data_of(message), type=answer_type)
                        selector.unregister(child.output)
                        free.append(child)
                        give()  # before the caller takes its time over the answer: the child goes on meanwhile
                        yield done, answer

    def stream(self, task: msgspec.Struct, part_type: Any) -> Iterator[Any]:
        """See ``ChildPool``."""
        decoder = msgspec.msgpack.Decoder(part_type)
        child = self._start()
        child.send(task)
        while True:
            for message in child.receive():
                data = self._data_of(message)
                if isinstance(message, Result):
                    return
                yield decoder.decode(data)

    def stop(self) -> None:
        """See ``ChildPool``."""
        self._is_stopped = True
        for child in list(self._children):
            child.kill()

    def release(self) -> None:
        """Wait for the children to end, and close their pipes; ``stop`` comes first."""
        for child in self._children:
            child.release()
        self._children = []

    def _data_of(self, message: Message) -> msgspec.Raw:
        if isinstance(message, Failure):
            raise error_of(message, self._directory)
        assert isinstance(message, Part | Result), "a streaming handler reports no progress"
        return message.data

    def _start(self) -> _Child:
        try:
            child = _Child(self._module, self._directory, self._end_s_max)
        except OSError as error:
            raise ChildFailedError(f"cannot start a child process ({self._module}): {error.strerror}") from error
        self._children.append(child)
        if self._is_stopped:  # by another thread, which may not have seen this child
            child.kill()
        return child


class _Child:
    """One process and the part of a message that has come so far."""

    def __init__(self, module: str, directory: str, end_s_max: float) -> None:
        self._module = module
        self._end_s_max = end_s_max
        self._process = subprocess.Popen(  # noqa: S603  this interpreter and a module of ours
            [sys.executable, "-P", "-m", "storage.adapters.child_main", module],
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
        self._reader = MessageReader()

    def send(self, task: msgspec.Struct) -> None:
        """Hand over a task."""
        try:
            self._input.write(frame(task))
            self._input.flush()
        except BrokenPipeError:
            self._raise_ended()

    def receive(self) -> Iterator[Message]:
        """The messages that are complete; waits for data if there is none."""
        data = os.read(self.output.fileno(), _READ_BYTES)
        if not data:
            self._raise_ended()
        return self._reader.feed(data)

    def kill(self) -> None:
        """Stop it, whatever it does."""
        self._process.kill()

    def release(self) -> None:
        """Wait for its end and close its pipes."""
        for pipe in (self._input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()
        # One that waits for a disk which does not answer ends when that does, and does nothing more before.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._end_s_max)

    def _raise_ended(self) -> NoReturn:
        try:
            status = self._process.wait(self._end_s_max)
        except subprocess.TimeoutExpired:
            raise ChildFailedError(f"a child process ({self._module}) stopped responding") from None
        how = f"was killed by signal {-status}" if status < 0 else f"exited with code {status}"
        raise ChildFailedError(f"a child process ({self._module}) {how}")
