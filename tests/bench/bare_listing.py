"""The ``getChildren`` calls of a listing of all ledgers, by kazoo alone: what ``ledger list --count`` is held to."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from kazoo.client import KazooClient

IN_FLIGHT = 128


class Bare:
    """Counts leaves below a root of the hierarchical layout; the calls are made level by level, 128 at a time."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._room = threading.Semaphore(IN_FLIGHT)
        self.calls = 0

    def children(self, paths: list[str]) -> list[Any]:
        """Answers for all paths, in order."""
        answers = []
        for path in paths:
            self._room.acquire()
            answer = self._client.get_children_async(path)
            answer.rawlink(lambda _: self._room.release())
            answers.append(answer)
        self.calls += len(paths)
        return answers

    def count(self, root: str) -> int:
        """How many leaves there are."""
        total = 0
        for levels in ((2, 4), (3, 4, 4, 4)):
            nodes = [root]
            for digits in levels:
                found = zip(nodes, self.children(nodes), strict=True)
                nodes = [f"{node}/{name}" for node, answer in found for name in answer.get() if len(name) == digits]
            for answer in self.children(nodes):
                total += len(answer.get())
        return total


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
