"""The Children port without processes: a task runs in the caller, on its disk, when the answer is taken."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bkctl.storage.adapters.child_protocol import raw
from bkctl.storage.errors import ChildFailedError
from bkctl.storage.ports import (
    AnswerT,
    ChildContext,
    ChildHandlers,
    ChildPool,
    FileSystem,
    OnProgress,
    OnStage,
    OpenIndexStore,
    TaskT,
)


class InProcessChildren:
    """Implements ``Children``. Answers pass through their encoding, as they would between two processes."""

    core_count = 2

    def __init__(self, file_system: FileSystem, open_index: OpenIndexStore) -> None:
        self._file_system = file_system
        self._open_index = open_index

    @contextlib.contextmanager
    def pool(self, module: str, directory: str, count: int) -> Iterator[ChildPool]:
        """See ``Children``."""
        context = ChildContext(self._file_system, self._open_index, self, directory, lambda _: None, lambda *_: None)
        pool = _Pool(importlib.import_module(module).HANDLERS, context)
        try:
            yield pool
        finally:
            pool.stop()


class _Pool:
    """One task at a time, in their order; implements ``ChildPool``."""

    def __init__(self, handlers: ChildHandlers, context: ChildContext) -> None:
        self._handlers = handlers
        self._context = context
        self._is_stopped = False

    def run(
        self,
        tasks: Iterable[TaskT],
        answer_type: type[AnswerT],
        on_progress: OnProgress | None = None,
        on_stage: OnStage | None = None,
    ) -> Iterator[tuple[TaskT, AnswerT]]:
        """See ``ChildPool``."""
        context = self._context if on_progress is None else self._context._replace(report=on_progress)
        context = context if on_stage is None else context._replace(begin=on_stage)
        for task in tasks:
            self._require_going()
            answer = self._handlers[type(task)](_passed_on(task, type(task)), context)
            yield task, _passed_on(answer, answer_type)

    def stream(self, task: msgspec.Struct, part_type: Any) -> Iterator[Any]:
        """See ``ChildPool``."""
        for part in self._handlers[type(task)](_passed_on(task, type(task)), self._context):
            self._require_going()
            yield _passed_on(part, part_type)

    def stop(self) -> None:
        """See ``ChildPool``."""
        self._is_stopped = True

    def _require_going(self) -> None:
        if self._is_stopped:
            raise ChildFailedError("the children were stopped")


def _passed_on(value: object, kind: Any) -> Any:
    return msgspec.msgpack.decode(raw(value), type=kind)
