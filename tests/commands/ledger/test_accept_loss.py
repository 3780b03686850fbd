"""Ledgers whose end only lost bookies may know: ``ledger close --accept-loss`` and the other ways out."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import LedgerCredentials, credentials_of
from bkctl.runtime.errors import LedgerReadError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import EOK, VERSION_THREE, WRITE_LAC, Request, Response
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.status import Status
from bkctl.storage.words import enumerated
from tests.commands.test_advice import run_pipeline
from tests.processes import HALTED_SESSION_MS, BkctlResult, Cluster, bkctl_command, bkctl_environment
from tests.until import until


class Planted:
    """A cluster, a client, and entries that are put on chosen bookies."""

    def __init__(self, cluster: Cluster, client: LedgerClient) -> None:
        self.cluster = cluster
        self.client = client
        self.ids = [bookie.id for bookie in cluster.bookies]

    async def open_ledger(self, members: Sequence[str], write_quorum: int, ack_quorum: int) -> int:
        metadata = new_ledger(tuple(members), write_quorum, ack_quorum, DigestType.CRC32C, b"secret")
        ledger_id, _ = await self.client.ports.ledgers.create(metadata)
        return ledger_id

    async def read(self, ledger_id: int) -> LedgerMetadata:
        return (await self.client.ports.ledgers.read(ledger_id)).value

    async def credentials(self, ledger_id: int) -> LedgerCredentials:
        return credentials_of(ledger_id, await self.read(ledger_id))

    async def put(
        self, ledger_id: int, bookie_id: str, entry_ids: Iterable[int], confirmed: int = -1, *, fails: bool = False
    ) -> None:
        """As a writer would: entry N has 10 bytes, and N - 1 is confirmed unless ``confirmed`` is given."""
        secret = await self.credentials(ledger_id)
        adds = [
            (each, secret.codec.encode(each, max(confirmed, -1), 10 * (each + 1), payload(each))) for each in entry_ids
        ]
        added = await self.client.ports.bookies.add_many(bookie_id, ledger_id, secret.master_key, adds)
        assert set(added) == ({Status.FENCED} if fails else {Status.OK})

    async def confirm(self, ledger_id: int, bookie_id: str, entry_id: int) -> None:
        """An explicit last add confirmed, which a Java writer sends."""
        secret = await self.credentials(ledger_id)
        request = Request()
        request.header.version, request.header.operation, request.header.txnId = VERSION_THREE, WRITE_LAC, 1
        call = request.writeLacRequest
        call.ledgerId, call.lac, call.masterKey = ledger_id, entry_id, secret.master_key
        call.body = secret.codec.encode_lac(entry_id)
        host, port = bookie_id.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode_frame(request.SerializeToString()))
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert Response.FromString(await reader.readexactly(size)).status == EOK
        writer.close()
        await writer.wait_closed()

    async def copies(self, ledger_id: int, entry_id: int) -> set[str]:
        """The live bookies that have the entry."""
        secret = await self.credentials(ledger_id)
        live = sorted((await self.client.ports.registrations.snapshot()).live)
        answers = [
            await self.client.ports.bookies.read_many(each, ledger_id, [entry_id], bytes_max=100) for each in live
        ]
        return {
            each
            for each, [answer] in zip(live, answers, strict=True)
            if isinstance(answer, bytes) and secret.codec.decode(entry_id, answer).payload == payload(entry_id)
        }

    async def run(self, *arguments: str) -> BkctlResult:
        return await asyncio.to_thread(self.cluster.run, *arguments, "-o", "json")

    async def close(self, ledger_id: int, *lost: str, consent: Sequence[str] | None = None) -> BkctlResult:
        named = [word for each in lost for word in ("--accept-loss", each)]
        consent = ("--confirm", str(ledger_id)) if consent is None else consent
        return await self.run("ledger", "close", str(ledger_id), "--grace", "0s", *named, *consent)

    async def stop(self, *bookie_ids: str) -> None:
        for each in bookie_ids:
            await asyncio.to_thread(self.cluster.stop_bookie, each)


def payload(entry_id: int) -> bytes:
    return b"entry%05d" % entry_id


@pytest.fixture
async def planted(start_cluster: Callable[[int], Cluster]) -> AsyncIterator[Planted]:
    cluster = await asyncio.to_thread(start_cluster, 5)
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        yield Planted(cluster, client)


def metadata_in_trash(said: str) -> list[dict[str, Any]]:
    path = said.partition("the former data is saved in ")[2].splitlines()[0].strip()
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


async def test_the_whole_way_with_two_of_three_bookies_lost(planted: Planted, tmp_path: Path) -> None:
    ledger_id = await planted.open_ledger(planted.ids[:3], 3, 2)
    survivor, *lost = planted.ids[:3]
    for each in (survivor, *lost):
        await planted.put(ledger_id, each, range(10), 7)
    for each in lost:  # acknowledged, and lost with them
        await planted.put(ledger_id, each, range(10, 12), 9)
    await planted.stop(*lost)

    stuck = await planted.close(ledger_id, consent=["--yes"])
    assert stuck.exit_code == 1
    words = f"bkctl ledger close {ledger_id} --accept-loss {min(lost)} --accept-loss {max(lost)}"
    assert words in stuck.json()["failures"][0]["next_step"]
    recovered = await planted.run("recover", "failed-bookie", *lost, "--open-ledgers", "fence", "--yes")
    assert words in recovered.stdout, "the failure names the command"
    before = await planted.read(ledger_id)

    planned = await planted.close(ledger_id, *lost, consent=["--dry-run"])
    assert planned.exit_code == 0, planned
    assert "entry 9 is the highest that the other bookies report" in str(planned.json()["summary"])
    for consent in (["--yes"], [], ["--confirm", "1234567"]):
        assert (await planted.close(ledger_id, *lost, consent=consent)).exit_code in {2, 3}
    left_out = await planted.close(ledger_id, lost[0])
    assert (left_out.exit_code, f"bookie {lost[1]} is not registered, and not named" in left_out.stderr) == (3, True)
    registered = await planted.close(ledger_id, *lost, survivor)
    assert (registered.exit_code, f"bookie {survivor} is registered" in registered.stderr) == (3, True)
    assert await planted.read(ledger_id) == before
    await planted.put(ledger_id, survivor, [9])  # not fenced

    done = await planted.close(ledger_id, *lost)
    assert done.exit_code == 0, done
    [row] = done.json()["ledgers"]
    assert (row["last_entry_id"], row["length_bytes"], row["outcome"]) == ("9", 100, "closed")
    [loss] = done.json()["losses"]
    assert (sorted(loss["bookies"]), loss["entries"], loss["holes"]) == (sorted(lost), 10, None)
    closed = await planted.read(ledger_id)
    assert (closed.state, len(closed.segments)) == (LedgerState.CLOSED, 1)
    assert closed.last_segment.ensemble[0] == survivor
    assert not set(lost) & set(closed.last_segment.ensemble)
    for entry_id in range(10):
        assert await planted.copies(ledger_id, entry_id) == set(closed.last_segment.ensemble)
    await planted.put(ledger_id, survivor, [10], fails=True)
    reader = await planted.client.open(ledger_id, password=b"secret")
    assert [each.payload for each in await reader.read(0)] == [payload(each) for each in range(10)]
    [kept] = metadata_in_trash(done.stderr)
    assert decode_ledger_metadata(base64.b64decode(kept["data"])) == before
    assert (await planted.close(ledger_id, *lost)).json()["closed_already"] == 1

    await asyncio.to_thread(planted.cluster.start_bookie, lost[0])
    status = await planted.run("status")
    [back] = [each for each in status.json()["findings"] if each["part"] == "given_up_bookie"]
    assert f"bookie {lost[0]} is back, which was given up for 1 ledger: {ledger_id}; it may have" in back["finding"]
    assert back["finding"].endswith(f", then bkctl ledger delete {ledger_id} or bkctl decommission {lost[0]} ends this")
    explained = (await planted.run("ledger", "explain", str(ledger_id))).json()
    assert (back["severity"], back["finding"] in explained["problems"]) == ("warning", True)
    audited = (await planted.run("audit")).json()["findings"]
    assert [each["command"] for each in audited if each["finding"] == back["finding"]] == [back["command"]]
    doctor = (await planted.run("metadata", "doctor", "--rule", "given-up-bookie-returned")).json()["findings"]
    assert [(each["severity"], each["cure"]) for each in doctor] == [("warning", f"{back['command']} saves them.")]
    assert any(each.startswith(f"{back['command']} saves") for each in explained["next_steps"])
    for command in ("bookie drain", "decommission"):
        plan = (await planted.run(*command.split(), lost[0], "--dry-run")).json()
        assert f"{back['finding']}: {back['command']}" in {each["finding"] for each in plan["findings"]}
    saved = await asyncio.to_thread(run_pipeline, planted.cluster, tmp_path, back["command"])
    assert saved.returncode == 0, saved
    lines = (tmp_path / f"ledger-{ledger_id}-{lost[0]}.jsonl").read_text().splitlines()
    assert [json.loads(each)["payload"] for each in lines][:10] == [payload(each).decode() for each in range(10)]
    deleted = await planted.run("ledger", "delete", str(ledger_id), "--confirm", str(ledger_id))
    assert deleted.exit_code == 0, deleted
    assert "is back" not in (await planted.run("status")).stdout, "there is nothing to look for"
    await planted.stop(lost[0])
    gone = await planted.run("decommission", *lost, "--yes")
    assert gone.exit_code == 0, gone
    assert gone.json()["is_cookie_deleted"]


async def test_a_lost_disk_that_is_found_after_its_bookie_was_removed_is_back(planted: Planted) -> None:
    """Its cookie is made again from the disk, and is newer than the accepted loss."""
    survivor, lost = planted.ids[:2]
    ledger_id = await planted.open_ledger([survivor, lost], 2, 1)
    await planted.put(ledger_id, survivor, range(10), 7)
    await planted.put(ledger_id, lost, range(12), 7)
    await planted.stop(lost)
    assert (await planted.close(ledger_id, lost)).exit_code == 0
    assert (await planted.read(ledger_id)).last_entry_id == 9
    assert (await planted.run("decommission", lost, "--yes")).exit_code == 0
    bookie = planted.cluster.bookie(lost)
    directories = ("--journal-dir", f"{bookie.directory}/journal", "--ledger-dir", f"{bookie.directory}/ledgers")
    bookie_options = (*directories, "--port", str(bookie.port), "--set", "allowLoopback=true", "--bookie-id", lost)
    made = await planted.run("cookie", "create", "--from-config", *bookie_options, "--yes")
    assert made.exit_code == 0, made
    await asyncio.to_thread(planted.cluster.start_bookie, lost)
    for words in (("status",), ("audit",)):
        found = (await planted.run(*words, "-o", "json")).json()["findings"]
        [back] = [each for each in found if each["part"] == "given_up_bookie"]
        assert f"bookie {lost} is back, which was given up for 1 ledger: {ledger_id}; it may have" in back["finding"]
    await planted.stop(lost)
    for words in (("status",), ("audit",)):
        found = (await planted.run(*words, "-o", "json")).json()["findings"]
        [gone] = [each for each in found if each["part"] == "bookies_unreferenced"]
        could = f"1 ledger whose loss was accepted ({ledger_id}) could get entries back from {lost}: if its disks exist"
        assert could in gone["finding"], found
        assert gone["command"] == f"bkctl decommission {lost}"
    deleted = await planted.run("ledger", "delete", str(ledger_id), "--confirm", str(ledger_id))
    assert deleted.exit_code == 0, deleted
    [gone] = [
        each for each in (await planted.run("status")).json()["findings"] if each["part"] == "bookies_unreferenced"
    ]
    assert "could get entries back" not in gone["finding"], "nothing is expected from it"


async def test_holes_and_a_last_confirmed_entry_that_no_bookie_has_are_errors_for_readers(planted: Planted) -> None:
    survivor, lost = planted.ids[:2]
    ledger_id = await planted.open_ledger([survivor, lost], 2, 1)
    await planted.put(ledger_id, lost, range(10))
    await planted.put(ledger_id, survivor, [0, 1, 2])
    await planted.put(ledger_id, survivor, [6], 5)
    await planted.confirm(ledger_id, survivor, 8)
    await planted.stop(lost)

    done = await planted.close(ledger_id, lost)

    assert done.exit_code == 0, done
    [row] = done.json()["ledgers"]
    assert (row["last_entry_id"], row["length_bytes"]) == ("8", 70), "the length is that of the highest entry found"
    [loss] = done.json()["losses"]
    assert (loss["entries"], loss["holes"]) == (4, "3-5, 7-8")
    closed = await planted.read(ledger_id)
    for entry_id in (0, 1, 2, 6):
        assert await planted.copies(ledger_id, entry_id) == set(closed.last_segment.ensemble)
    reader = await planted.client.open(ledger_id, password=b"secret")
    assert reader.last_add_confirmed == 8
    assert [each.payload for each in await reader.read(6, 6)] == [payload(6)]
    for hole in (3, 5, 7, 8):
        with pytest.raises(LedgerReadError, match=f"entry {hole}: "):
            await reader.read(hole, hole)
    left = await planted.run("decommission", lost, "--yes")
    assert left.exit_code == 0, left


@pytest.mark.battery
async def test_a_registered_member_that_does_not_answer_stops_it_before_any_fence(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = await asyncio.to_thread(start_cluster, 5, session_ms=HALTED_SESSION_MS)
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        planted = Planted(cluster, client)
        survivor, silent, lost = planted.ids[:3]
        ledger_id = await planted.open_ledger(planted.ids[:3], 3, 1)
        await planted.put(ledger_id, survivor, range(5))
        await planted.stop(lost)
        os.kill(cluster.bookie(silent).pid, signal.SIGSTOP)
        try:
            refused = await planted.close(ledger_id, lost)
        finally:
            os.kill(cluster.bookie(silent).pid, signal.SIGCONT)
        assert (refused.exit_code, f"bookie {silent}" in refused.stderr) == (3, True), refused
        assert (await planted.read(ledger_id)).state is LedgerState.OPEN
        await planted.put(ledger_id, survivor, [5])
        assert (await planted.close(ledger_id, lost)).json()["ledgers"][0]["last_entry_id"] == "5"


async def test_the_status_closes_open_ledgers_that_only_lost_bookies_have(planted: Planted) -> None:
    """They are not among the lost ones that are listed for a decommission, which leaves them."""
    lost = planted.ids[0]
    ledger_ids = [await planted.open_ledger([lost], 1, 1) for _ in range(2)]
    for each in ledger_ids:
        await planted.put(each, lost, range(3))
    await planted.stop(lost)
    found = {each["part"]: each["command"] for each in (await planted.run("status")).json()["findings"]}
    closes, names = f"bkctl ledger close {ledger_ids[0]} {ledger_ids[1]} --accept-loss {lost}", planted.ids[1:]
    assert found["bookies_down"] == closes, found
    audited = (await planted.run("audit")).json()["findings"]
    assert closes in [each["command"] for each in audited], audited
    done = await planted.run(*shlex.split(closes)[1:], "--grace", "0s", "--confirm", "2")
    assert done.exit_code == 0, done
    assert "no_live_copy" not in {each["part"] for each in (await planted.run("status")).json()["findings"]}
    for each in ledger_ids:
        assert set((await planted.read(each)).last_segment.ensemble) < set(names)


async def test_without_a_bookie_for_the_copies_nothing_is_fenced(cluster: Cluster) -> None:
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        planted = Planted(cluster, client)
        ledger_id = await planted.open_ledger(planted.ids, 3, 2)
        await planted.put(ledger_id, planted.ids[0], range(3))
        await planted.stop(*planted.ids[1:])
        refused = await planted.close(ledger_id, *planted.ids[1:])
        assert (refused.exit_code, "no writable bookie is left to replace" in refused.stderr) == (3, True), refused
        await planted.put(ledger_id, planted.ids[0], [3])


async def test_a_ledger_that_can_be_closed_without_a_loss_loses_nothing(planted: Planted) -> None:
    ledger_id = await planted.open_ledger(planted.ids[:3], 3, 2)
    for each in planted.ids[:3]:
        await planted.put(ledger_id, each, range(4))
    await planted.put(ledger_id, planted.ids[0], [5])  # after a gap, so it was never acknowledged
    await planted.stop(planted.ids[2])
    done = await planted.close(ledger_id, planted.ids[2])
    assert (done.exit_code, done.json()["losses"]) == (0, []), done
    assert done.json()["ledgers"][0]["last_entry_id"] == "3"


@pytest.mark.battery
async def test_it_is_repeated_after_kill_9_and_two_at_once_agree(planted: Planted) -> None:
    survivor, *lost = planted.ids[:3]
    ledger_id = await planted.open_ledger(planted.ids[:3], 3, 2)
    for first in range(0, 3000, 1000):
        await planted.put(ledger_id, survivor, range(first, first + 1000))
    await planted.stop(*lost)
    words = ["ledger", "close", str(ledger_id), "--grace", "0s", "--confirm", str(ledger_id)]
    words += [word for each in lost for word in ("--accept-loss", each)]
    killed = await asyncio.create_subprocess_exec(
        *bkctl_command(*words), env=bkctl_environment(BKCTL_METADATA_URI=planted.cluster.metadata_uri)
    )

    async def has_first_copies_elsewhere() -> bool:
        assert killed.returncode is None
        return len(await planted.copies(ledger_id, 0)) >= 2

    await until(has_first_copies_elsewhere)
    killed.kill()
    await killed.wait()
    assert (await planted.read(ledger_id)).state is LedgerState.IN_RECOVERY

    both = await asyncio.gather(planted.run(*words), planted.run(*words))
    assert {each.exit_code for each in both} <= {0, 5}, both
    assert any(each.exit_code == 0 for each in both), both
    closed = await planted.read(ledger_id)
    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 2999)
    for entry_id in (0, 1500, 2999):
        assert await planted.copies(ledger_id, entry_id) >= set(closed.last_segment.ensemble)


async def test_the_same_proof_allows_to_delete_the_ledger_or_to_leave_it_behind(
    planted: Planted, tmp_path: Path
) -> None:
    survivor, *lost = planted.ids[:3]
    deleted, kept = [await planted.open_ledger(planted.ids[:3], 3, 2) for _ in range(2)]
    for ledger_id in (deleted, kept):
        await planted.put(ledger_id, survivor, range(3))
    await planted.stop(*lost)
    delete = ["ledger", "delete", str(deleted), "--force-open", "--confirm", str(deleted)]
    assert (await planted.run(*delete)).exit_code == 3
    assert (await planted.run(*delete, "--accept-loss", lost[0])).exit_code == 3
    await planted.put(deleted, survivor, [3])
    accepted = [word for each in lost for word in ("--accept-loss", each)]
    await planted.put(deleted, planted.ids[3], [4])  # as an earlier member may have it
    refused = await planted.run(*delete, *accepted)
    said = f"bookie {planted.ids[3]}, outside of the ensemble, has entry 4, and no member has it; bkctl ledger close "
    assert (refused.exit_code, said in refused.stderr) == (3, True), refused
    await planted.put(deleted, survivor, [4])
    done = await planted.run(*delete, "--accept-loss", lost[0], "--accept-loss", lost[1])
    assert (done.exit_code, done.json()["deleted"]) == (0, 1), done
    assert Path(done.json()["trash"]).exists()

    ids = tmp_path / "ids"
    ids.write_text(f"{kept}\n")
    alone = await planted.run("decommission", lost[0], "--accept-loss", lost[0], "--from-file", str(ids), "--yes")
    assert (alone.exit_code, f"bookie {lost[1]} is not registered, and not named" in alone.stderr) == (3, True), alone
    both = await planted.run("decommission", *lost, *accepted, "--from-file", str(ids), "--yes")
    assert (both.exit_code, both.json()["accepted_losses"]) == (0, [str(kept)]), both
    shown = [(await planted.run(each)).json()["findings"] for each in ("status", "audit")]
    found = [{each["part"]: each["finding"] for each in findings} for findings in shown]
    assert "loss_accepted" in found[0], found
    assert found[0]["loss_accepted"] == found[1]["loss_accepted"]
    assert not [each for each in lost if each in str(shown)], shown
    explained = await planted.run("ledger", "explain", str(kept))
    (step,) = explained.json()["next_steps"]
    closes = step.partition(" are lost, ")[2].partition(" ends the ledger")[0]
    assert closes.startswith(f"bkctl ledger close {kept} --accept-loss"), step
    assert (await planted.run(*shlex.split(closes)[1:], "--grace", "0s", "--confirm", str(kept))).exit_code == 0
    assert [each["part"] for each in (await planted.run("audit")).json()["findings"]] == ["no_auditor"]


async def test_a_recovery_says_of_an_accepted_loss_what_the_status_says(planted: Planted) -> None:
    """An earlier segment has only copies on the lost bookie, which still belongs to the cluster."""
    lost, *others = planted.ids[:3]
    ledger_id = await planted.open_ledger([lost, others[0]], 1, 1)
    found = await planted.client.ports.ledgers.read(ledger_id)
    segments = (*found.value.segments, Segment(4, (lost, others[1])))
    changed = msgspec.structs.replace(found.value, segments=segments)
    await planted.client.ports.ledgers.write(ledger_id, changed, found.version)
    await planted.put(ledger_id, others[0], (1, 3))
    await planted.put(ledger_id, others[1], (5, 7), 4)
    await planted.stop(lost)
    closed = await planted.close(ledger_id, lost)
    assert closed.exit_code == 0, closed

    [accepted] = [each for each in (await planted.run("status")).json()["findings"] if each["part"] == "loss_accepted"]
    recovered = await planted.run("recover", "failed-bookie", lost, "--yes")

    assert accepted["severity"] == "information"
    assert recovered.json()["severity"] == "information", recovered
    assert "critical" not in recovered.stdout + recovered.stderr
    assert recovered.json()["verdict"] == (
        "0 ledgers moved, 1 left: 1 has lost entries, which were accepted as lost; see bkctl ledger explain "
        f"{ledger_id}"
    )
    assert recovered.exit_code == 0


@pytest.mark.battery
async def test_entries_that_were_accepted_as_lost_are_asked_for_no_more(planted: Planted) -> None:
    """Not by a check, nor by a recovery, which copies all others."""
    spare = await asyncio.to_thread(planted.cluster.add_bookie)
    members = planted.ids[:3]
    ledger_id = await planted.open_ledger(members, 2, 2)
    for index, each in enumerate(members):
        entry_ids = [entry_id for entry_id in range(12) if (index - entry_id) % 3 < 2]
        await planted.put(ledger_id, each, entry_ids, 10)
    await planted.stop(*members[:2])
    done = await planted.close(ledger_id, *members[:2])
    assert (done.exit_code, done.json()["losses"][0]["holes"]) == (0, "0, 3, 6, 9"), done

    await all_is_well(planted, ledger_id)
    explained = (await planted.run("ledger", "explain", str(ledger_id))).json()
    assert any("loss accepted on" in each and "no bookie had entries 0, 3, 6" in each for each in explained["problems"])
    back, otherwise = explained["next_steps"]
    gone = enumerated(sorted(members[:2]))
    may_come = (
        f"1 ledger whose loss was accepted ({ledger_id}) could get entries back from {gone}: if their disks exist"
    )
    assert back.startswith(may_come), explained
    assert otherwise.startswith("otherwise, nothing is left to do: loss accepted on"), explained
    leaving = await planted.run("decommission", members[0], "--dry-run", "-o", "table")
    assert f"could get entries back from {members[0]}: if its disks exist, start it" in leaving.stdout
    for command in ("status", "audit"):
        found = [each for each in (await planted.run(command)).json()["findings"] if each["part"] == "loss_accepted"]
        assert [each["severity"] for each in found] == ["information"], command
    replaced = next(each for each in (await planted.read(ledger_id)).last_segment.ensemble if each not in members)
    await planted.stop(replaced)
    recovered = await planted.run("recover", "failed-bookie", replaced, "--yes")
    assert recovered.exit_code == 0, recovered
    ensemble = set((await planted.read(ledger_id)).last_segment.ensemble)
    assert ensemble == {*planted.ids[2:], spare} - {replaced}
    copies = [await planted.copies(ledger_id, entry_id) for entry_id in range(12)]
    assert [len(each) for each in copies] == [0, 2, 2] * 4
    await all_is_well(planted, ledger_id)


async def all_is_well(planted: Planted, ledger_id: int) -> None:
    verified = await planted.run("ledger", "verify", str(ledger_id))
    assert verified.exit_code == 0, verified
    assert f"copies whose loss was accepted are not expected: 1 ledger, {ledger_id}\n" in verified.stderr
    repaired = await planted.run("recover", "ledger", str(ledger_id), "--yes")
    assert repaired.exit_code == 0, repaired
    for options in (("--inventory",), ("--inventory", "--read", "--all-entries")):
        audited = await planted.run("audit", *options)
        assert not [each for each in audited.json()["findings"] if each["severity"] == "critical"], audited
