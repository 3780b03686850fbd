"""Some kinds of fault under load; ``make faults`` runs all of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.storage.journal.format import HEADER_BYTES, PADDING_MARK
from tests.runtime.bookie.serving.test_durability import strace
from tests.runtime.bookie.small_disk import small_disk
from tests.soak.fault_kinds import KINDS, Kind
from tests.soak.faults import Faults
from tests.soak.faulty import Faulty, NotPossibleHereError

pytestmark = [pytest.mark.battery, pytest.mark.cluster, pytest.mark.strace]

CHOSEN = {
    "journal: one sync EIO",
    "entry log: one write ENOSPC",
    "index: sync EIO",
    "journal disk unmounted",
    "clock jumps: a day on, two back, ten years on, back",
    "the same jumps of all bookies and clients",
    "the only disk becomes read-only",
}
ERASED_BYTES = 20_000
NO_CHECKPOINTS = ("flushInterval=3600000",)
"""Or the entries may be in the ledger directory too, and nothing is lost."""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    directory = tmp_path_factory.mktemp("faults")
    strace(directory)
    with small_disk(directory / "probe"):
        """Skips where a file system cannot be mounted."""
    with Faults(directory) as started:
        yield started


def test_the_chosen_kinds_exist() -> None:
    assert {each.name for each in KINDS} >= CHOSEN


@pytest.mark.parametrize("kind", [each for each in KINDS if each.name in CHOSEN], ids=lambda kind: kind.name)
def test_a_fault_under_load_loses_nothing(faults: Faults, kind: Kind) -> None:
    try:
        found = faults.run(KINDS.index(kind), kind)
    except NotPossibleHereError as error:
        pytest.skip(str(error))
    assert found.lost == []
    assert found.happened
    assert found.acknowledged > 0


def test_a_loss_is_seen(faults: Faults) -> None:
    kind = Kind("the end of the journal is erased", [_erase_end_of_journal], settings=NO_CHECKPOINTS)
    found = faults.run(len(KINDS), kind)
    assert found.acknowledged > 0
    assert any(each.endswith(("NO_SUCH_ENTRY", "NO_SUCH_LEDGER")) for each in found.lost)


def _erase_end_of_journal(faulty: Faulty) -> None:
    """Whole groups of records become zeros, as if they had never been written; anything else would be refused."""
    faulty.bookies.kill_bookie(faulty.victim.id)
    journals = sorted(Path(faulty.victim.directory, "journal", "current").glob("*[0-9a-f].txn"))
    journal = [each for each in journals if len(_group_ends(each.read_bytes())) > 1][-1]
    ends = _group_ends(journal.read_bytes())
    begin = max([each for each in ends if each <= ends[-1] - ERASED_BYTES], default=ends[0])
    with journal.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(ends[-1] - begin))


def _group_ends(data: bytes) -> list[int]:
    """Where padding ends: behind each group that was synced."""
    ends, position = [], HEADER_BYTES
    while position + 8 <= len(data):
        length, padding = struct.unpack_from(">ii", data, position)
        if length == PADDING_MARK:
            position += 8 + padding
            ends.append(position)
        elif length > 0:
            position += 4 + length
        else:
            break
    return ends
