"""Everything is in pyproject.toml; this refuses a source tree from which a broken package would be built."""

import os
import sys

from setuptools import setup

LAYERS = ("commands", "runtime", "spark_reports", "storage")

lost = [name for name in LAYERS if not os.path.isdir(os.path.join(os.path.dirname(__file__), "bkctl", name))]
if lost:
    sys.exit(
        f"bkctl/{lost[0]} is not a directory: this source tree was made without symbolic links. Clone it with "
        "git -c core.symlinks=true clone, or unpack an sdist"
    )
setup()
