"""Some kinds of fault under load; ``make faults`` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.journal.format import HEADER_BYTES
from tests.runtime.bookie.serving.test_durability import strace
from tests.runtime.bookie.small_disk import small_disk
from tests.soak.fault_kinds import KINDS, Kind
from tests.soak.fault_stage import Stage
from tests.soak.faults import Faults

pytestmark = [pytest.mark.battery, pytest.mark.cluster, pytest.mark.strace]

CHOSEN = {
    "journal: one sync EIO": "ended with 5",
    "entry log: one write ENOSPC": "",
    "index: sync EIO": "ended with 5",
    "journal disk unmounted": "ended with 5",
    "clock jumps: a day on, two back, ten years on, back": "went on",
}
"""Kind: what the bookie does, where that is certain."""
ERASED_BYTES = 20_000


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    folder = tmp_path_factory.mktemp("faults")
    strace(folder)
    with small_disk(folder / "probe"):
        """Skips where a file system cannot be mounted."""
    with Faults(folder) as started:
        yield started


@pytest.mark.parametrize("kind", [each for each in KINDS if each.name in CHOSEN], ids=lambda kind: kind.name)
def test_a_fault_under_load_loses_nothing(faults: Faults, kind: Kind) -> None:
    found = faults.run(KINDS.index(kind), kind)
    assert found.lost == []
    assert found.happened
    assert found.acknowledged > 0
    assert CHOSEN[kind.name] in found.bookie


def test_a_loss_is_seen(faults: Faults) -> None:
    found = faults.run(len(KINDS), Kind("the end of the journal is erased", [_erase_end_of_journal]))
    assert found.acknowledged > 0
    assert found.lost


def _erase_end_of_journal(stage: Stage) -> None:
    """With zeros, as if it had never been written: a shorter file would be refused."""
    stage.bookies.kill_bookie(stage.victim.id)
    journals = sorted(Path(stage.victim.directory, "journal", "current").glob("*.txn"))
    journal = [each for each in journals if _end_of_records(each) > HEADER_BYTES][-1]
    end = _end_of_records(journal)
    begin = max(end - ERASED_BYTES, HEADER_BYTES)
    with journal.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


def _end_of_records(journal: Path) -> int:
    return len(journal.read_bytes().rstrip(b"\0"))
