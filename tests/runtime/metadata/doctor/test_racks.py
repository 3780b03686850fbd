"""The metadata doctor on Pulsar's racks, which are outside of the ledgers root."""

from __future__ import annotations

import json

import pytest

from bkctl.runtime.metadata.doctor.doctor import DoctorReport, examine_cluster
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.needed_bookies import NeededBookies
from tests.runtime.metadata.bad_nodes import BOOKIES, put, sound_cluster


async def examined(store: ZooKeeperStore, root: str, data: bytes) -> DoctorReport:
    await put(store, root, sound_cluster())
    path = f"{root}-bookies"
    await store.create(path, data)
    return await examine_cluster(
        store,
        root,
        None,
        LoopClock(),
        NeededBookies(()),
        settle_s=0.01,
        racks_path=path,
        is_wanted=lambda found: found.rule.id == "malformed-rack",
    )


def node(*racks: str | None) -> bytes:
    """Pulsar's node for the bookies of the cluster, and one that was removed from it."""
    entries = {bookie_id: {"rack": rack, "hostname": None} for bookie_id, rack in zip(BOOKIES, racks, strict=True)}
    return json.dumps({"default": entries | {"10.9.9.9:3181": {"rack": "/"}}}).encode()


@pytest.mark.parametrize(
    ("rack", "problem"),
    [
        ("/", 'the rack "/", which counts as /default-rack'),
        ("", 'the rack "", which counts as /default-rack'),
        ("eu/r3", 'the rack "/eu/r3", which Java refuses: 2 other bookies have the form /RACK'),
    ],
)
async def test_a_rack_that_is_no_rack_is_found(store: ZooKeeperStore, root: str, rack: str, problem: str) -> None:
    report = await examined(store, root, node("/r1", "r2", rack))
    [found] = report.findings
    assert (found.path, found.subject) == (f"{root}-bookies", BOOKIES[2])
    assert found.problem.startswith(f"Bookie {BOOKIES[2]} has {problem}")
    assert f"pulsar-admin bookies set-bookie-rack -b {BOOKIES[2]} " in found.cure


@pytest.mark.parametrize("data", [node("/r1", "r2", None), node("eu/r1", "eu/r2", "us/r1"), b"not Pulsar's", b""])
async def test_good_racks_and_nodes_of_others_are_no_finding(store: ZooKeeperStore, root: str, data: bytes) -> None:
    assert (await examined(store, root, data)).findings == ()
