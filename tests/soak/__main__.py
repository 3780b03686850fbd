"""``make soak ROUNDS=N`` and ``make soak-autorecovery ROUNDS=N``: recoveries while processes are killed and halted.

Each round writes ledgers, some of which stay open. With ``soak``, a command then recovers a dead bookie, or drains or
decommissions a live one. Meanwhile the command, a source, a target and ZooKeeper are killed with
kill -9, or a bookie is halted (SIGSTOP), at random moments. Then the command runs undisturbed, sometimes with --resume,
and must succeed. With ``soak-autorecovery``, two daemons repair the ledgers of a dead bookie while the auditor, the
other daemon, bookies and ZooKeeper are struck. They must get there by themselves and leave no mark, lock or note.

Afterwards every entry of every ledger is read from each bookie that the metadata names. All acknowledged entries must
be there, and no ledger may reference the bookie, except open ones that the command was asked to skip. ZooKeeper's
transaction log must show that each repair by a daemon held the lock of its ledger.

A failing round prints its seed and keeps the directory with all data and logs.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bkctl.storage.errors import BkctlError
from tests.soak.recovery_rounds import RecoverySoak
from tests.soak.rounds import Soak
from tests.soak.soak_cluster import RoundError, SoakCluster


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the rounds; exit code 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--autorecovery", action="store_true", help="two daemons instead of commands")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="as a failing run printed it")
    parser.add_argument("--directory", default=".cache", help="where the data is (a subdirectory is used)")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="soak-", dir=os.path.abspath(arguments.directory))
    begin, number = time.monotonic(), 0
    _say(f"seed {arguments.seed}; the data and logs are in {directory}")
    try:
        kind: type[SoakCluster] = RecoverySoak if arguments.autorecovery else Soak
        with kind(Path(directory), arguments.seed, _say) as soak:
            for number in range(1, arguments.rounds + 1):
                soak.run_round(number)
    except (RoundError, AssertionError, BkctlError) as error:
        sys.exit(f"round {number} failed: {error}\nseed {arguments.seed}; the data and logs are in {directory}")
    shutil.rmtree(directory)
    for name, count in sorted(soak.counts.items()):
        _say(f"{count:5} {name}")
    _say(f"{arguments.rounds} rounds passed in {time.monotonic() - begin:.0f} s (seed {arguments.seed})")


if __name__ == "__main__":
    main()
