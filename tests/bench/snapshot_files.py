"""Writes a snapshot file of a ZooKeeper with any number of ledgers: what benches and trials of ``bkctl audit`` read."""

from __future__ import annotations

import argparse
import resource
import sys
import time

from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot


def main() -> None:
    """Write the file; print nodes, seconds and the most memory this process had."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.snapshot_files", description=__doc__)
    parser.add_argument("--ledgers", type=int, required=True)
    parser.add_argument("--out", required=True, help="the file; a server wants it named version-2/snapshot.1")
    parser.add_argument(
        "--tree", choices=[each.value for each in LedgerTree], default=LedgerTree.LONG_HIERARCHICAL.value
    )
    parser.add_argument("--bookies", type=int, default=12)
    parser.add_argument("--racks", type=int, default=3)
    arguments = parser.parse_args()
    cluster = SampleCluster(
        ledgers=arguments.ledgers, tree=LedgerTree(arguments.tree), bookies=arguments.bookies, racks=arguments.racks
    )
    begin = time.perf_counter()
    with open(arguments.out, "wb") as file:
        count = write_snapshot(file, cluster_nodes(cluster), cluster.sessions)
    seconds = time.perf_counter() - begin
    peak_mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"{count} nodes in {seconds:.1f} s, at most {peak_mebibytes:.0f} MiB of memory\n")


if __name__ == "__main__":
    main()
