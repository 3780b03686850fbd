"""``make faults``: one bookie of three meets a fault of its disk, clock, limits or ZooKeeper while clients write.

For each kind of fault: three bookies on real files and a real ZooKeeper, four writers; the fault; the bookie is killed
with kill -9 unless it has ended, and starts again without the fault. Then every bookie is asked for every entry that it
has acknowledged, and every ledger is recovered and read. An entry is lost if the bookie that acknowledged it denies it
("no such entry"), afterwards or during the fault, if it answers with other bytes, or if a ledger misses an entry that
its writer has confirmed.

A sync that is made to fail loses nothing by itself, as the kernel still has the bytes: ``tests/crash`` takes them away.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bkctl.storage.errors import BkctlError
from tests.orphans import OrphanKiller
from tests.processes import LOOPBACK, free_port, run_bkctl
from tests.soak.fault_kinds import KINDS, Kind
from tests.soak.fault_load import Load
from tests.soak.faulty import Faulty, NotPossibleHereError
from tests.until import until
from tests.zookeeper_servers import Ensemble, ZooKeeperServer

LOAD_BEFORE = 200
"""Entries that the victim has acknowledged before it is struck."""
STEP_S = 3.0
"""How long each part of a fault lasts, unless the bookie ends."""
WAIT_S = 60.0
KIND_TIMEOUT_S = 180.0
"""Far above what a kind takes: it turns a hang into a failure."""


class Outcome(NamedTuple):
    """What one fault did."""

    kind: str
    happened: bool
    bookie: str
    """What the victim did."""
    acknowledged: int
    """By the victim."""
    all_acknowledged: int
    """By all bookies: copies, not entries."""
    confirmed: int
    """Entries that writers reported as acknowledged."""
    lost: list[str]


async def run_kind(kind: Kind, faulty: Faulty) -> Outcome:
    """Load, the fault, a restart, the check."""
    faulty.bookies.settings = kind.settings
    await asyncio.to_thread(faulty.start, kind.prefix(faulty), kind.disks, is_for_all=kind.is_prefix_of_all)
    async with Load(faulty.bookies.metadata_uri) as load:
        await _until_acknowledged(load, faulty)
        for strike in kind.strike:
            await asyncio.to_thread(strike, faulty)
            await _wait_for_end(faulty)
        await _wait_until_it_happens(kind, faulty)
        await load.stop()
        did = await _what_it_did(load, faulty)
        lost: list[str] = []
        if faulty.exit_code is None:
            during = await load.read_from(faulty.victim.id)
            lost += [f"during the fault: {each}" for each in during.lost]
        happened = kind.has_happened(faulty)
        await asyncio.to_thread(faulty.restart)
        reads = [await load.read_from(each.id) for each in faulty.bookies.bookies]
        reads.append(await load.read_from_cluster())
        for each in reads:
            lost += each.lost + [f"{count} answers {status.name}" for status, count in each.errors.items()]
        counts = [load.acknowledged_by(each.id) for each in faulty.bookies.bookies]
        return Outcome(kind.name, happened, did, counts[0], sum(counts), load.confirmed, lost)


async def _until_acknowledged(load: Load, faulty: Faulty) -> None:
    await until(lambda: load.acknowledged_by(faulty.victim.id) >= LOAD_BEFORE)


async def _wait_until_it_happens(kind: Kind, faulty: Faulty) -> None:
    """A busy machine may take longer than ``STEP_S`` to come to the system call that fails."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while faulty.exit_code is None and not kind.has_happened(faulty):  # noqa: ASYNC110  another process
                await asyncio.sleep(0.1)


async def _wait_for_end(faulty: Faulty) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STEP_S):
            while faulty.exit_code is None:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.05)
    if faulty.exit_code is not None:
        await asyncio.sleep(STEP_S / 2)  # the writers go on without it


async def _what_it_did(load: Load, faulty: Faulty) -> str:
    if faulty.exit_code is not None:
        return f"ended with {faulty.exit_code}"
    registered = await load.client.ports.registrations.snapshot()
    if faulty.victim.id in registered.read_only:
        return "read-only"
    return "went on" if faulty.victim.id in registered.writable else "not registered"


class Faults:
    """ZooKeeper for all kinds, and a directory. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._uri = ""

    def __enter__(self) -> Faults:
        port = free_port()
        where = {"clientPortAddress": LOOPBACK, "clientPort": str(port)}
        server = ZooKeeperServer(self._directory / "zookeeper", where, {}, port)
        orphans = self._stack.enter_context(OrphanKiller())
        server.start()
        self._stack.callback(server.kill)
        orphans.watch(server.pid)
        server.wait_for_mode("standalone")
        self._uri = f"zk+hierarchical://{LOOPBACK}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, number: int, kind: Kind) -> Outcome:
        """One kind, on bookies of its own."""
        with self._new_faulty(number, kind) as faulty:
            return asyncio.run(asyncio.wait_for(run_kind(kind, faulty), KIND_TIMEOUT_S))

    @contextlib.contextmanager
    def _new_faulty(self, number: int, kind: Kind) -> Iterator[Faulty]:
        directory = self._directory / f"kind-{number}"
        with contextlib.ExitStack() as stack:
            ensemble, uri = None, f"{self._uri}/kind-{number}"
            if kind.needs_ensemble:
                ensemble = stack.enter_context(Ensemble(self._directory / "ensemble"))
                uri = ensemble.metadata_uri(f"/kind-{number}")
                made = run_bkctl("cluster", "init", "--if-not-exists", "-u", uri, "--timeout", "60s")
                assert made.exit_code == 0, made.stderr
            yield stack.enter_context(Faulty(directory, uri, ensemble))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run kinds and print a table; exit code 1 if an entry is lost or a fault did not happen."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.faults", description=__doc__)
    parser.add_argument("--only", default="", help="kinds whose name has this")
    parser.add_argument("--directory", default=".cache", help="where the data is (a subdirectory is used)")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="faults-", dir=os.path.abspath(arguments.directory)))
    _say("| fault | the bookie | acknowledged by it | by all three | confirmed to writers | lost |")
    _say("|---|---|---|---|---|---|")
    total, bad = [0, 0, 0, 0], []
    with Faults(directory) as faults:
        for number, kind in enumerate(KINDS):
            if arguments.only not in kind.name:
                continue
            try:
                found = faults.run(number, kind)
            except NotPossibleHereError as error:
                _say(f"| {kind.name} | not possible here: {error} | | | | |")
                continue
            except (AssertionError, BkctlError, OSError, TimeoutError) as error:
                bad.append(f"{kind.name}: {type(error).__name__} {error}")
                _say(f"| {kind.name} | {type(error).__name__} | | | | |")
                continue
            counts = [found.acknowledged, found.all_acknowledged, found.confirmed, len(found.lost)]
            total = [sum(pair) for pair in zip(total, counts, strict=True)]
            _say(f"| {found.kind} | {found.bookie} | {' | '.join(f'{each:,}' for each in counts)} |")
            if found.lost or not found.happened:
                bad.append(f"{kind.name}: {found.lost[:5] or 'the fault did not happen'}")
    _say(f"| all | | {' | '.join(f'{each:,}' for each in total)} |")
    if bad:
        sys.exit("\n".join([*bad, f"the data and logs are in {directory}"]))
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
