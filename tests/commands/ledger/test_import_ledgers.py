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
from tests.commands.ledger.conftest import CLOSED, OPEN, LedgerShell, labelled
from tests.until import until

TOO_LARGE = 2**63 - 1
MOVED = replace_in_segment(CLOSED, 0, {0: "b9:3181"})
ROLLED = replace_bookies(OPEN, 5, {0: "b4:3181"})
OLD_FORMAT = msgspec.structs.replace(labelled(CLOSED, b="2", a="1"), format_version=2)


def dump(shell: LedgerShell, metadata: LedgerMetadata, name: str = "dump") -> str:
    """A file of one ledger's bytes, as Java's tools write it."""
    path = shell.directory / name
    path.write_bytes(encode_ledger_metadata(metadata))
    return str(path)


async def export(shell: LedgerShell, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    path = shell.directory / "export.jsonl"
    path.unlink(missing_ok=True)
    result = await shell.run("export", *arguments, "--out", str(path))
    assert result.exit_code == 0, result
    return str(path), [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_whole_set_goes_out_and_comes_back_byte_by_byte(shell: LedgerShell) -> None:
    damaged = b"BookieMetadataFormatVersion\t3\n\xff"
    for ledger_id, content in {1: OPEN, 2: CLOSED, 3: OLD_FORMAT, 4: ROLLED, 2**62: MOVED, 9: damaged}.items():
        await shell.plant(ledger_id, content)  # type: ignore[arg-type]
    before = await shell.contents()
    path, lines = await export(shell, "--all")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert [line["ledger_id"] for line in lines] == ["1", "2", "3", "4", "9", str(2**62)]
    assert base64.b64decode(lines[2]["data"]) == before[3][0]
    assert lines[2]["metadata"]["custom_metadata"][0]["key"] == "b", "in the order of the bytes"
    assert (lines[4]["metadata"], bool(lines[4]["problem"])) == (None, True)
    for ledger_id in before:
        await shell.store.delete(shell.path(ledger_id))
    result = await shell.run("import", path, "--create-only", "--yes")
    assert result.exit_code == 9
    assert (result.json()["imported"], [each["ledger_id"] for each in result.json()["failures"]]) == (5, ["9"])
    del before[9]
    assert await shell.contents() == before
    again = await shell.run("import", path, "--create-only", "--yes")
    assert (again.exit_code, again.json()["imported"], again.json()["there_already"]) == (9, 0, 5)
    assert await shell.contents() == before


async def test_native_bytes(shell: LedgerShell) -> None:
    await shell.plant(1, OLD_FORMAT)
    await shell.plant(2, CLOSED)
    directory = shell.directory / "dumps"
    assert (await shell.run("export", "1", "0x2", "--native", "--out", str(directory))).exit_code == 0
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == {
        "1.ledger": encode_ledger_metadata(OLD_FORMAT),
        "2.ledger": encode_ledger_metadata(CLOSED),
    }
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}
    shown = await shell.run("show", "1", "--raw")
    assert shown.stdout == (await shell.run("export", "1", "--native")).stdout
    assert shown.stdout == encode_ledger_metadata(OLD_FORMAT).decode()
    assert (await shell.run("export", "1", "2", "--native")).exit_code == 2
    refused = await shell.run("import", str(directory / "1.ledger"), "--create-only", "--yes")
    assert (refused.exit_code, "--ledger" in refused.stderr) == (3, True)
    assert (await shell.run("import", str(directory / "1.ledger"), "--ledger", "5", "--create-only")).exit_code == 3
    await shell.succeed("import", str(directory / "1.ledger"), "--ledger", "5", "--create-only", "--yes")
    assert (await shell.contents())[5] == (encode_ledger_metadata(OLD_FORMAT), 0)


async def test_the_change_is_shown_and_the_version_demanded(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    file = dump(shell, MOVED)
    before = await shell.contents()
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
        result = await shell.run("import", file, "--ledger", "1", *arguments)
        assert (result.exit_code, await shell.contents()) == (code, before), (arguments, result)
    plan = await shell.succeed("import", file, "--ledger", "1", "--if-version", "0", "--dry-run")
    assert plan["items"][0]["changes"] == [
        {"field": "segment.0", "before": "b1:3181,b2:3181,b3:3181", "after": "b9:3181,b2:3181,b3:3181"}
    ]
    assert "bookies that are unknown to this cluster: b2:3181, b3:3181, b9:3181" in " ".join(plan["summary"])
    done = await shell.succeed("import", file, "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (done["imported"], done["failed"]) == (1, 0)
    assert await shell.contents() == {1: (encode_ledger_metadata(MOVED), 1)}
    back = await shell.succeed("import", shell.trash_file(), "--if-version", "next", "--confirm", "1")
    assert back["imported"] == 1
    assert await shell.contents() == {1: (before[1][0], 2)}


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
    shell: LedgerShell, present: LedgerMetadata, file: LedgerMetadata, reason: str
) -> None:
    await shell.plant(1, present)
    before = await shell.contents()
    refused = await shell.run("import", dump(shell, file), "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (refused.exit_code, reason in refused.stderr) == (3, True), refused
    assert await shell.contents() == before


async def test_all_must_pass_before_one_is_written(shell: LedgerShell) -> None:
    for ledger_id in (1, 2, 3):
        await shell.plant(ledger_id, CLOSED)
    path, _ = await export(shell, "--all")
    await shell.store.set(shell.path(1), encode_ledger_metadata(MOVED), ANY_VERSION)
    await shell.store.set(shell.path(3), encode_ledger_metadata(to_closed(OPEN, 8, 1)), ANY_VERSION)
    before = await shell.contents()
    assert (await shell.run("import", path, "--if-version", "0", "--confirm", "2")).exit_code == 2
    assert (await shell.run("import", path, "--if-version", "recorded", "--confirm", "2")).exit_code == 5
    assert (await shell.run("import", path, "--if-version", "next", "--confirm", "2")).exit_code == 3
    assert await shell.contents() == before
    done = await shell.succeed("import", path, "--ledger", "1", "--if-version", "next", "--confirm", "1")
    assert done["imported"] == 1
    assert (await shell.run("import", path, "--ledger", "4", "--create-only", "--yes")).exit_code == 4


async def test_what_cannot_be_read_may_be_replaced_at_its_version(shell: LedgerShell) -> None:
    await shell.plant(1, b"garbage")
    file = dump(shell, CLOSED)
    plan = await shell.succeed("import", file, "--ledger", "1", "--if-version", "0", "--dry-run")
    assert "existing metadata is unreadable and was not compared: 1 ledger" in " ".join(plan["summary"])
    await shell.succeed("import", file, "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (await shell.contents())[1][0] == encode_ledger_metadata(CLOSED)
    assert base64.b64decode(shell.trash()[0]["data"]) == b"garbage"


async def test_a_ledger_of_a_newer_release_is_not_replaced(shell: LedgerShell) -> None:
    await shell.plant(1, b"BookieMetadataFormatVersion\t4\nnew")
    before = await shell.contents()
    refused = await shell.run("import", dump(shell, CLOSED), "--ledger", "1", "--if-version", "0", "--confirm", "1")
    assert (refused.exit_code, "written by a newer release" in refused.stderr) == (3, True), refused
    assert await shell.contents() == before


async def test_bad_files_change_nothing(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    path, [line] = await export(shell, "1")
    await shell.store.delete(shell.path(1))
    trash_line = {"path": f"{shell.ledgers.root}/00/0000/L0001", "version": 0, "data": line["data"]}
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
        (json.dumps(trash_line | {"path": f"{shell.ledgers.root}/922/3372/0368/5477/L5807"}).encode() + b"\n", 3),
        (json.dumps(trash_line | {"path": f"{shell.ledgers.root}/LAYOUT"}).encode() + b"\n", 3),
        (json.dumps(trash_line | {"path": f"{shell.ledgers.root}/../x/00/0000/L0001"}).encode() + b"\n", 3),
        (json.dumps(line).encode()[:-10], 4),  # cut off, and nothing else in it
    ]:
        Path(path).write_bytes(content)
        result = await shell.run("import", path, "--create-only", "--yes")
        assert (result.exit_code, await shell.contents()) == (code, {}), (content, result)
    native = dump(shell, CLOSED)
    for ledger_id in (str(TOO_LARGE), hex(TOO_LARGE), "-1"):
        result = await shell.run("import", native, "--ledger", ledger_id, "--create-only", "--yes")
        assert (result.exit_code, await shell.contents()) == (2, {})
    assert (await shell.run("import", str(shell.directory / "absent"), "--create-only", "--yes")).exit_code == 4
    Path(path).write_text(json.dumps(line))  # an editor left out the last line end
    await shell.succeed("import", path, "--create-only", "--yes")
    assert list(await shell.contents()) == [1]


async def test_a_plan_is_for_these_very_bytes(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    file = dump(shell, MOVED)
    saved = str(shell.directory / "plan.json")
    arguments = ["import", file, "--ledger", "1", "--if-version", "0"]
    await shell.succeed(*arguments, "--plan-out", saved)
    dump(shell, msgspec.structs.replace(MOVED, creator_token=5))
    assert (await shell.run(*arguments, "--apply", saved, "--confirm", "1")).exit_code == 5
    dump(shell, MOVED)
    assert (await shell.succeed(*arguments, "--apply", saved, "--confirm", "1"))["imported"] == 1
    late = await shell.run(*arguments, "--apply", saved, "--confirm", "1")
    assert (late.exit_code, "the saved plan no longer fits" in late.stderr) == (5, True)
    assert (await shell.succeed(*arguments, "--plan-out", saved))["changes"] == 0
    assert (await shell.succeed(*arguments, "--apply", saved))["imported"] == 0


async def test_killed_in_the_middle_and_run_again(shell: LedgerShell) -> None:
    for ledger_id in range(300):
        await shell.plant(ledger_id, CLOSED)
    before = await shell.contents()
    path, _ = await export(shell, "--all")
    for ledger_id in before:
        await shell.store.delete(shell.path(ledger_id))
    process = await shell.begin("import", path, "--create-only", "--yes", "--max-per-second", "25")

    async def has_begun() -> bool:
        assert process.returncode is None
        return len(await shell.contents()) >= 50

    await until(has_begun)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    there = len(await shell.contents())
    assert there < 300, "killed too late to tell anything"
    done = await shell.succeed("import", path, "--create-only", "--yes")
    assert (done["imported"], done["there_already"]) == (300 - there, there)
    assert await shell.contents() == before


async def test_export_of_what_is_not_there(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    target = shell.directory / "out"
    for arguments, code in [
        (["1", "2"], 4),
        ([], 2),
        (["1", "--all"], 2),
        ([str(TOO_LARGE)], 2),
    ]:
        result = await shell.run("export", *arguments, "--out", str(target))
        assert result.exit_code == code
        assert list(shell.directory.glob("out*")) == [], "all or nothing"
    assert (await shell.run("export", "1", "--out", "/proc/nowhere/out")).exit_code == 1
    target.mkdir()
    (target / "1.ledger").write_text("mine")
    for taken, arguments in [(target / "1.ledger", []), (target, []), (target / "1.ledger", ["--native"])]:
        to = target if arguments else taken
        refused = await shell.run("export", "1", *arguments, "--out", str(to))
        assert (refused.exit_code, refused.stderr) == (5, f"error: {taken} already exists: specify a new file\n")
    assert (target / "1.ledger").read_text() == "mine"
    assert (await shell.run("export", "1", "--out", "/dev/full/x")).exit_code == 1


async def test_show_of_several(shell: LedgerShell) -> None:
    await shell.plant(1, labelled(CLOSED, application="pulsar", pulsar__cursor="s"))
    await shell.plant(2**62, OPEN)
    await shell.plant(3, b"garbage")
    assert (await shell.run("show", "1", "--limit", "0")).exit_code == 2, "it lists nothing"
    both = await shell.succeed("show", "1", hex(2**62), "1")
    assert [(each["ledger_id"], each["state"]) for each in both["items"]] == [("1", "closed"), (str(2**62), "open")]
    assert both["items"][0]["owner"] == "cursor s"
    assert both["items"][0]["ensembles"][0]["ensemble"] == ["b1:3181", "b2:3181", "b3:3181"]
    assert (await shell.run("show", "1", "99")).exit_code == 4
    assert (await shell.run("show", "1", "3")).exit_code == 12
    assert (await shell.run("show", "99", "98")).exit_code == 4
    assert (await shell.run("show", "99")).exit_code == 4
    assert (await shell.run("show", "3")).exit_code == 12
    assert (await shell.run("show", "3", "--raw")).stdout == "garbage"
    assert (await shell.run("show", "1", str(TOO_LARGE))).exit_code == 2
    uuid = await shell.succeed("show", "00000000-0000-0000-4000-000000000000")
    assert uuid["ledger_id"] == str(2**62)
