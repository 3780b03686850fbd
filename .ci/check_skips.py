"""Fails when pytest skipped a test (or expected it to fail) that the list of allowed skips does not name.

Usage: check_skips.py ALLOWED_LIST JUNIT_REPORT...
"""

from __future__ import annotations

import fnmatch
import re
import sys
from xml.etree import ElementTree


def read_patterns(path: str) -> list[str]:
    """Node id patterns of the list; every one must come with a reason."""
    patterns = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                pattern, _, reason = re.sub(r" {2,}|\t", "\0", line.strip()).partition("\0")
                if not reason:
                    raise SystemExit(f"{path}: no reason for {pattern}")
                patterns.append(pattern.replace("[", "[[]"))
    return patterns


def skips(report_path: str) -> list[tuple[str, str]]:
    """Name and reason of every skipped test of a run: ``tests.storage.test_x::test_y``."""
    report = ElementTree.parse(report_path)  # noqa: S314  our own pytest wrote it
    return [
        (f"{case.get('classname')}::{case.get('name')}", skipped.get("message") or "")
        for case in report.iter("testcase")
        for skipped in case.findall("skipped")
    ]


def main(allowed_path: str, *report_paths: str) -> int:
    """Exit code: 1 when a skip is not allowed."""
    patterns = read_patterns(allowed_path)
    refused = [
        (name, reason)
        for path in report_paths
        for name, reason in skips(path)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    for name, reason in refused:
        sys.stdout.write(f"skipped, but not in {allowed_path}: {name}: {reason}\n")
    sys.stdout.write(f"skips: {len(refused)} not allowed\n")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
