"""The rows of a bookie's ledgers do not fill its memory, however many ledgers there are and however large rows are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.index.ledger_index import (
    KEPT_BYTES_MAX,
    ROW_OVERHEAD_BYTES,
    LedgerIndex,
    LedgerRow,
    LedgerRowChanges,
)
from bkctl.storage.index.seal import SealedIndex, create_sealed_index
from tests.storage.engines import KEY, explicit_lac
from tests.storage.traced_disk import TracedDisk

ROW_BYTES = ROW_OVERHEAD_BYTES + len(KEY)
LARGE_BYTES = 4 * 1024 * 1024


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SealedIndex]:
    sealed = create_sealed_index(TracedDisk(), open_plyvel, str(tmp_path / "db"))
    yield sealed
    sealed.close()


def flush(index: LedgerIndex) -> None:
    index.write(index.take_changes())
    index.note_written()


def fill(rows: SealedIndex, keys: dict[int, bytes]) -> None:
    index = LedgerIndex.load(rows)
    for ledger_id, key in keys.items():
        index.set_master_key(ledger_id, key)
    flush(index)


def test_rows_on_the_disk_stay_there(rows: SealedIndex) -> None:
    fill(rows, {ledger_id: KEY + ledger_id.to_bytes(8, "big") for ledger_id in range(20_000)})
    bytes_max = 1024 * 1024
    tracemalloc.start()
    try:
        index = LedgerIndex.load(rows, bytes_max=bytes_max)
        for ledger_id in index:
            assert index.find(ledger_id) is not None
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == 20_000
    assert 0 < index.memory_bytes <= bytes_max
    assert held_bytes < 2 * bytes_max, "of 8 MiB, were all rows in memory"


def test_large_rows_are_not_kept(rows: SealedIndex) -> None:
    """Of a time when nothing limited the keys and explicit LACs of clients."""
    large = {ledger_id: ledger_id.to_bytes(1, "big") * LARGE_BYTES for ledger_id in range(1, 9)}
    fill(rows, large)
    tracemalloc.start()
    try:
        index = LedgerIndex.load(rows, bytes_max=128 * 1024 * 1024)
        for ledger_id, key in large.items():
            row = index.find(ledger_id)
            assert row is not None
            assert row.master_key == key
            index.note_read(ledger_id, row)
        del row
        assert index.memory_bytes == 0
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < LARGE_BYTES
    assert index.set_fenced(3)
    flush(index)
    assert LedgerIndex.load(rows).find(3) == LedgerRow(master_key=large[3], is_fenced=True)


def test_the_row_that_was_not_used_for_longest_is_dropped(rows: SealedIndex) -> None:
    fill(rows, dict.fromkeys(range(4), KEY))
    index = LedgerIndex.load(rows, bytes_max=2 * 3 * ROW_BYTES)
    dropped: list[int] = []
    index.on_dropped = dropped.append
    assert [ledger_id for ledger_id in range(4) if index.needs_read(ledger_id)] == [0]
    index.find(1)
    index.find(0)
    assert dropped == [2]
    index.delete(3)
    assert dropped == [2, 3]
    assert index.find(3) is None


def test_changed_rows_have_a_share_until_the_checkpoint_has_begun(rows: SealedIndex) -> None:
    index = LedgerIndex.load(rows, bytes_max=4 * (7 * ROW_BYTES + ROW_OVERHEAD_BYTES + KEPT_BYTES_MAX))
    for ledger_id in range(8):
        assert index.has_room
        assert index.is_filling_up == (ledger_id >= 5)
        index.set_master_key(ledger_id, KEY)
    room_before, changes, room_after = index.has_room, index.take_changes(), index.has_room
    assert (room_before, room_after) == (False, True)
    for ledger_id in range(8, 16):
        index.set_master_key(ledger_id, KEY)
    assert index.memory_bytes <= index.bytes_max
    assert [ledger_id for ledger_id in range(16) if index.find(ledger_id) is None] == [], "even if it is not kept"
    index.write(changes)
    index.note_written()
    assert index.memory_bytes <= 3 * index.bytes_max // 4


STEPS = st.sampled_from(
    ["key", "other key", "fence", "lac", "limbo", "clear", "delete", "large", "find", "begin", "write", "restart"]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 5)), max_size=60))
def test_a_limit_changes_no_answer(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """The same steps on an index that may keep one row, and on one that keeps all."""
    path = tmp_path_factory.mktemp("rows") / "db"
    rows = create_sealed_index(TracedDisk(), open_plyvel, str(path))
    try:
        limited, model = LedgerIndex.load(rows, bytes_max=2 * ROW_BYTES), _Model()
        taken: LedgerRowChanges | None = None
        for step, ledger_id in steps:
            if step == "begin" and taken is None:
                taken = limited.take_changes()
            elif step == "write" and taken is not None:
                limited.write(taken)
                limited.note_written()
                taken = None
            elif step == "restart":
                if taken is not None:
                    limited.write(taken)
                limited.write(limited.take_changes())
                limited, taken = LedgerIndex.load(rows, bytes_max=2 * ROW_BYTES), None
            elif step == "find":
                assert limited.find(ledger_id) == model.rows.get(ledger_id)
            elif step not in {"begin", "write"}:
                _change(limited, step, ledger_id)
                model.change(step, ledger_id)
            assert {each: limited.find(each) for each in range(6)} == {each: model.rows.get(each) for each in range(6)}
            assert list(limited) == sorted(model.rows)
            assert list(limited.limbo_ids) == sorted(each for each, row in model.rows.items() if row.is_limbo)
    finally:
        rows.close()


def _change(index: LedgerIndex, step: str, ledger_id: int) -> None:
    if step in {"key", "large"}:
        if index.find(ledger_id) is None:
            index.set_master_key(ledger_id, KEY if step == "key" else KEY * 100)
    elif step == "fence":
        index.set_fenced(ledger_id)
    elif step == "lac":
        index.set_explicit_lac(ledger_id, explicit_lac(ledger_id, 7))
    elif step in {"limbo", "clear"}:
        index.set_limbo(ledger_id, is_limbo=step == "limbo")
    elif step == "delete":
        index.delete(ledger_id)
    elif step == "other key" and index.find(ledger_id) is None:
        index.create_row(ledger_id, is_fenced=True, is_limbo=False)


class _Model:
    """All rows in a dict."""

    def __init__(self) -> None:
        self.rows: dict[int, LedgerRow] = {}

    def change(self, step: str, ledger_id: int) -> None:
        row = self.rows.get(ledger_id)
        if step == "delete":
            self.rows.pop(ledger_id, None)
        elif row is None and step in {"key", "large", "fence", "other key"}:
            key = {"key": KEY, "large": KEY * 100}.get(step, b"")
            self.rows[ledger_id] = LedgerRow(master_key=key, is_fenced=step in {"fence", "other key"})
        elif row is not None and step in {"fence", "lac", "limbo", "clear"}:
            self.rows[ledger_id] = LedgerRow(
                master_key=row.master_key,
                is_fenced=row.is_fenced or step == "fence",
                is_limbo=step == "limbo" or (row.is_limbo and step != "clear"),
                explicit_lac=explicit_lac(ledger_id, 7) if step == "lac" else row.explicit_lac,
            )
