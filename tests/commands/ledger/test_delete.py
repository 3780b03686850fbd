"""``bkctl ledger delete`` as a process, over metadata in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.ledger.changes import to_in_recovery
from bkctl.runtime.metadata.store import ANY_VERSION
from tests.commands.ledger.conftest import CLOSED, OPEN, LedgerShell, labelled
from tests.operation_locks import end_locks
from tests.processes import BkctlResult, TerminalSession, spawn_bkctl
from tests.until import until

TOPIC = labelled(CLOSED, application="pulsar", component="managed_ledger", pulsar__managed_ledger="t/n/persistent/a")
CURSOR = labelled(CLOSED, application="pulsar", pulsar__cursor="s")
TOO_LARGE = str(2**63 - 1)


async def test_the_plan_tells_whose_they_are(shell: LedgerShell) -> None:
    await shell.plant(1, TOPIC)
    await shell.plant(2, CURSOR)
    before = await shell.contents()
    plan = await shell.succeed("delete", "1", "0x2", "1", "--dry-run")
    assert (plan["tier"], plan["subject"], plan["changes"]) == (3, "2", 2)
    assert [item["owner"] for item in plan["items"]] == [
        "topic persistent://t/n/a",
        "cursor s",
    ]
    assert plan["summary"][0] == "will delete 2 ledgers with 2.0 KiB of payload"
    assert await shell.contents() == before


async def test_one_ledger_is_deleted_by_its_id_and_comes_back_from_the_trash(shell: LedgerShell) -> None:
    await shell.plant(7, TOPIC)
    await shell.plant(8, CLOSED)
    before = await shell.contents()
    expired = shell.state / "trash" / "20010101T000000Z-ab12.jsonl"
    expired.parent.mkdir(parents=True)
    expired.write_text("x")
    for wrong, exit_code in (([], 3), (["--yes"], 3), (["--confirm", "8"], 3), (["--confirm", "1"], 3)):
        assert (await shell.run("delete", "7", *wrong)).exit_code == exit_code
        assert await shell.contents() == before
    assert await shell.succeed("delete", "7", "--confirm", "7") | {"trash": ""} == {
        "apiVersion": "bkctl/v1",
        "kind": "LedgerDelete",
        "deleted": 1,
        "gone_already": 0,
        "failed": 0,
        "trash": "",
        "failures": [],
    }
    assert await shell.contents() == {8: before[8]}
    assert not expired.exists()
    assert stat.S_IMODE(os.stat(shell.trash_file()).st_mode) == 0o600
    assert (await shell.run("delete", "7", "--confirm", "7")).exit_code == 4
    back = await shell.succeed("import", shell.trash_file(), "--create-only", "--yes")
    assert back["imported"] == 1
    assert await shell.contents() == before


@pytest.mark.parametrize("state", [OPEN, to_in_recovery(OPEN)], ids=["open", "in recovery"])
async def test_what_may_still_be_written_is_refused_with_all_others(shell: LedgerShell, state: object) -> None:
    await shell.plant(1, CLOSED)
    await shell.plant(2, state)  # type: ignore[arg-type]
    before = await shell.contents()
    refused = await shell.run("delete", "1", "2", "--confirm", "2")
    assert refused.exit_code == 3
    assert "ledger 2 is " in refused.stderr
    assert await shell.contents() == before
    assert shell.trash() == []


async def test_unreadable_ledgers_need_a_word_of_their_own(shell: LedgerShell) -> None:
    await shell.plant(1, b"garbage")
    assert (await shell.run("delete", "1", "--confirm", "1")).exit_code == 3
    assert (await shell.succeed("delete", "1", "--confirm", "1", "--unreadable"))["deleted"] == 1
    assert await shell.contents() == {}
    again = await shell.run("import", shell.trash_file(), "--create-only", "--yes")
    assert again.exit_code == 12
    assert await shell.contents() == {}, "what nobody can read is never written"


async def test_wrong_ids(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    ids = shell.directory / "ids"
    ids.write_text(f"1\n{TOO_LARGE}\n")
    for arguments, code in [
        (["99"], 4),
        (["1", "99"], 4),
        ([TOO_LARGE], 2),
        (["0x7fffffffffffffff"], 2),
        (["-5"], 2),
        (["one"], 2),
        ([], 2),
        (["--from-file", str(ids)], 2),
        (["--from-file", str(shell.directory / "absent")], 4),
    ]:
        result = await shell.run("delete", *arguments, "--confirm", "1")
        assert (result.exit_code, result.stdout) == (code, ""), arguments
    assert list(await shell.contents()) == [1]


async def test_a_file_of_ids_may_be_partly_done(shell: LedgerShell) -> None:
    for ledger_id in (1, 2, 3):
        await shell.plant(ledger_id, CLOSED)
    ids = shell.directory / "ids"
    ids.write_text("1\n2\n77\n")
    assert (await shell.run("delete", "--from-file", str(ids), "--confirm", "3")).exit_code == 3
    done = await shell.succeed("delete", "--from-file", str(ids), "--confirm", "2")
    assert (done["deleted"], done["gone_already"]) == (2, 1)
    assert list(await shell.contents()) == [3]
    assert (await shell.run("delete", "--from-file", str(ids), "--confirm", "0")).exit_code == 4


async def test_ids_from_a_pipe(shell: LedgerShell) -> None:
    for ledger_id in (1, 2, 3):
        await shell.plant(ledger_id, CLOSED)
    environment: dict[str, Any] = shell.environment

    def delete(stdin: str, *arguments: str) -> BkctlResult:
        return spawn_bkctl("ledger", "delete", "--from-file", "-", *arguments, stdin=stdin, **environment)

    unconfirmed = await asyncio.to_thread(delete, "1\n3\n", "3")
    assert (unconfirmed.exit_code, "--confirm 2" in unconfirmed.stderr) == (3, True)
    empty = await asyncio.to_thread(delete, "", "--confirm", "0")
    assert (empty.exit_code, empty.stderr) == (4, "error: there is no ledger id in the file\n")
    wrong = await asyncio.to_thread(delete, "1\nx\n", "--confirm", "2")
    assert (wrong.exit_code, "/dev/stdin, line 2: 'x' is not a ledger id" in wrong.stderr) == (2, True)
    assert (await asyncio.to_thread(delete, "1\n3\n", "3", "--confirm", "2")).exit_code == 0
    assert list(await shell.contents()) == [2]


async def test_a_ledger_with_a_stray_child_does_not_hide_what_became_of_the_others(shell: LedgerShell) -> None:
    for ledger_id in (1, 2, 3):
        await shell.plant(ledger_id, CLOSED)
    await shell.store.create(f"{shell.path(2)}/stray")
    result = await shell.run("delete", "1", "2", "3", "--confirm", "3")
    assert result.exit_code == 9, result
    body = result.json()
    assert (body["deleted"], body["failed"]) == (2, 1)
    reason = f"{shell.path(2)}: node has children: bkctl metadata doctor lists them"
    assert body["failures"] == [{"ledger_id": "2", "reason": reason}]
    assert list(await shell.contents()) == [2]


async def test_a_ledger_changed_since_the_plan_is_left(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    await shell.plant(2, CLOSED)
    plan = str(shell.directory / "plan.json")
    await shell.succeed("delete", "1", "2", "--plan-out", plan)
    node = await shell.store.get(shell.path(2))
    await shell.store.set(shell.path(2), node.data, ANY_VERSION)
    before = await shell.contents()
    refused = await shell.run("delete", "1", "2", "--apply", plan, "--confirm", "2")
    assert refused.exit_code == 5
    assert await shell.contents() == before


async def test_a_ledger_changed_after_the_confirmation_is_left(shell: LedgerShell) -> None:
    """The question stands on the screen while somebody else writes: compare-and-set finds out."""
    await shell.plant(1, CLOSED)
    await shell.plant(2, CLOSED)
    terminal = await asyncio.to_thread(TerminalSession, "ledger", "delete", "1", "2", "-o", "json", **shell.environment)
    with terminal as session:
        await asyncio.to_thread(session.wait_for, "Type 2 to continue")
        node = await shell.store.get(shell.path(2))
        await shell.store.set(shell.path(2), node.data, ANY_VERSION)
        session.type("2\n")
        assert await asyncio.to_thread(session.exit_code) == 9
    assert "changed since the plan: version 0 then, 1 now" in session.screen
    assert list(await shell.contents()) == [2]


async def test_two_at_once_delete_each_ledger_once(shell: LedgerShell) -> None:
    for ledger_id in range(200):
        await shell.plant(ledger_id, CLOSED)
    ids = shell.directory / "ids"
    ids.write_text("\n".join(map(str, range(200))))
    both = await asyncio.gather(*(shell.run("delete", "--from-file", str(ids), "--confirm", "200") for _ in range(2)))
    codes = sorted(result.exit_code for result in both)
    assert codes[0] == 0
    assert codes[1] in {0, 3, 4, 5, 9}  # the lock is held, or all is gone, or fewer are left than was typed
    assert await shell.contents() == {}
    assert len({line["path"] for line in shell.trash()}) == 200


async def test_killed_in_the_middle_everything_deleted_is_in_the_trash(shell: LedgerShell) -> None:
    for ledger_id in range(300):
        await shell.plant(ledger_id, CLOSED)
    before = await shell.contents()
    ids = shell.directory / "ids"
    ids.write_text("\n".join(map(str, range(300))))
    process = await shell.begin("delete", "--from-file", str(ids), "--confirm", "300", "--max-per-second", "25")

    async def has_begun() -> bool:
        assert process.returncode is None
        return len(await shell.contents()) <= 250

    await until(has_begun)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    left = await shell.contents()
    assert 0 < len(left) < 300, "killed too late to tell anything"
    kept = {line["path"] for line in shell.trash()}
    assert kept >= {shell.path(ledger_id) for ledger_id in before if ledger_id not in left}
    await end_locks(shell.store, shell.ledgers.root)
    finished = await shell.succeed("delete", "--from-file", str(ids), "--confirm", str(len(left)))
    assert (finished["deleted"], finished["gone_already"]) == (len(left), 300 - len(left))
    assert await shell.contents() == {}
    for file in sorted((shell.state / "trash").glob("*.jsonl")):
        result = await shell.run("import", str(file), "--create-only", "--yes")
        assert result.exit_code == 0, result
    assert await shell.contents() == before


async def test_nothing_is_deleted_when_the_trash_cannot_be_written(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    before = await shell.contents()
    (shell.directory / "state").write_text("a file where a directory should be")
    refused = await shell.run("delete", "1", "--confirm", "1")
    assert refused.exit_code == 3
    assert "undo data" in refused.stderr
    assert await shell.contents() == before


async def test_a_full_disk_stops_it_before_the_next_batch(shell: LedgerShell) -> None:
    """The file size limit of the process stands for the disk: the trash holds one batch and not two."""
    for ledger_id in range(200):
        await shell.plant(ledger_id, CLOSED)
    before = await shell.contents()
    ids = shell.directory / "ids"
    ids.write_text("\n".join(map(str, range(200))))
    line_bytes = 450
    process = await shell.begin(
        "delete", "--from-file", str(ids), "--confirm", "200", "-o", "json", file_bytes_max=100 * line_bytes
    )
    out, err = await process.communicate()
    assert process.returncode == 9, (out, err)
    assert json.loads(out)["deleted"] in {64, 128}
    assert b"cannot save the former data" in err
    left = await shell.contents()
    assert len(left) == 200 - json.loads(out)["deleted"]
    result = await shell.run("import", shell.trash_file(), "--create-only", "--yes")
    assert result.exit_code == 0, result
    assert "the last line" in result.stderr, "torn by the full disk"
    assert await shell.contents() == before


async def test_read_only_settings_forbid_it(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    assert (await shell.run("delete", "1", "--confirm", "1", BKCTL_READ_ONLY="1")).exit_code == 3
    assert list(await shell.contents()) == [1]
    assert not Path(shell.state).exists()
