"""docs/reference/metrics.md is what the catalogue of metrics says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    made = subprocess.run([sys.executable, "-m", "scripts.metrics_page"], cwd=ROOT, capture_output=True, check=True)
    page = ROOT / "docs" / "reference" / "metrics.md"
    assert page.read_bytes() == made.stdout, "run make metrics-page"
