"""``python -m tests.crash``: the crash battery with other seeds, or one cut again.

It prints each red cut with the options that repeat it, and ends with exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile

from tests.crash.battery import Cut, CutResult, cut_many, cut_once, trace_workload
from tests.crash.guards import WRITING
from tests.crash.model_disk import Mode


def main() -> int:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first workload; drawn if not given")
    parser.add_argument("--seeds", type=int, default=1, help="workloads to run, each with the next seed")
    parser.add_argument(
        "--mode", choices=[mode.value for mode in Mode], help="what survives of names; both if not given"
    )
    parser.add_argument("--cuts", type=int, default=200, help="for each workload and mode")
    parser.add_argument("--cut", type=int, help="repeat the cut after this many changes")
    parser.add_argument("--outcome", type=int, default=0, help="which outcome of it")
    parser.add_argument("--without", choices=sorted(WRITING), help="a guard to switch off")
    arguments = parser.parse_args()
    first_seed = random.randrange(2**31) if arguments.seed is None else arguments.seed
    modes = list(Mode) if arguments.mode is None else [Mode(arguments.mode)]
    red_count = cut_count = 0
    for seed in range(first_seed, first_seed + arguments.seeds):
        with tempfile.TemporaryDirectory() as directory:
            changes = trace_workload(directory, seed, without=arguments.without)
        for mode in modes:
            if arguments.cut is not None:
                results = iter([cut_once(changes, Cut(seed, mode, arguments.cut, arguments.outcome))])
            else:
                results = cut_many(changes, seed, mode, arguments.cuts)
            for result in results:
                cut_count += 1
                red_count += bool(result.losses)
                _report(result)
    print(f"{cut_count} cuts from seed {first_seed} on, {red_count} red")
    return 1 if red_count else 0


def _report(result: CutResult) -> None:
    for loss in result.losses:
        print(f"{result.cut}: {loss}")


if __name__ == "__main__":
    sys.exit(main())
