"""The client for scripts without an event loop: each call waits until its work is done.

    from bkctl.runtime.client.blocking import BlockingClient

    with BlockingClient(metadata_uri) as client:
        with client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as writer:
            writer.append(b"hello")
        for entry in client.open(writer.ledger_id).follow():
            print(entry.entry_id, entry.payload)

Arguments and errors are those of ``LedgerClient``, whose work runs on a loop in a thread of its own. Each entry costs
two switches of threads: a program that needs throughput uses ``LedgerClient``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import itertools
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.client.reader import Entry, LedgerReader
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import LedgerClosedError

P = ParamSpec("P")
T = TypeVar("T")

CLOSED = "the client was closed"

_ENTRIES_AT_ONCE = 500
"""Entries that ``append_all`` takes from its caller before it sends them."""


class LoopThread:
    """An event loop in a thread, which ends with ``stop``, or with the program."""

    def __init__(self) -> None:
        started: queue.SimpleQueue[asyncio.AbstractEventLoop] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(started,), name="ledger-client", daemon=True)
        self._thread.start()
        self._loop = started.get()
        self._turn = threading.Lock()
        self._is_stopped = False
        atexit.register(self.stop)  # later the thread no longer runs, and nothing may wait for it

    @staticmethod
    def _work(started: queue.SimpleQueue[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:  # at its end it cancels what still runs
            loop = runner.get_loop()
            started.put(loop)
            loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns, or raise what it raises; LedgerClosedError after ``stop``.

        If this call is interrupted, as by Ctrl-C, the work is cancelled, and has ended when it returns.
        """
        tasks: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda _: ended.set())

        def cancel() -> None:
            tasks[0].cancel()

        with self._turn:  # what is handed over before the stop begins
            if self._is_stopped:
                work.close()
                raise LedgerClosedError(None, CLOSED)
            self._loop.call_soon_threadsafe(begin)
        try:
            ended.wait()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so the work has ended
                self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        if tasks[0].cancelled():
            raise LedgerClosedError(None, CLOSED)
        return tasks[0].result()

    def stop(self) -> None:
        """Cancel what still runs, and wait for the thread's end. Safe to repeat."""
        with self._turn:
            if not self._is_stopped:
                self._is_stopped = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        atexit.unregister(self.stop)


def _parameters_of(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a method the parameters of ``method``, for type checkers and ``help``: they are declared there alone."""

    def declare(facade: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        result = inspect.signature(facade).return_annotation
        signature = inspect.signature(method).replace(return_annotation=result)
        facade.__signature__ = signature  # type: ignore[attr-defined]  # what inspect looks for
        return facade

    return declare


class BlockingClient:
    """``LedgerClient`` for scripts. Use it with ``with``, or call ``close``."""

    def __init__(
        self, metadata_uri: str, *, config: ClientConfig | None = None, zookeeper: ZooKeeperConfig | None = None
    ) -> None:
        self._thread = LoopThread()
        try:
            self._client = self._thread.run(LedgerClient.connect(metadata_uri, config=config, zookeeper=zookeeper))
        except BaseException:
            self._thread.stop()
            raise

    @_parameters_of(LedgerClient.create)
    def create(self, *arguments: Any, **keywords: Any) -> BlockingWriter:
        """As ``LedgerClient.create``."""
        return BlockingWriter(self._thread, self._thread.run(self._client.create(*arguments, **keywords)))

    @_parameters_of(LedgerClient.open)
    def open(self, *arguments: Any, **keywords: Any) -> BlockingReader:
        """As ``LedgerClient.open``."""
        return BlockingReader(self._thread, self._thread.run(self._client.open(*arguments, **keywords)))

    def delete(self, ledger_id: int) -> None:
        """As ``LedgerClient.delete``."""
        self._thread.run(self._client.delete(ledger_id))

    def close(self) -> None:
        """Close all connections. Writers that were not closed are abandoned. Ends what other threads wait for."""
        try:
            self._thread.run(self._client.close())
        except LedgerClosedError:
            return  # already closed
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingWriter:
    """``LedgerWriter`` for scripts; leaving a ``with`` block closes the ledger."""

    def __init__(self, thread: LoopThread, writer: LedgerWriter) -> None:
        self.ledger_id = writer.ledger_id
        self._thread = thread
        self._writer = writer

    def append(self, payload: bytes, *, entry_id: int | None = None) -> int:
        """As ``LedgerWriter.append``."""
        return self._thread.run(self._writer.append(payload, entry_id=entry_id))

    def append_all(self, payloads: Iterable[bytes]) -> list[int]:
        """Append entries, some hundred at a time, and wait for all acknowledgements; returns their ids.

        After an error the entries that follow the one that failed are not sent, or in doubt.
        """

        async def append(batch: list[bytes]) -> list[int]:
            return list(await asyncio.gather(*map(self._writer.append, batch)))

        left = iter(payloads)
        entry_ids: list[int] = []
        while batch := list(itertools.islice(left, _ENTRIES_AT_ONCE)):
            entry_ids += self._thread.run(append(batch))
        return entry_ids

    def force(self) -> int:
        """As ``LedgerWriter.force``."""
        return self._thread.run(self._writer.force())

    def close(self) -> None:
        """Close the ledger at its last entry."""
        self._thread.run(self._writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingReader:
    """``LedgerReader`` for scripts."""

    def __init__(self, thread: LoopThread, reader: LedgerReader) -> None:
        self.ledger_id = reader.ledger_id
        self._thread = thread
        self._reader = reader

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """As ``LedgerReader.entries``."""
        return self._each(self._reader.entries(first, last))

    def follow(self, first: int = 0) -> Iterator[Entry]:
        """As ``LedgerReader.follow``. It ends when the loop over it is left."""
        return self._each(self._reader.follow(first))

    def read_last_add_confirmed(self) -> int:
        """As ``LedgerReader.read_last_add_confirmed``."""
        return self._thread.run(self._reader.read_last_add_confirmed())

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def _each(self, entries: AsyncGenerator[Entry, None]) -> Iterator[Entry]:
        async def next_entry() -> Entry | None:
            return await anext(entries, None)

        async def close() -> None:
            await entries.aclose()

        try:
            while (entry := self._thread.run(next_entry())) is not None:
                yield entry
        finally:
            with contextlib.suppress(LedgerClosedError):  # the end of the client has closed them
                self._thread.run(close())
