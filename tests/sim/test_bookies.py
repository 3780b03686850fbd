"""Batches on the model of the bookies."""

from __future__ import annotations

from bkctl.runtime.ports import LacReply, ReadReply
from bkctl.runtime.protocol.status import Status
from tests.sim.bookies import BookieRequest, ModelBookies
from tests.sim.loop import VirtualClock, run_simulated

KEY = b"k" * 20


def even_entries(request: BookieRequest) -> ReadReply | LacReply | Status:
    if request.kind == "add":
        return Status.READ_ONLY if request.body == b"no" else Status.OK
    return Status.NO_SUCH_ENTRY if request.entry_id % 2 else ReadReply(b"%d" % request.entry_id, None)


def test_reads_answer_a_prefix_and_adds_answer_all() -> None:
    async def run() -> None:
        bookies = ModelBookies(VirtualClock(), even_entries)
        lengths = set()
        for _ in range(100):
            found = await bookies.read_many("b1", 1, [4, 5, 6], bytes_max=100)
            assert found == [b"4", Status.NO_SUCH_ENTRY, b"6"][: len(found)]
            lengths.add(len(found))
        assert lengths == {1, 2, 3}
        statuses = await bookies.add_many("b1", 1, KEY, [(0, b"yes"), (1, b"no")])
        assert statuses == [Status.OK, Status.READ_ONLY]

    run_simulated(run())
