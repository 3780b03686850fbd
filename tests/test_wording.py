"""User-visible text and documents are plain English: no word of a list of odd ones.

To cover another package or folder of documents, add its path to ``CODE`` or ``DOCUMENTS``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_repository import read, tracked_files

CODE = ("bkctl/", "commands/", "runtime/", "spark_reports/", "storage/")
DOCUMENTS = ("docs/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")

ODD_WORDS = {
    r"\b(no|some|any)body( else)?\b": "no process, another process, the operator, clients that ...",
    r"\bwho(so)?ever\b": "the operator, a client that ...",
    r"\b(is|are|was|were|be|been) told\b|\btold (of|with)\b": "is reported, is shown",
    r"\btells? (of|the|that|what|which|how|from|apart)\b": "reports, shows",
    r"\bway out\b": "the fix, how to fix it, remedy",
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\banew\b": "again",
    r"\bany more\b(?! \w)": "no longer",
    r"\bbeside\b": "next to, alongside, in addition to",
    r"(?<!lag )(?<!lags )(?<!fall )(?<!falls )(?<!leave )(?<!leaves )(?<!left )\bbehind\b": "after",
    r"\b(take|takes|taken|took) [\w' -]{0,40}\bfor (lost|deleted|dead|gone|one|damaged?)\b": "treat X as Y",
    r"\b(for|from) want of\b": "because there is no ...",
    r"\bgo(es)? by\b": "follow, use",
    r"\bma(ke|kes|de) up for\b": "catch up on",
    r"\bno part in\b": "does not need, is not involved in",
    r"\blacks? any\b|\bnothing lacks\b": "is missing",
    r"\bfor good\b": "permanently",
    r"\bas (it|they) should be\b": "correct",
    r"\bis no (failure|finding|error|fault)\b": "is not a ...",
    r"\bonce more\b": "again",
    r"\b(the|five|six|\w+'s|commands) floors?\b|\bthe (house|roof|cellar)\b": "layer, the name of the package",
    r"\bshall\b": "must, will, can",
    r"\bhitherto\b|\bthereof\b|\btherein\b|\bwherein\b|\bthereby\b": "a shorter sentence",
    r"\bfolders?\b": "directory",
    r"\bunder way\b": "running, in progress",
    r"\b(is|was|are|were|be|been) cut off\b": "interrupted",
    r"\bstands? (in|at|behind|before|on)\b": "is",
}
"""A pattern, ignoring case, and what to write instead."""

TECHNICAL = re.compile(r"`+[^`]*`+|https?://\S+|\]\([^)]*\)")
"""Names of code and links: not prose."""


def code_texts(path: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string constant of a module that is prose; docstrings and parts of f-strings included."""
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value if " " in node.value.strip() else ""


def document_texts(path: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph of a Markdown file, without blocks of code."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), read(path), flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.finditer(r"(?:[^\n]+\n?)+", text):
        yield text.count("\n", 0, paragraph.start()) + 1, paragraph[0]


def odd_words(path: str) -> Iterator[str]:
    """A line for each odd word of a file: place, word, and what to write instead."""
    for line, text in code_texts(path) if path.endswith(".py") else document_texts(path):
        prose = TECHNICAL.sub("", " ".join(text.split()))
        for pattern, instead in ODD_WORDS.items():
            for found in re.finditer(pattern, prose, re.IGNORECASE):
                yield f"{path}:{line}: '{found[0]}': write: {instead}   ({prose[:100]})"


def covered() -> list[str]:
    files = tracked_files()
    code = [path for path in files if path.startswith(CODE) and path.endswith(".py") and not path.endswith("_pb2.py")]
    return code + [path for path in files if path.startswith(DOCUMENTS) and path.endswith(".md")]


def test_texts_are_plain_english() -> None:
    found = [line for path in covered() for line in odd_words(path)]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nothing lacks any more", "nothing lacks"),
        ("the operator is told of it", "is told"),
        ("the loss is for\ngood", "for good"),
    ],
)
def test_an_odd_word_is_found(text: str, word: str) -> None:
    prose = " ".join(text.split())
    assert any((found := re.search(pattern, prose)) and found[0].startswith(word) for pattern in ODD_WORDS)
