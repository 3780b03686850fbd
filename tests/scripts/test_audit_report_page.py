"""docs/reference/audit-report.md is what the tables of an audit's report say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bkctl.runtime.replication.cluster_audit.inventory_tables import LedgerHead
from scripts.audit_report_page import documented

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "scripts.audit_report_page"], cwd=ROOT, capture_output=True, check=True
    )
    page = ROOT / "docs" / "reference" / "audit-report.md"
    assert page.read_bytes() == made.stdout, "run make audit-page"


def test_docstrings_below_fields_are_found_also_those_of_a_base() -> None:
    class Listed(LedgerHead, frozen=True):
        """A table."""

        copies: int
        """How many; None:
        unknown. See ``owner``."""
        problem: str

    found = documented(Listed)
    assert found["ledger_state"] == "`open`, `in_recovery` or `closed`."
    assert (found["copies"], found["problem"]) == ("How many; null: unknown. See `owner`.", "")
