"""Run by ``spark-submit``: ``bkctl audit --spark`` in the session that it has started.

    spark-submit --master spark://host:7077 "$(python -m bkctl.spark_submit)" --metadata-uri URI --out DIR

Without ``spark-submit`` it prints its own path, for that command line.
"""

from __future__ import annotations

import os
import sys

_GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
_CONFIGURATION = 13
"""The exit code; its table is in bkctl."""


def run() -> None:
    """The audit, with the options of the command line; the path of this file where no ``spark-submit`` started it."""
    if _GATEWAY_VARIABLE not in os.environ:
        sys.stdout.write(os.path.abspath(__file__) + "\n")
        return
    # spark-submit puts the directory of this file first, where modules of this package would hide others.
    directory = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != directory]
    sys.argv[1:1] = ["audit", "run", "--spark"]
    try:
        from bkctl.main import main
    except ModuleNotFoundError as error:
        if error.name != "bkctl":
            raise
        # PYSPARK_PYTHON is that of the executors, which get the code of bkctl from the driver.
        sys.stderr.write(
            f"error: the Python that spark-submit started ({sys.executable}) has no bkctl: set PYSPARK_DRIVER_PYTHON "
            "to the Python with which bkctl is installed\n"
        )
        sys.exit(_CONFIGURATION)

    sys.exit(main())


if __name__ == "__main__":
    run()
