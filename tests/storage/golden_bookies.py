"""Whole directories of Java's bookies as ours may have written them: their logs and journals, our index with their
rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, StorageConfig
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, current_directory
from bkctl.storage.index.seal import create_sealed_index
from tests.storage.engines import config_below
from tests.storage.golden import GOLDEN, unpack

IMAGES = sorted(str(path.parent.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*/index.json"))
"""Those of DbLedgerStorage, whose index rows are known."""

_LEDGER_DIRECTORIES = {"ledgers": "ledgers", "i0": "l0", "i1": "l1"}
"""Ledger directory that an index directory of the golden sets belongs to."""


def ledger_directories(image: str) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """Ledger directory, ledger rows and location rows of each ledger directory of an image; rows as hexadecimal."""
    rows = json.loads((GOLDEN / image / "index.json").read_text())
    return [
        (_LEDGER_DIRECTORIES[name], rows[f"{name}/ledgers"], rows[f"{name}/locations"])
        for name in sorted({path.split("/")[0] for path in rows})
    ]


def adopt(image: str, root: Path) -> StorageConfig:
    """Lay an image out below ``root``; nothing of it is opened yet."""
    unpack(image, root / "java")
    directories = ledger_directories(image)
    journals = sorted(path for path in (root / "java").iterdir() if path.name.startswith("j"))
    config = config_below(root, journals=len(journals), ledgers=len(directories), engine=EngineConfig())
    for source, directory in zip(journals, config.journal_directories, strict=True):
        os.makedirs(directory)
        source.rename(current_directory(directory))
    for (name, *databases), directory in zip(directories, config.ledger_directories, strict=True):
        os.makedirs(directory)
        current = current_directory(directory)
        (root / "java" / name).rename(current)
        for database, rows in zip((LEDGERS_DATABASE, LOCATIONS_DATABASE), databases, strict=True):
            _fill(current, database, rows)
    return config


def _fill(current: str, database: str, rows: dict[str, str]) -> None:
    index = create_sealed_index(OsFileSystem(), open_plyvel, os.path.join(current, database))
    index.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in rows.items()])
    index.record()
    index.close()
