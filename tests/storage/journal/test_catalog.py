from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.errors import JournalError
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import (
    CatalogedJournal,
    JournalCatalog,
    decode_catalog,
    encode_catalog,
    read_catalog,
    write_catalog,
)

FS = OsFileSystem()
FIRST = CatalogedJournal(journal_id=0x19A2B3C4D5E, step_bytes=16777216, end_offset=2147484160)
SECOND = CatalogedJournal(journal_id=0x19A2B3C4D5F, step_bytes=16777216)


def test_the_worked_example() -> None:
    data = encode_catalog(JournalCatalog((FIRST, SECOND)))
    assert data.decode().splitlines()[:-1] == [
        "bkctl journals 1",
        "19a2b3c4d5e.txn step 16777216 end 2147484160",
        "19a2b3c4d5f.txn step 16777216 end 0",
    ]
    assert decode_catalog(data) == JournalCatalog((FIRST, SECOND))


def test_a_file_comes_back(tmp_path: Path) -> None:
    assert read_catalog(FS, str(tmp_path)) == JournalCatalog(())
    write_catalog(FS, str(tmp_path), JournalCatalog((SECOND,)))
    catalog = read_catalog(FS, str(tmp_path))
    assert catalog == JournalCatalog((SECOND,))
    assert catalog.find(SECOND.journal_id) == SECOND
    assert catalog.find(FIRST.journal_id) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"bkctl journals 1\n", encode_catalog(JournalCatalog(())), encode_catalog(JournalCatalog((FIRST,)))[:-1]],
)
def test_what_is_no_catalog_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bkctl.journals").write_bytes(data)
    with pytest.raises(JournalError, match="not a catalog of journals; run"):
        read_catalog(FS, str(tmp_path))


def test_the_next_file_ends_the_one_before_and_forgets_those_deleted() -> None:
    begun = CatalogedJournal(journal_id=SECOND.journal_id + 1, step_bytes=4096)
    catalog = JournalCatalog((FIRST, SECOND))
    after_a_roll = catalog.with_next(begun, [SECOND.journal_id], LogMark(SECOND.journal_id, 7168))
    ended = CatalogedJournal(SECOND.journal_id, SECOND.step_bytes, 7168)
    assert after_a_roll == JournalCatalog((ended, begun))
    after_a_boot = catalog.with_next(begun, [FIRST.journal_id, SECOND.journal_id], None)
    assert after_a_boot == JournalCatalog((FIRST, SECOND, begun))
