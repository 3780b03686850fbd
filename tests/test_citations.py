"""Every citation in code, tests and docs leads to a section that a reader can open."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tests.test_repository import ROOT, read, tracked_files

PAGES = ("wire", "storage", "metadata", "replication", "protocol")
CITING = (".py", ".md", ".proto", ".java")
NOT_CITING = ("CHANGELOG.md", "tests/test_citations.py")

_NUMBER = r"\d+(?:\.\d+)*"
_CITATION = re.compile(
    rf"[Ss]ections?\s+(?P<numbers>{_NUMBER}(?:(?:\s*\([^)]*\))?(?:,| and| to|, and)\s+{_NUMBER}\b)*)"
)
_LINE_BREAK = re.compile(r"\n[ \t]*(?:#+|//|\*)?[ \t]*")
_HAZARD = re.compile(r"\bH\d{1,2}\b")
_DECISION = re.compile(r"\b[Dd]ecisions? (\d+)(?:,? and (\d+))?")


def text_to_search(path: str) -> str:
    """Text of a file in one line, so that a citation may be broken at any blank."""
    return _LINE_BREAK.sub(" ", read(path))


def sections(page: str) -> set[str]:
    """Numbers of the headings of a page."""
    return set(re.findall(rf"^##+ ({_NUMBER})\.? ", read(f"docs/formats/{page}.md"), re.MULTILINE))


def citing_files() -> Iterator[str]:
    for path in tracked_files():
        if path.endswith(CITING) and path not in NOT_CITING and not path.endswith("_pb2.py"):
            yield path


def unknown_citations(path: str) -> Iterator[str]:
    own_page = os.path.basename(path).removesuffix(".md") if path.startswith("docs/formats/") else ""
    text = text_to_search(path)
    for found in _CITATION.finditer(text):
        before = text[: found.start()].split()[-1:]
        page = before[0].lower().lstrip("(\"'`*") if before else ""
        if page not in PAGES:
            page = own_page
        numbers = re.findall(_NUMBER, re.sub(r"\([^)]*\)", "", found["numbers"]))
        if page not in PAGES:
            yield f"{path}: {page} {found[0]} names no page of docs/formats"
        else:
            yield from (f"{path}: {page} section {each} does not exist" for each in numbers if each not in known[page])


known = {page: sections(page) for page in PAGES}


def test_every_cited_section_exists() -> None:
    assert [each for path in citing_files() for each in unknown_citations(path)] == []


def test_every_cited_hazard_exists() -> None:
    hazards = set(re.findall(r"^- \*\*(H\d+)\*\*", read("docs/formats/storage.md"), re.MULTILINE))
    assert hazards == {f"H{number}" for number in range(1, 22)}
    cited = {
        (path, each) for path in citing_files() for each in _HAZARD.findall(read(path)) if path.endswith((".py", ".md"))
    }
    assert {(path, each) for path, each in cited if each not in hazards} == set()


def test_every_cited_decision_is_made_once() -> None:
    made = [int(each) for each in re.findall(r"^## (\d+)\. ", read("docs/decisions.md"), re.MULTILINE)]
    assert made == list(range(1, len(made) + 1))
    cited = {
        (path, int(number))
        for path in citing_files()
        for numbers in _DECISION.findall(text_to_search(path))
        for number in filter(None, numbers)
    }
    # The page that says how a decision is added names the next one.
    assert {(path, number) for path, number in cited if number not in made} == {("docs/decisions.md", len(made) + 1)}


def test_links_of_the_pages_lead_to_files() -> None:
    broken = [
        f"{path}: {target}"
        for path in tracked_files()
        if path.endswith(".md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read(path))
        if not os.path.exists(os.path.join(ROOT, os.path.dirname(path), target))
    ]
    assert broken == []


def test_index_lists_every_page() -> None:
    index = read("docs/README.md")
    pages = [path for path in tracked_files() if path.startswith("docs/") and path.endswith(".md")]
    listed = [path for path in pages if path != "docs/README.md"]
    assert [path for path in listed if f"]({path.removeprefix('docs/')})" not in index] == []
