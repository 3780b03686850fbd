"""Every bkctl command in the documents exists, with its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bkctl.app import build_app
from tests.bkctl.test_main import leaves
from tests.test_repository import read, tracked_files

NOT_IN_THE_TREE = ("bkctl help", "bkctl options")
OTHER_TEXTS = re.compile(
    r"bkctl (seal|mark|place|journals|quarantine|restore) ?$|bkctl (seal|mark|place|journals|quarantine|mode) 1"
)
"""First lines of files, and data of nodes."""
SHELL = re.compile(r"\$\(|[|>#;&`]")

COMMANDS: dict[str, Any] = dict(leaves(build_app()))
GROUPS = {" ".join(name.split()[:length]) for name in COMMANDS for length in range(2, len(name.split()))}


def commands_in(text: str) -> Iterator[str]:
    """Commands in code: lines of blocks, and spans."""
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            yield from (
                f"bkctl {SHELL.split(part)[0]}".strip() for part in re.split(r"\bbkctl ", line.split("#")[0])[1:]
            )
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(span.split()) for span in re.findall(r"`(bkctl [a-z][^`]+)`", prose))


def problems(command: str) -> Iterator[str]:
    words = command.split()
    if words[:2] == ["bkctl", "audit"] and (len(words) == 2 or words[2].startswith("-")):
        words.insert(2, "run")
    name = next(
        (
            " ".join(words[:length])
            for length in range(len(words), 1, -1)
            if " ".join(words[:length]) in {*COMMANDS, *GROUPS, *NOT_IN_THE_TREE}
        ),
        None,
    )
    if name is None or (name in GROUPS and any(word[0].islower() for word in words[len(name.split()) :])):
        yield f"there is no such command: {command}"
    elif name in COMMANDS:
        known = {spelling for each in COMMANDS[name].params for spelling in (*each.opts, *each.secondary_opts)}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        yield from (f"{name} has no option {each}" for each in sorted(used - known - {"--help"}))


def test_an_unknown_command_or_option_is_found() -> None:
    text = "`bkctl audit --cpus 2` or\n```\nbkctl storage nope | bkctl audit -o json  # a comment\n```\n"
    assert [each for command in commands_in(text) for each in problems(command)] == [
        "there is no such command: bkctl storage nope",
        "bkctl audit run has no option --cpus",
    ]


def test_documented_commands_and_options_exist() -> None:
    found = [
        f"{path}: {problem}"
        for path in tracked_files()
        if path.endswith(".md")
        for command in commands_in(read(path))
        if not OTHER_TEXTS.match(command)
        for problem in problems(command)
    ]
    assert found == []
