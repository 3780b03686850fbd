"""The rules are documented word for word, in order, and send nobody to a command that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bkctl.app import build_app
from runtime.metadata.doctor_catalogue import RULES, Rule, Severity

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metadata-doctor.md"
_COMMAND = re.compile(r"bkctl ((?:[a-z-]+ ?)+)((?:--[a-z-]+ ?)*)")


def test_the_page_holds_every_rule_in_the_order_of_a_report() -> None:
    sections = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == list(RULES)
    for section, rule in zip(sections, RULES.values(), strict=True):
        words = " ".join(section.partition("\n## ")[0].split())
        cure = rule.cure.format(path="ZNODE", subject="ID")
        assert words == f"{rule.id} {rule.consequence} Way out: {cure}"


def test_the_worst_come_first() -> None:
    severities = [rule.severity for rule in RULES.values()]
    assert severities == sorted(severities)
    assert next(iter(RULES)) == "forbidden-ledger-id"
    assert set(severities) == set(Severity)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_the_way_out_exists(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
    for sentence in (rule.consequence, rule.cure):
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
