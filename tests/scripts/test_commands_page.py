"""docs/reference/commands.md shows the commands of the app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bkctl.test_every_command import COMMANDS

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    made = subprocess.run([sys.executable, "-m", "scripts.commands_page"], cwd=ROOT, capture_output=True, check=True)
    assert (ROOT / "docs" / "reference" / "commands.md").read_bytes() == made.stdout, "run make commands-page"


def test_the_page_has_every_command_once() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert sorted(line[10:] for line in page.splitlines() if line.startswith("### bkctl ")) == sorted(COMMANDS)
