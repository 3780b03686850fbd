"""``make bench-tls``: what TLS costs, on bkctl's bookies and on Java's, side by side in one run.

Four clusters run at once, of four bookies each: bkctl's and Apache BookKeeper's 4.18, in clear text and with TLS. Each
round measures all of them in turn: pipelined adds of 1 KiB to one bookie by bkctl's client, CPU time per add of client
and bookies, then the recovery of a killed bookie by ``bkctl recover``, in MiB of entries per second. The first round
warms up and is not counted; the table has the median of the others. Needs ``make interop`` once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.security_config import BookieClientConfig, ClientTlsConfig
from tests.bench.java_ledgers import BOOKIE_FLAGS
from tests.bench.measurements import measure_adds_per_s
from tests.interop.java import NEWEST
from tests.interop.secured_clusters import OURS, SecuredCluster, secured_cluster
from tests.interop.security_files import TestAuthority
from tests.interop.security_modes import Mode, sides_of
from tests.until import wait_until

BOOKIES = 4
ADDS = 30_000
RECOVERED = ("--ledgers", "20", "--entries", "200", "--entry-size", "16k", "-E", "3", "-W", "2", "-A", "2")
"""About 63 MiB in 125 MiB of copies."""
ROWS = ("adds/s", "client, us of CPU per add", "bookies, us of CPU per add", "recovery, MiB/s")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


async def _adds(cluster: SecuredCluster, security: BookieClientConfig) -> list[float]:
    """Adds/s, and the CPU time per add of both sides, in microseconds."""
    pids = [cluster.pid_of(bookie_id) for bookie_id in cluster.running]
    async with await LedgerClient.connect(cluster.metadata_uri, config=ClientConfig(security=security)) as client:
        writer = await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        own, theirs = time.process_time(), sum(map(_cpu_s, pids))
        adds_per_s = await measure_adds_per_s(writer, ADDS)
        own, theirs = time.process_time() - own, sum(map(_cpu_s, pids)) - theirs
        await writer.close()
        await client.delete(writer.ledger_id)  # no other bookie has a copy, and one is killed next
    return [adds_per_s, own / ADDS * 1e6, theirs / ADDS * 1e6]


def _recovery(cluster: SecuredCluster) -> float:
    """MiB/s of a recovery; afterwards there are as many bookies as before."""
    written = cluster.run("ledger", "write-test", *RECOVERED, "--no-read-back")
    assert written.exit_code == 0, written.stderr
    dead = cluster.running[0]
    cluster.kill(dead)
    wait_until(lambda: dead not in cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout)
    recovered = cluster.run("recover", dead, "--yes", "-o", "json")
    assert recovered.exit_code == 0, recovered.stderr
    cluster.add()
    return float(recovered.json()["mebibytes_per_second"])


def _table(measured: dict[str, list[list[float]]]) -> Table:
    table = Table(title=f"{os.cpu_count()} cores, medians", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in measured:
        table.add_column(name, justify="right")
    for number, title in enumerate(ROWS):
        medians = [statistics.median(values[number] for values in rounds) for rounds in measured.values()]
        table.add_row(title, *(f"{median:,.1f}" for median in medians))
    return table


def main() -> None:
    """Start the clusters, measure, print, and end what was started."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    rounds: int = parser.parse_args().rounds
    roots = itertools.count()
    with contextlib.ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=".cache")))
        server = asyncio.run(EmbeddedZooKeeper.start(str(directory / "zookeeper")))
        ends.callback(lambda: asyncio.run(server.stop()))

        def new_metadata_uri() -> str:
            return f"zk+hierarchical://{server.connect_string}/ledgers-{next(roots)}"

        clusters = {}
        for of_server, mode in itertools.product((OURS, NEWEST), (Mode.PLAIN, Mode.TLS)):
            name, files = f"{of_server}, {mode}", directory / f"{of_server}-{mode}"
            authority = TestAuthority(files / "tls")
            sides = sides_of(mode, files, authority=authority)
            sides = sides._replace(
                jvm_flags=(*sides.jvm_flags, *BOOKIE_FLAGS),
                variables={**sides.variables, "XDG_STATE_HOME": str(files)},
            )
            opened = secured_cluster(of_server, sides, files / "bookies", new_metadata_uri, BOOKIES)
            tls = ClientTlsConfig(ca_file=str(authority.file("ca.pem"))) if mode is Mode.TLS else None
            clusters[name] = (ends.enter_context(opened), BookieClientConfig(tls=tls))
        measured: dict[str, list[list[float]]] = defaultdict(list)
        for _ in range(rounds + 1):
            for name, (cluster, security) in clusters.items():
                measured[name].append([*uvloop.run(_adds(cluster, security)), _recovery(cluster)])
    Console().print(_table({name: values[1:] for name, values in measured.items()}))


if __name__ == "__main__":
    main()
