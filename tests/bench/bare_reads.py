"""All ledgers listed and read by kazoo alone, 128 requests in flight: what ``bkctl audit`` is held to."""

from __future__ import annotations

import sys
import time

from kazoo.client import KazooClient

from tests.bench.bare_listing import Bare


def main() -> None:
    """``bare_reads HOSTS ROOT``: prints ledgers, calls and seconds of the calls alone."""
    hosts, root = sys.argv[1:]
    client = KazooClient(hosts, timeout=30)
    client.start()
    begin = time.perf_counter()
    bare = Bare(client)
    count = sum(len(contents) > 0 for contents in bare.contents(root))
    sys.stdout.write(f"{count} {bare.calls} {time.perf_counter() - begin:.3f}\n")
    client.stop()
    client.close()


if __name__ == "__main__":
    main()
