"""Adapter of the ``Children`` port: child processes connected by pipes. In storage only this module starts processes.

A child runs ``python -P -m bkctl.storage.adapters.child_main MODULE``. The pool uses no threads; it polls all pipes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, NoReturn

import msgspec

from bkctl.storage.adapters.child_protocol import (
    Failure,
    Message,
    MessageReader,
    Part,
    Result,
    TaskProgress,
    TaskStage,
    error_of,
    frame,
)
from bkctl.storage.errors import ChildFailedError
from bkctl.storage.ports import AnswerT, ChildPool, OnProgress, OnStage, TaskT

_READ_BYTES = 1 << 20
_END_S_MAX = 5.0


class ChildProcesses:
    """Starts child processes of this process; implements ``Children``.

    ``end_s_max``: how long to wait for a killed child to end.
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
        self,
        tasks: Iterable[TaskT],
        answer_type: type[AnswerT],
        on_progress: OnProgress | None = None,
        on_stage: OnStage | None = None,
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
                        if isinstance(message, TaskStage):
                            if on_stage is not None:
                                on_stage(message.name, message.total)
                            continue
                        done = busy.pop(child)
                        answer = msgspec.msgpack.decode(self._data_of(message), type=answer_type)
                        selector.unregister(child.output)
                        free.append(child)
                        give()  # the child works on while the caller handles the answer
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
        """Wait for the children to end and close their pipes; call ``stop`` first."""
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
        if self._is_stopped:  # another thread called ``stop``, perhaps before this child was in the list
            child.kill()
        return child


class _Child:
    """One child process and its connection."""

    def __init__(self, module: str, directory: str, end_s_max: float) -> None:
        self._module = module
        self._end_s_max = end_s_max
        self._process = subprocess.Popen(  # noqa: S603  this interpreter and our own module
            [sys.executable, "-P", "-m", "bkctl.storage.adapters.child_main", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            # Ctrl-C must reach the parent only: it stops its children itself, even those that are still starting.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self.output: IO[bytes] = self._process.stdout
        self._reader = MessageReader()

    def send(self, task: msgspec.Struct) -> None:
        """Send a task."""
        try:
            self._input.write(frame(task))
            self._input.flush()
        except BrokenPipeError:
            self._raise_ended()

    def receive(self) -> Iterator[Message]:
        """Wait for data and return the complete messages."""
        data = os.read(self.output.fileno(), _READ_BYTES)
        if not data:
            self._raise_ended()
        return self._reader.feed(data)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def release(self) -> None:
        """Wait for the process to end and close its pipes."""
        for pipe in (self._input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()
        # A process that is blocked on an unresponsive disk ends once the disk responds, without further work.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._end_s_max)

    def _raise_ended(self) -> NoReturn:
        try:
            status = self._process.wait(self._end_s_max)
        except subprocess.TimeoutExpired:
            raise ChildFailedError(f"a child process ({self._module}) stopped responding") from None
        if status == -signal.SIGINT:  # Ctrl-C, while it was leaving the session of the terminal
            raise KeyboardInterrupt
        how = f"was killed by signal {-status}" if status < 0 else f"exited with code {status}"
        raise ChildFailedError(f"a child process ({self._module}) {how}")
