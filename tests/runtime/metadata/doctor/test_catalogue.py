"""Every rule says what it is, what it does and how to fix it, with commands that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bkctl.app import build_app
from bkctl.runtime.metadata.doctor.catalogue import RULES, Rule
from bkctl.storage.severity import Severity

_COMMAND = re.compile(r"bkctl ((?:[a-z-]+ ?)+)((?:--[a-z-]+ ?)*)")


def test_the_worst_come_first() -> None:
    severities = [rule.severity for rule in RULES.values()]
    assert severities == sorted(severities, reverse=True)
    assert next(iter(RULES)) == "forbidden-ledger-id"
    assert set(severities) == set(Severity)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_the_fix_exists(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
    for sentence in (rule.meaning, rule.consequence, rule.cure):
        assert sentence.endswith((".", ")"))
    for found in _COMMAND.finditer(rule.cure):
        command: Any = build_app()
        for word in found[1].split():
            if not hasattr(command, "get_command"):
                break  # the rest of a sentence
            command = command.get_command(None, word)
            assert command is not None, f"{found[0]}: there is no {word}"
        assert not hasattr(command, "get_command"), f"{found[0]} is a group"
        options = {option for parameter in command.params for option in parameter.opts}
        assert options.issuperset(found[2].split())
