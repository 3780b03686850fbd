"""The ``getChildren`` calls of a listing of all ledgers, by kazoo alone: what ``ledger list --count`` is held to."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kazoo.client import KazooClient

IN_FLIGHT = 128


class Bare:
    """Counts leaves below a root of the hierarchical layout; the calls are made level by level, 128 at a time."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._room = threading.Semaphore(IN_FLIGHT)
        self.calls = 0

    def answers(self, request: Callable[[str], Any], paths: list[str]) -> list[Any]:
        """Answers for all paths, in order."""
        answers = []
        for path in paths:
            self._room.acquire()
            answer = request(path)
            answer.rawlink(lambda _: self._room.release())
            answers.append(answer)
        self.calls += len(paths)
        return answers

    def buckets(self, root: str) -> Iterator[tuple[str, list[str]]]:
        """The nodes above the leaves, each with the names of its leaves."""
        for levels in ((2, 4), (3, 4, 4, 4)):
            nodes = [root]
            for digits in levels:
                found = zip(nodes, self.answers(self._client.get_children_async, nodes), strict=True)
                nodes = [f"{node}/{name}" for node, answer in found for name in answer.get() if len(name) == digits]
            for node, answer in zip(nodes, self.answers(self._client.get_children_async, nodes), strict=True):
                yield node, answer.get()

    def count(self, root: str) -> int:
        """How many leaves there are."""
        return sum(len(names) for _, names in self.buckets(root))

    def contents(self, root: str) -> Iterator[bytes]:
        """The contents of all leaves."""
        for node, names in self.buckets(root):
            for answer in self.answers(self._client.get_async, [f"{node}/{name}" for name in names]):
                yield answer.get()[0]


def main() -> None:
    """``bare_listing HOSTS ROOT``: prints count, calls and seconds of the calls alone."""
    hosts, root = sys.argv[1:]
    client = KazooClient(hosts, timeout=30)
    client.start()
    begin = time.perf_counter()
    bare = Bare(client)
    count = bare.count(root)
    sys.stdout.write(f"{count} {bare.calls} {time.perf_counter() - begin:.3f}\n")
    client.stop()
    client.close()


if __name__ == "__main__":
    main()
