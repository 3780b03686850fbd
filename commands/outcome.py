"""How a command that ran to its end turned out. The roof maps this to an exit code."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """Result of a command that raised no error; None stands for OK."""

    OK = "done, or nothing to do"
    FAILED = "the operation ran and failed"
    PARTIAL = "some items done, some failed"
    FINDINGS = "the checks ran and found problems"
