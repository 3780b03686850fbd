"""The pages as a site: they build without warnings, all of them, and what a reader sees is what was written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_repository import ROOT, tracked_files

MKDOCS = (sys.executable, "-m", "mkdocs", "build", "--strict")
"""Not with `--quiet`, which hides warnings from `--strict`."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    subprocess.run([*MKDOCS, "--site-dir", str(directory)], cwd=ROOT, check=True)
    return directory


def test_every_page_is_there_and_found_by_its_words(site: Path) -> None:
    pages = {
        path.removeprefix("docs/").removesuffix(".md") for path in tracked_files() if re.match(r"docs/.*\.md", path)
    }
    built = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    assert pages - {"README"} - built == set()
    assert {"index", "project/overview", "project/contributing", "search"} <= built
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {each["location"].partition("#")[0] for each in index if "empty directory" in each["text"]}
    assert "runbooks/lost-disk.html" in found


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=\"(https?://[^\"]+)"
    assert [link for page in site.rglob("*.html") for link in re.findall(loaded, page.read_text())] == []


def test_lists_and_blocks_are_not_shown_as_text(site: Path) -> None:
    as_text = r"<p>(?:(?!</p>).)*?(?:\n(?:- |\d+\. |\|)|```)"
    assert [str(page) for page in site.rglob("*.html") if re.search(as_text, page.read_text(), re.DOTALL)] == []


def test_a_link_to_a_page_that_does_not_exist_fails(tmp_path: Path) -> None:
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Dockerfile", "docs", "scripts"):
        (tmp_path / name).symlink_to(Path(ROOT) / name)
    shutil.copy(os.path.join(ROOT, "mkdocs.yml"), tmp_path)
    (tmp_path / "README.md").write_text("# A\n\n[nowhere](docs/nowhere.md) [no anchor](docs/development.md#nowhere)\n")
    command = [*MKDOCS, "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr
    assert "'#nowhere'" in done.stderr
