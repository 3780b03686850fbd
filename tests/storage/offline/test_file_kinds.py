"""Names in a bookie's directories."""

from __future__ import annotations

import pytest

from bkctl.storage.offline.file_kinds import DirectoryRole, describe_file
from tests.storage.golden import FILES

KINDS = {
    "journal": "journal",
    "entry log": "entry log",
    "cookie": "cookie",
    "mark": "mark",
    "entry log id hint": "hint",
    "unclean-shutdown marker": "marker",
    "index file": "java index",
}
EVERYTHING = frozenset(DirectoryRole)


@pytest.mark.parametrize("path", [path for path, each in FILES.items() if each["kind"] in KINDS])
def test_files_of_java(path: str) -> None:
    name = path.rpartition("/")[2].removesuffix(".gz")
    found = describe_file(EVERYTHING, name)
    assert found.kind == KINDS[FILES[path]["kind"]]
    assert found.trouble is None or found.kind == "java index"


@pytest.mark.parametrize(
    ("name", "kind", "has_trouble"),
    [
        ("foo.txn", "stray", True),
        ("123.x.txn", "stray", True),
        ("00a.txn", "stray", True),
        ("foo.log", "stray", True),
        ("A.log", "stray", True),
        ("1f4.log.compacting", "compaction", False),
        ("1f4.log.78.compacted", "compaction", False),
        ("1f4.log.compacted", "stray", True),
        ("ldb-ledgers", "index", False),
        ("ldb-ledgers.seal", "seal", False),
        ("ldb-locations.adopting", "leftover", False),
        ("ledgers", "java index", True),
        ("locations.BACKUP-2026-08-01T12:00:00.000+0000", "java copy", False),
        ("5.idx.rloc", "java leftover", False),
        ("bkctl.java-index.2", "kept", False),
        ("bkctl.handed-back", "kept", False),
        ("bkctl.adoption", "note", True),
        ("bkctl.mark.1", "mark", False),
        ("lastMark.1", "mark", False),
        ("lastMark.x", "unknown", False),
        ("VERSION.tmp", "temporary", False),
        ("notes.txt", "unknown", False),
    ],
)
def test_names(name: str, kind: str, has_trouble: bool) -> None:
    found = describe_file(EVERYTHING, name)
    assert (found.kind, found.trouble is not None) == (kind, has_trouble)


def test_files_in_the_wrong_directory() -> None:
    assert describe_file(frozenset({DirectoryRole.LEDGER}), "1.txn").trouble is not None
    assert describe_file(frozenset({DirectoryRole.JOURNAL}), "1.log").trouble is not None
