"""``make explore SEEDS=N``: random schedules of recovery, drain, decommission, workers and a writer on one cluster.

The production code of the commands runs in virtual time, each command with a session of its own. Bookies crash and
return, commands and workers are killed and run again, sessions end, answers are lost, requests are slow. After each
change of metadata, each acknowledged entry and each finished command, ``Oracle`` checks what must hold.

One seed is one run. A seed that fails prints what happened, in the order in which it happened.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.sim.exploration import Exploration, Outcome
from tests.sim.loop import run_simulated
from tests.sim.watched_cluster import Blind


def explore(seed: int, blind: Blind = Blind.NOTHING) -> Outcome:
    """Run one seed. ``blind``: what of the protection of writes is switched off."""

    async def run() -> Outcome:
        return await Exploration(seed, blind).run()

    return run_simulated(run())


def main() -> None:
    """Run many seeds; exit code 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.explorer", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--blind", choices=("checks", "looks", "all"), help="switch off protection of writes")
    parser.add_argument("--keep-going", action="store_true", help="print only the violation of a failing seed")
    parser.add_argument("--trace", action="store_true", help="print the trace of every seed")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    blind = Blind.NOTHING if arguments.blind is None else Blind[arguments.blind.upper()]
    begin, failed, finished, checks = time.process_time(), 0, 0, 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        outcome = explore(seed, blind)
        finished += len(outcome.finished)
        checks += outcome.checks
        if arguments.trace or (outcome.violation is not None and not arguments.keep_going):
            sys.stdout.write(f"{outcome}\n")
        if outcome.violation is None:
            continue
        failed += 1
        if not arguments.keep_going:
            break
        sys.stdout.write(f"seed {seed}: {outcome.violation}\n")
        sys.stdout.flush()
    seconds = time.process_time() - begin
    count = seed - arguments.first + 1
    sys.stdout.write(
        f"{count} seeds, {failed} failed, {finished} commands succeeded, {checks} checks, "
        f"{seconds * 1000 / count:.1f} ms of CPU time per seed\n"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
