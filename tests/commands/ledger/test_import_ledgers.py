"""``bkctl ledger import`` and ``export`` as processes, over metadata in a real ZooKeeper."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.ledger.changes import replace_bookies, replace_in_segment, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.store import ANY_VERSION
from tests.commands.ledger.conftest import CLOSED, OPEN, LedgerStage, labelled
from tests.until import until

TOO_LARGE = 2**63 - 1
MOVED = replace_in_segment(CLOSED, 0, {0: "b9:3181"})
ROLLED = replace_bookies(OPEN, 5, {0: "b4:3181"})
OLD_FORMAT = msgspec.structs.replace(labelled(CLOSED, b="2", a="1"), format_version=2)


def dump(stage: LedgerStage, metadata: LedgerMetadata, name: str = "dump") -> str:
    """A file of one ledger's bytes, as Java's tools write it."""
    path = stage.directory / name
    path.write_bytes(encode_ledger_metadata(metadata))
    return str(path)


async def export(stage: LedgerStage, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    path = stage.directory / "export.jsonl"
    path.unlink(missing_ok=True)
    result = await stage.run("export", *arguments, "--to", str(path))
    assert result.exit_code == 0, result
    return str(path), [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_whole_set_goes_out_and_comes_back_byte_by_byte(stage: LedgerStage) -> None:
    damaged = b"BookieMetadataFormatVersion\t3\n\xff"
    for ledger_id, content in {1: OPEN, 2: CLOSED, 3: OLD_FORMAT, 4: ROLLED, 2**62: MOVED, 9: damaged}.items():
        await stage.plant(ledger_id, content)  # type: ignore[arg-type]
    before = await stage.contents()
    path, lines = await export(stage, "--all")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert [line["ledger_id"] for line in lines] == ["1", "2", "3", "4", "9", str(2**62)]
    assert base64.b64decode(lines[2]["data"]) == before[3][0]
    assert lines[2]["metadata"]["custom_metadata"][0]["key"] == "b", "in the order of the bytes"
    assert (lines[4]["metadata"], bool(lines[4]["problem"])) == (None, True)
    for ledger_id in before:
        await stage.store.delete(stage.path(ledger_id))
    result = await stage.run("import", path, "--create-only", "--yes")
    assert result.exit_code == 9
    assert (result.json()["imported"], [each["ledger_id"] for each in result.json()["failures"]]) == (5, ["9"])
    del before[9]
    assert await stage.contents() == before
    again = await stage.run("import", path, "--create-only", "--yes")
    assert (again.exit_code, again.json()["imported"], again.json()["there_already"]) == (9, 0, 5)
    assert await stage.contents() == before


async def test_native_bytes(stage: LedgerStage) -> None:
    await stage.plant(1, OLD_FORMAT)
    await stage.plant(2, CLOSED)
    directory = stage.directory / "dumps"
    assert (await stage.run("export", "1", "0x2", "--native", "--to", str(directory))).exit_code == 0
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == {
        "1.ledger": encode_ledger_metadata(OLD_FORMAT),
        "2.ledger": encode_ledger_metadata(CLOSED),
    }
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}
    shown = await stage.run("show", "1", "--raw")
    assert shown.stdout == (await stage.run("export", "1", "--native")).stdout
    assert shown.stdout == encode_ledger_metadata(OLD_FORMAT).decode()
    assert (await stage.run("export", "1", "2", "--native")).exit_code == 2
    refused = await stage.run("import", str(directory / "1.ledger"), "--create-only", "--yes")
    assert (refused.exit_code, "--ledger" in refused.stderr) == (3, True)
    assert (await stage.run("import", str(directory / "1.ledger"), "--ledger", "5", "--create-only")).exit_code == 3
    await stage.succeed("import", str(directory / "1.ledger"), "--ledger", "5", "--create-only", "--yes")
    assert (await stage.contents())[5] == (encode_ledger_metadata(OLD_FORMAT), 0)


async def test_the_change_is_shown_and_the_version_demanded(stage: LedgerStage) -> None:
    await stage.plant(1, CLOSED)
    file = dump(stage, MOVED)
    before = await stage.contents()
    for arguments, code in [
        (["--confirm", "1"], 2),
        (["--create-only", "--if-version", "0", "--confirm", "1"], 2),
        (["--if-version", "newest", "--confirm", "1"], 2),
        (["--if-version", "next", "--confirm", "1"], 2),  # bare bytes tell no version
        (["--if-version", "1", "--confirm", "1"], 5),
        (["--if-version", "0"], 3),
        (["--if-version", "0", "--yes"], 3),
        (["--if-version", "0", "--confirm", "2"], 3),
        (["--create-only", "--yes"], 5),
    ]:
        result = await stage.run("import", file, "--ledger", "1", *arguments)
        assert (result.exit_code, await stage.contents()) == (code, before), (arguments, result)
    plan = await stage.succeed("import", file, "--ledger", "1", "--if-version", "0", "--dry-run")
    assert plan["items"][0]["changes"] == [
        {"field": "segment.0", "before": "b1:3181,b2:3181,b3:3181", "after": "b9:3181,b2:3181,b3:3181"}
    ]
    assert "bookies that are unknown to this cluster: b2:3181, b3:3181, b9:3181" in " ".join(plan["summary"])
    done = await stage.succeed("import", file, "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (done["imported"], done["failed"]) == (1, 0)
    assert await stage.contents() == {1: (encode_ledger_metadata(MOVED), 1)}
    back = await stage.succeed("import", stage.trash_file(), "--if-version", "next", "--confirm", "1")
    assert back["imported"] == 1
    assert await stage.contents() == {1: (before[1][0], 2)}


@pytest.mark.parametrize(
    ("present", "file", "reason"),
    [
        (CLOSED, OPEN, "a state never moves back"),
        (CLOSED, to_in_recovery(OPEN), "a state never moves back"),
        (to_in_recovery(OPEN), OPEN, "a state never moves back"),
        (CLOSED, to_closed(OPEN, 8, 1000), "closed at entry 9, but in the file at 8"),
        (CLOSED, to_closed(OPEN, 10, 1000), "closed at entry 9, but in the file at 10"),
        (CLOSED, to_closed(OPEN, 9, 999), "closed with 1000 bytes, but in the file with 999"),
        (ROLLED, OPEN, "its segments differ"),
        (ROLLED, to_closed(OPEN, 3, 10), "it has entries up to at least 4, but in the file it ends at 3"),
        (OPEN, to_closed(msgspec.structs.replace(OPEN, password=b"x"), 1, 1), "different ledger"),
        (to_closed(ROLLED, 9, 9), to_closed(OPEN, 9, 9), "its segments differ"),
    ],
)
async def test_nothing_goes_backwards(
    stage: LedgerStage, present: LedgerMetadata, file: LedgerMetadata, reason: str
) -> None:
    await stage.plant(1, present)
    before = await stage.contents()
    refused = await stage.run("import", dump(stage, file), "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (refused.exit_code, reason in refused.stderr) == (3, True), refused
    assert await stage.contents() == before


async def test_all_must_pass_before_one_is_written(stage: LedgerStage) -> None:
    for ledger_id in (1, 2, 3):
        await stage.plant(ledger_id, CLOSED)
    path, _ = await export(stage, "--all")
    await stage.store.set(stage.path(1), encode_ledger_metadata(MOVED), ANY_VERSION)
    await stage.store.set(stage.path(3), encode_ledger_metadata(to_closed(OPEN, 8, 1)), ANY_VERSION)
    before = await stage.contents()
    assert (await stage.run("import", path, "--if-version", "0", "--confirm", "2")).exit_code == 2
    assert (await stage.run("import", path, "--if-version", "recorded", "--confirm", "2")).exit_code == 5
    assert (await stage.run("import", path, "--if-version", "next", "--confirm", "2")).exit_code == 3
    assert await stage.contents() == before
    done = await stage.succeed("import", path, "--ledger", "1", "--if-version", "next", "--confirm", "1")
    assert done["imported"] == 1
    assert (await stage.run("import", path, "--ledger", "4", "--create-only", "--yes")).exit_code == 4


async def test_what_cannot_be_read_may_be_replaced_at_its_version(stage: LedgerStage) -> None:
    await stage.plant(1, b"garbage")
    file = dump(stage, CLOSED)
    plan = await stage.succeed("import", file, "--ledger", "1", "--if-version", "0", "--dry-run")
    assert "existing metadata is unreadable and was not compared: 1 ledger" in " ".join(plan["summary"])
    await stage.succeed("import", file, "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (await stage.contents())[1][0] == encode_ledger_metadata(CLOSED)
    assert base64.b64decode(stage.trash()[0]["data"]) == b"garbage"


async def test_a_ledger_of_a_newer_release_is_not_replaced(stage: LedgerStage) -> None:
    await stage.plant(1, b"BookieMetadataFormatVersion\t4\nnew")
    before = await stage.contents()
    refused = await stage.run("import", dump(stage, CLOSED), "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (refused.exit_code, "written by a newer release" in refused.stderr) == (3, True), refused
    assert await stage.contents() == before


async def test_bad_files_change_nothing(stage: LedgerStage) -> None:
    await stage.plant(1, CLOSED)
    path, [line] = await export(stage, "1")
    await stage.store.delete(stage.path(1))
    trash_line = {"path": f"{stage.ledgers.root}/00/0000/L0001", "version": 0, "data": line["data"]}
    edited = line | {"metadata": line["metadata"] | {"state": "OPEN"}}
    for content, code in [
        (b"", 4),
        (b"nonsense\n", 12),
        (b"{}\n", 12),
        (json.dumps(line | {"data": "!"}).encode() + b"\n", 12),
        (json.dumps(line | {"data": ""}).encode() + b"\n", 12),
        (json.dumps(line | {"kind": "Ledger"}).encode() + b"\n", 12),
        (json.dumps(line | {"ledger_id": "-1"}).encode() + b"\n", 12),
        (json.dumps(line | {"ledger_id": 1}).encode() + b"\n", 12),
        (json.dumps(line | {"ledger_id": str(TOO_LARGE)}).encode() + b"\n", 3),
        (json.dumps(line | {"instance_id": "other"}).encode() + b"\n", 3),
        (json.dumps(line | {"root": "/elsewhere"}).encode() + b"\n", 3),
        (json.dumps(edited).encode() + b"\n", 3),
        (json.dumps(trash_line | {"path": f"{stage.ledgers.root}/922/3372/0368/5477/L5807"}).encode() + b"\n", 3),
        (json.dumps(trash_line | {"path": f"{stage.ledgers.root}/LAYOUT"}).encode() + b"\n", 3),
        (json.dumps(trash_line | {"path": f"{stage.ledgers.root}/../x/00/0000/L0001"}).encode() + b"\n", 3),
        (json.dumps(line).encode()[:-10], 4),  # cut off, and nothing else in it
    ]:
        Path(path).write_bytes(content)
        result = await stage.run("import", path, "--create-only", "--yes")
        assert (result.exit_code, await stage.contents()) == (code, {}), (content, result)
    native = dump(stage, CLOSED)
    for ledger_id in (str(TOO_LARGE), hex(TOO_LARGE), "-1"):
        result = await stage.run("import", native, "--ledger", ledger_id, "--create-only", "--yes")
        assert (result.exit_code, await stage.contents()) == (2, {})
    assert (await stage.run("import", str(stage.directory / "absent"), "--create-only", "--yes")).exit_code == 4
    Path(path).write_text(json.dumps(line))  # an editor left out the last line end
    await stage.succeed("import", path, "--create-only", "--yes")
    assert list(await stage.contents()) == [1]


async def test_a_plan_is_for_these_very_bytes(stage: LedgerStage) -> None:
    await stage.plant(1, CLOSED)
    file = dump(stage, MOVED)
    saved = str(stage.directory / "plan.json")
    arguments = ["import", file, "--ledger", "1", "--if-version", "0"]
    await stage.succeed(*arguments, "--plan-out", saved)
    dump(stage, msgspec.structs.replace(MOVED, creator_token=5))
    assert (await stage.run(*arguments, "--apply", saved, "--confirm", "1")).exit_code == 5
    dump(stage, MOVED)
    assert (await stage.succeed(*arguments, "--apply", saved, "--confirm", "1"))["imported"] == 1
    late = await stage.run(*arguments, "--apply", saved, "--confirm", "1")
    assert (late.exit_code, "the saved plan no longer fits" in late.stderr) == (5, True)
    assert (await stage.succeed(*arguments, "--plan-out", saved))["changes"] == 0
    assert (await stage.succeed(*arguments, "--apply", saved))["imported"] == 0


async def test_killed_in_the_middle_and_run_again(stage: LedgerStage) -> None:
    for ledger_id in range(300):
        await stage.plant(ledger_id, CLOSED)
    before = await stage.contents()
    path, _ = await export(stage, "--all")
    for ledger_id in before:
        await stage.store.delete(stage.path(ledger_id))
    process = await stage.begin("import", path, "--create-only", "--yes", "--rate", "75")

    async def has_begun() -> bool:
        assert process.returncode is None
        return len(await stage.contents()) >= 50

    await until(has_begun)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    there = len(await stage.contents())
    assert there < 300, "killed too late to tell anything"
    done = await stage.succeed("import", path, "--create-only", "--yes")
    assert (done["imported"], done["there_already"]) == (300 - there, there)
    assert await stage.contents() == before


async def test_export_of_what_is_not_there(stage: LedgerStage) -> None:
    await stage.plant(1, CLOSED)
    target = stage.directory / "out"
    for arguments, code in [
        (["1", "2"], 4),
        ([], 2),
        (["1", "--all"], 2),
        ([str(TOO_LARGE)], 2),
    ]:
        result = await stage.run("export", *arguments, "--to", str(target))
        assert result.exit_code == code
        assert list(stage.directory.glob("out*")) == [], "all or nothing"
    assert (await stage.run("export", "1", "--to", "/proc/nowhere/out")).exit_code == 1
    target.mkdir()
    (target / "1.ledger").write_text("mine")
    for taken, arguments in [(target / "1.ledger", []), (target, []), (target / "1.ledger", ["--native"])]:
        to = target if arguments else taken
        refused = await stage.run("export", "1", *arguments, "--to", str(to))
        assert (refused.exit_code, refused.stderr) == (5, f"error: {taken} already exists: specify a new file\n")
    assert (target / "1.ledger").read_text() == "mine"
    assert (await stage.run("export", "1", "--to", "/dev/full/x")).exit_code == 1


async def test_show_of_several(stage: LedgerStage) -> None:
    await stage.plant(1, labelled(CLOSED, application="pulsar", pulsar__cursor="s"))
    await stage.plant(2**62, OPEN)
    await stage.plant(3, b"garbage")
    assert (await stage.run("show", "1", "--limit", "0")).exit_code == 2, "it lists nothing"
    both = await stage.succeed("show", "1", hex(2**62), "1")
    assert [(each["ledger_id"], each["state"]) for each in both["items"]] == [("1", "closed"), (str(2**62), "open")]
    assert both["items"][0]["owner"] == "cursor s"
    assert both["items"][0]["ensembles"][0]["ensemble"] == ["b1:3181", "b2:3181", "b3:3181"]
    assert (await stage.run("show", "1", "99")).exit_code == 9
    assert (await stage.run("show", "1", "3")).exit_code == 9
    assert (await stage.run("show", "99", "98")).exit_code == 4
    assert (await stage.run("show", "99")).exit_code == 4
    assert (await stage.run("show", "3")).exit_code == 12
    assert (await stage.run("show", "3", "--raw")).stdout == "garbage"
    assert (await stage.run("show", "1", str(TOO_LARGE))).exit_code == 2
    uuid = await stage.succeed("show", "00000000-0000-0000-4000-000000000000")
    assert uuid["ledger_id"] == str(2**62)
