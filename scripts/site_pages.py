"""What mkdocs needs so that the same Markdown files are pages of a site: ``hooks`` in mkdocs.yml.

The README and other files at the top become pages, and links to them lead there. Lists are indented for
Python-Markdown, which wants four columns where other readers accept two, and an empty line after paragraphs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = {
    "README.md": "project/overview.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
    "LICENSE": "project/LICENSE",
    "Dockerfile": "project/Dockerfile",
}
"""Files at the top of the repository, and their places in the site."""
_LINK = re.compile(r"(\]\()([^)#:\s]+)([)#])")
_FENCE = re.compile(r" *```")
_INDENTATION = re.compile(r" {2,3}(?=\S)")
_ITEM = re.compile(r"(-|\d+\.) ")
_COLUMNS = 4


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files at the top."""
    top = os.path.dirname(config.config_file_path)
    for name, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=os.path.join(top, name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Links and lists as this site needs them."""
    source = next((name for name, place in OUTSIDE.items() if place == page.file.src_uri), f"docs/{page.file.src_uri}")
    here = os.path.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), link[2]))
        place = OUTSIDE.get(target, target.removeprefix("docs/"))
        return f"{link[1]}{os.path.relpath(place, here or '.')}{link[3]}"

    return "\n".join(_indented(_LINK.sub(moved, markdown)))


def _indented(markdown: str) -> Iterator[str]:
    extra, is_code, last, has_paragraphs = 0, False, "", False
    for line in markdown.split("\n"):
        if not is_code:
            found = _INDENTATION.match(line)
            extra = _COLUMNS - len(found[0]) if found else 0
            if _ITEM.match(line):
                if last and has_paragraphs:
                    yield ""
                has_paragraphs = False
            has_paragraphs |= not line
            last = line
        if _FENCE.match(line):
            is_code = not is_code
        yield " " * extra + line if line else line
