"""``python -m bkctl``."""

import sys

from bkctl.main import main

sys.exit(main())
