"""Files that Java bookies wrote, unpacked, and the list of what is in them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent.parent / "golden" / "storage"
_MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
FILES: dict[str, dict[str, Any]] = _MANIFEST["files"]
ENTRIES: dict[str, list[str]] = _MANIFEST["entries"]
"""sha1 of every acknowledged copy of an entry, by ``<ledger>:<entry>``; the last one counts."""
EXPECTED: dict[str, Any] = _MANIFEST["expected_after_replay"]
DAMAGE_CASES: dict[str, dict[str, str]] = json.loads((GOLDEN / "damage.json").read_text())["cases"]
"""What Java answers when logs or indexes of ``db-4.18.0/replayed`` are damaged."""
REPLAY_CASES: list[dict[str, Any]] = json.loads((GOLDEN / "replay.json").read_text())["cases"]


def paths(kind: str) -> list[str]:
    """Names, below the golden directory, of all files of a kind."""
    return [path for path, description in FILES.items() if description["kind"] == kind]


def content(path: str) -> bytes:
    """Bytes of a golden file as Java wrote it."""
    data = (GOLDEN / path).read_bytes()
    return gzip.decompress(data) if path.endswith(".gz") else data


def unpack(image: str, target: Path) -> None:
    """Write all listed files of an image (``db-4.18.0/crash``) to a directory, with the directories of the image."""
    for path in FILES:
        if path.startswith(image + "/"):
            file = target / path.removeprefix(image + "/").removesuffix(".gz")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content(path))
