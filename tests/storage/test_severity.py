"""The scale of severities."""

from __future__ import annotations

from bkctl.storage.severity import Severity, word, worst


def test_a_worse_one_is_larger() -> None:
    assert [each.value for each in sorted(Severity)] == ["information", "warning", "critical"]
    assert worst([Severity.WARNING, Severity.CRITICAL, Severity.INFORMATION]) is Severity.CRITICAL


def test_no_finding_is_ok() -> None:
    assert word(worst([])) == "ok"
    assert word(worst([Severity.INFORMATION])) == "information"
