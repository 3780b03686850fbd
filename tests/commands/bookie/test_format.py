"""``bkctl bookie format``: what it deletes, what it refuses, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.client.sanity import CUSTOM_METADATA
from bkctl.runtime.errors import CookieError
from bkctl.runtime.metadata.bookies.cookies import decode_cookie, encode_cookie
from bkctl.runtime.metadata.store import MetadataStore
from tests.commands.cookie.conftest import ID, BookieHost
from tests.processes import BkctlResult, TerminalSession, free_port, start_bkctl
from tests.until import wait_until


class StoppedBookie(BookieHost):
    """A bookie that was used and is stopped."""

    def format(self, *arguments: str, **variables: str) -> BkctlResult:
        return self.operator.run("bookie", "format", *arguments, *self.arguments, **variables)

    def refused(self, *arguments: str, exit_code: int = 3) -> str:
        """Why it is refused; nothing may change."""
        before = self.tree()
        result = self.format("--confirm", self.id, *arguments)
        assert result.exit_code == exit_code, result
        assert self.tree() == before
        return result.stderr

    def files(self) -> list[str]:
        """Files in the bookie's directories."""
        found = []
        for directory in (*self.journals, *self.ledgers, *self.index):
            found += [str(path) for path in Path(directory).rglob("*") if path.is_file()]
        return found


@pytest.fixture
def host(tmp_path: Path, metadata_uri: str) -> StoppedBookie:
    return StoppedBookie(tmp_path, metadata_uri)


def test_data_and_cookie_are_deleted_and_a_new_bookie_starts(host: StoppedBookie) -> None:
    host.boot(1, 2)
    stored = host.stored()
    before = host.tree()
    planned = host.format("--delete-cookie", "--dry-run", "-o", "json")
    assert planned.exit_code == 0, planned.stderr
    items = planned.json()["items"]
    assert [item["path"] for item in items] == [
        *(f"{path}/current" for path in (*host.journals, *host.ledgers)),
        f"{host.root}/cookies/{ID}",
    ]
    assert all(item["files"] > 2 and item["bytes"] > 0 for item in items[:-1])
    assert host.tree() == before
    assert "use --confirm bookie-1" in host.format().stderr
    assert host.tree() == before
    done = host.format("--delete-cookie", "--confirm", ID, "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert (done.json()["cookie_deleted"], done.json()["bookie_id"]) == (True, ID)
    assert done.json()["files_deleted"] == sum(item["files"] for item in items[:-1])
    assert host.files() == []
    assert all(os.listdir(path) == [] for path in (*host.journals, *host.ledgers))
    assert host.stored() is None
    [trash] = (host.operator.state / "trash").iterdir()
    assert json.loads(trash.read_text())["path"] == f"{host.root}/cookies/{ID}"
    again = host.format("--delete-cookie", "--confirm", ID)
    assert (again.exit_code, "nothing to do" in again.stderr) == (0, True)
    host.boot(3)
    assert host.stored() == stored


def test_a_saved_plan_is_carried_out(host: StoppedBookie) -> None:
    host.boot(1)
    plan = str(host.directory / "state-plan")
    assert host.format("--plan-out", plan).exit_code == 0
    changed = host.format("--delete-cookie", "--apply", plan, "--confirm", ID)
    assert (changed.exit_code, "the saved plan no longer fits" in changed.stderr) == (5, True)
    done = host.format("--apply", plan, "--confirm", ID)
    assert done.exit_code == 0, done.stderr
    assert f"bkctl cookie delete {ID}" in done.stderr
    assert host.files() == []
    assert host.stored() is not None
    with pytest.raises(CookieError):
        host.boot()


def test_a_bookie_that_runs_is_not_formatted(host: StoppedBookie) -> None:
    with host.running() as process:
        host_tree = set(host.tree())
        result = host.format("--confirm", ID, "--delete-cookie")
        assert result.exit_code == 5
        assert f"in use by process {process.pid}" in result.stderr
        assert set(host.tree()) >= host_tree
    # The same ID on another machine: the directories here are not locked.
    with host.running():
        names = host.journals, host.ledgers
        host.name_directories("j9", "l8 l9")
        for path in (*host.journals, *host.ledgers):
            os.mkdir(path)
        other = host.format("--confirm", ID)
        assert (other.exit_code, f"bookie {ID} is registered" in other.stderr) == (3, True)
        host.journals, host.ledgers = names


def test_ledgers_that_reference_the_bookie(host: StoppedBookie) -> None:
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    text = host.refused("--delete-cookie")
    assert "2 ledgers reference bookie bookie-1 (4, 5)" in text
    assert f"bkctl decommission {ID}, or --accept-loss {ID} if" in text
    other = host.format("--confirm", ID, "--accept-loss", "b2:3181")
    assert (other.exit_code, f"the directories are those of bookie {ID}" in other.stderr) == (2, True)
    done = host.format("--confirm", ID, "--accept-loss", ID, "--delete-cookie")
    assert done.exit_code == 0, done.stderr
    assert "data may be lost permanently: 2 ledgers reference bookie bookie-1" in done.stderr
    assert host.files() == []
    with pytest.raises(CookieError, match="reference"):
        host.boot()  # the new bookie would deny entries that the old one had


def test_a_ledger_that_references_the_bookie_after_the_plan(host: StoppedBookie) -> None:
    host.boot(1)
    before = host.tree()
    with TerminalSession("bookie", "format", *host.arguments, **host.operator.environment) as session:
        session.wait_for(f"Type {ID} to continue")
        host.name_in_ledgers(4)
        session.type(f"{ID}\n")
        assert session.exit_code() == 3, session.screen
    assert "nothing was changed: 1 ledger references bookie bookie-1 (4)" in session.screen
    host.drop_ledgers(4)
    after = host.tree()
    assert {path: after[path] for path in before} == before


def test_an_accepted_loss_is_that_of_the_plan(host: StoppedBookie) -> None:
    host.boot(1)
    before = host.tree()
    plan = str(host.directory / "plan-without-references")
    assert host.format("--accept-loss", ID, "--plan-out", plan).exit_code == 0
    accepted = (*host.arguments, "--accept-loss", ID, "--quiet")
    with TerminalSession("bookie", "format", *accepted, **host.operator.environment) as session:
        session.wait_for(f"Type {ID} to continue")
        host.name_in_ledgers(4)
        session.type(f"{ID}\n")
        assert session.exit_code() == 5, session.screen
    assert "something has changed since the plan was made" in session.screen
    applied = host.format("--accept-loss", ID, "--apply", plan, "--confirm", ID)
    assert (applied.exit_code, "the saved plan no longer fits" in applied.stderr) == (5, True)
    with TerminalSession("bookie", "format", *accepted, **host.operator.environment) as session:
        session.wait_for(f"Type {ID} to continue")
        assert "critical: data may be lost permanently: 1 ledger references bookie bookie-1 (4)" in session.screen
        session.type("no\n")
        assert session.exit_code() != 0, session.screen
    host.drop_ledgers(4)
    after = host.tree()
    assert {path: after[path] for path in before} == before


def test_a_refusal_names_the_ledgers_that_a_killed_sanity_test_left(host: StoppedBookie) -> None:
    host.boot(1)
    host.name_in_ledgers(4, 5, custom_metadata=CUSTOM_METADATA)
    assert "(4, 5, left by bkctl bookie sanity: delete with bkctl ledger delete)" in host.refused()
    host.name_in_ledgers(6)
    assert "bookie sanity" not in host.refused()


def test_the_plan_and_the_result_say_only_what_there_is(host: StoppedBookie) -> None:
    host.boot(1)
    stored = host.stored()
    host.plant(None)
    done = host.format("--confirm", ID)
    assert (done.exit_code, "cookie" in done.stderr) == (0, False), done.stderr
    host.plant(stored)
    planned = host.format("--delete-cookie", "--dry-run", "-o", "json")
    assert planned.json()["summary"] == [
        f"the directories of bookie {ID} have no data",
        f"will delete the cookie of bookie {ID}",
    ]
    kept = host.format("--confirm", ID)
    assert f"the cookie of bookie {ID} was kept: it starts as a new bookie only after" in kept.stderr


def test_what_cannot_be_checked_is_refused(host: StoppedBookie) -> None:
    host.boot(1)

    async def spoil(store: MetadataStore) -> None:
        await store.create(f"{host.root}/00/0000/L0009", b"junk", make_parents=True)

    host.operator.on_store(spoil)
    assert "1 ledger cannot be read and may reference bookie" in host.refused()
    host.drop_ledgers(9)
    version = host.version("l2")
    whole = version.read_bytes()
    version.write_bytes(b"junk")
    assert "has no readable VERSION file" in host.refused()
    version.unlink()
    assert "has no readable VERSION file" in host.refused()
    other = encode_cookie(msgspec.structs.replace(decode_cookie(whole), instance_id="another"))
    for name in ("j", "l1", "l2"):
        host.version(name).write_bytes(other)
    assert "belongs to cluster instance another" in host.refused()
    done = host.format("--confirm", ID, "--accept-loss", ID)
    assert done.exit_code == 0, done.stderr
    assert host.files() == []


def test_directories_of_another_bookie_are_never_deleted(host: StoppedBookie) -> None:
    host.boot(1)
    host.id = "bookie-2"
    text = host.refused("--accept-loss", "bookie-2")
    assert "belongs to bookie bookie-1, not to bookie-2" in text
    host.id = ID
    host.name_directories("j", "l2 l1")
    assert "list all directories as before" in host.refused("--accept-loss", ID)
    host.name_directories("j", "l1")
    assert "list all directories as before" in host.refused("--accept-loss", ID)
    host.name_directories("j", "l1 l2")
    os.rename(host.ledgers[1], host.directory / "away")
    assert f"{host.ledgers[1]} is missing" in host.refused("--accept-loss", ID)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_leaves_what_no_bookie_starts_on_and_format_finishes(
    host: StoppedBookie, number: signal.Signals
) -> None:
    host.boot(1)
    stored = host.stored()
    note = Path(host.ledgers[1], "current", "bkctl.formatting")
    for count in (10_000, 40_000, 160_000):
        junk = Path(host.ledgers[1], "current", "junk")
        junk.mkdir(exist_ok=True)
        for each in range(count):
            (junk / str(each)).touch()
        words = ("bookie", "format", "--delete-cookie", "--confirm", ID, *host.arguments)
        process = start_bkctl(*words, variables=host.operator.environment)
        wait_until(lambda: note.exists() or process.poll() is not None)  # noqa: B023  called at once
        process.send_signal(number)
        process.wait(60)
        if note.exists():
            break
        host.plant(stored)
        for path in (*host.journals, *host.ledgers):
            version = Path(path, "current", "VERSION")
            version.parent.mkdir(parents=True, exist_ok=True)
            version.write_bytes(stored or b"")
    assert note.exists(), "the command was always faster than the kill"
    assert host.stored() == stored
    with pytest.raises(CookieError, match="a format of it was interrupted: finish it with bkctl bookie format"):
        host.boot()
    started = host.operator.run("bookie", "start", "--port", str(free_port()), *host.arguments)
    assert started.exit_code != 0
    assert "finish it with bkctl bookie format" in started.stderr
    assert "finish it with bkctl bookie format" in host.operator.run("cookie", "verify", *host.arguments).stdout
    done = host.format("--delete-cookie", "--confirm", ID)
    assert done.exit_code == 0, done.stderr
    assert host.files() == []
    assert host.stored() is None
    host.boot(2)


def test_the_mode_that_changes_nothing(host: StoppedBookie) -> None:
    host.boot(1)
    before = host.tree()
    result = host.format("--confirm", ID, BKCTL_READ_ONLY="1")
    assert (result.exit_code, "read-only mode" in result.stderr) == (3, True)
    refused = host.format("--yes")
    assert (refused.exit_code, f"--yes is not enough: use --confirm {ID}" in refused.stderr) == (3, True)
    assert host.format("--confirm", "bookie-2").exit_code == 3
    assert host.tree() == before
