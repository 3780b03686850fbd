"""Commands that change cookies: what they refuse, what they leave behind, two at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bkctl.runtime.metadata.bookies.cookies import decode_cookie
from bkctl.runtime.metadata.store import MetadataStore
from tests.commands.cookie.conftest import ID, BookieHost, answer
from tests.processes import TerminalSession
from tests.runtime.golden_metadata import java_nodes

NO_BOOKIE_IDS = ("a/b", "a,b", "READONLY", "")


def cookie_file(host: BookieHost, *more: str) -> str:
    path = host.directory / "state-cookie"
    path.unlink(missing_ok=True)
    result = host.cookie("generate", "--out", str(path), *more)
    assert result.exit_code == 0, result.stderr
    return str(path)


def changing(host: BookieHost) -> dict[str, list[str]]:
    """Every command that changes the cookie of the bookie, as it would be given."""
    file = cookie_file(host)
    return {
        "delete": ["delete", ID],
        "create": ["create", ID, "--from-file", file],
        "create --from-config": ["create", ID, "--from-config", *host.arguments],
        "update": ["update", ID, "--from-file", file],
        "update --from-config": ["update", ID, "--from-config", *host.arguments],
        "migrate away": ["migrate", "--from", ID, "--to", "other", *host.arguments],
        "migrate hither": ["migrate", "--from", "other", "--to", ID, *host.arguments],
        "expand": ["expand", *host.arguments],
    }


def without_marks(host: BookieHost) -> dict[str, bytes]:
    """All files but those that a running bookie writes when it makes a checkpoint."""
    return {path: data for path, data in host.tree().items() if not path.endswith(("lastMark", "bkctl.mark"))}


def subject(name: str) -> str:
    """What has to be typed."""
    return "other" if name == "migrate hither" else ID


def test_nothing_changes_while_the_bookie_is_registered(host: BookieHost) -> None:
    commands = changing(host)
    with host.running():
        before = without_marks(host)
        for name, words in commands.items():
            result = host.operator.run("cookie", *words, *answer(words[0], subject(name)))
            assert result.exit_code in {3, 5}, f"{name}: {result}"
            if not name.startswith("create"):  # it has a cookie, which is reason enough
                assert f"bookie {ID} is registered" in result.stderr, name
        assert without_marks(host) == before
        host.plant(None)
        for name in ("create", "create --from-config"):
            result = host.operator.run("cookie", *commands[name], "--yes")
            assert result.exit_code == 3
            assert f"bookie {ID} is registered" in result.stderr


def test_nothing_changes_while_ledgers_name_the_bookie(host: BookieHost) -> None:
    host.boot(4, 5)
    host.name_in_ledgers(4, 5)
    commands = changing(host)
    before = host.tree()
    for name in ("delete", "update", "migrate away"):
        result = host.operator.run("cookie", *commands[name], *answer(commands[name][0], subject(name)))
        assert result.exit_code == 3, f"{name}: {result}"
    host.name_directories("j", "l1 l2 l3")
    result = host.cookie("expand", "--yes")
    assert result.exit_code == 3
    assert f"bkctl decommission {ID}" in result.stderr
    assert host.tree() == before
    stored = host.stored()
    host.plant(None)
    result = host.operator.run("cookie", *commands["create"], "--yes")
    assert result.exit_code == 3
    assert "2 ledgers reference bookie bookie-1 (4, 5)" in result.stderr
    assert host.stored() is None
    host.plant(stored)


@pytest.mark.parametrize("verb", ["delete", "update"])
def test_metadata_that_cannot_be_read_may_name_the_bookie(host: BookieHost, verb: str) -> None:
    host.boot()
    words = changing(host)[verb]

    async def spoil(store: MetadataStore) -> None:
        await store.create(f"{host.root}/00/0000/L0009", b"junk", make_parents=True)

    host.operator.on_store(spoil)
    result = host.operator.run("cookie", *words, "--confirm", ID)
    assert result.exit_code == 3
    assert "1 ledger (9) cannot be read and may reference" in result.stderr


def test_delete_keeps_what_was_there(host: BookieHost) -> None:
    host.boot()
    stored = host.stored()
    assert host.operator.run("cookie", "delete", ID, BKCTL_YES="1").exit_code == 3, "a yes is not enough"
    refused = host.operator.run("cookie", "delete", ID, "--yes")
    assert (refused.exit_code, f"--yes is not enough: use --confirm {ID}" in refused.stderr) == (3, True)
    planned = host.operator.succeed("cookie", "delete", ID, "--dry-run")
    assert planned.json()["subject"] == ID
    assert host.stored() == stored
    host.operator.succeed("cookie", "delete", ID, "--confirm", ID)
    assert host.stored() is None
    [trash] = (host.operator.state / "trash").iterdir()
    line = json.loads(trash.read_text())
    assert (line["path"], line["version"]) == (f"{host.root}/cookies/{ID}", 0)
    events = [json.loads(text) for text in (host.operator.state / "audit.jsonl").read_text().splitlines()]
    assert [(event["command"], event["event"]) for event in events[-2:]] == [
        ("cookie delete", "begin"),
        ("cookie delete", "end"),
    ]
    assert host.operator.run("cookie", "delete", ID, "--confirm", ID).exit_code == 4


def test_the_id_is_typed(host: BookieHost) -> None:
    host.boot()
    with TerminalSession("cookie", "delete", ID, **host.operator.environment) as session:
        session.wait_for(f"Type {ID} to continue")
        session.type("bookie-2\n")
        assert session.exit_code() == 3
    assert host.stored() is not None
    with TerminalSession("cookie", "delete", ID, **host.operator.environment) as session:
        session.wait_for(f"Type {ID} to continue")
        session.type(f"{ID}\n")
        assert session.exit_code() == 0
    assert host.stored() is None


@pytest.mark.parametrize("name", ["delete", "update", "create", "migrate away", "expand"])
def test_a_ledger_that_references_the_bookie_after_the_plan(host: BookieHost, name: str) -> None:
    """The plan may be read for hours. A ledger that is written by an old client meanwhile must not lose its bookie."""
    host.boot()
    words = changing(host)[name]
    if name == "create":
        host.plant(None)
    if name == "expand":
        host.name_directories("j", "l1 l2 l3")
        (host.directory / "l3").mkdir()
        words = changing(host)[name]
    before, stored = host.tree(), host.stored()
    with TerminalSession("cookie", *words, **host.operator.environment) as session:
        session.wait_for("to continue" if words[0] in {"delete", "update", "migrate"} else "continue?")
        host.name_in_ledgers(4)
        session.type(f"{ID if words[0] in {'delete', 'update', 'migrate'} else 'y'}\n")
        assert session.exit_code() == 3, session.screen
    assert "nothing was changed: 1 ledger references bookie bookie-1 (4)" in session.screen
    host.drop_ledgers(4)
    assert host.stored() == stored
    assert {path for path in without_marks(host) if path not in before} <= {"node00", "node00/0000"}


def test_update_shows_the_difference_and_checks_the_version(host: BookieHost) -> None:
    host.boot()
    host.name_directories("j", "m1 m2")
    file = cookie_file(host)
    plan = str(host.directory / "state-plan")
    shown = host.operator.succeed("cookie", "update", ID, "--from-file", file, "--plan-out", plan).json()
    [item] = shown["items"]
    assert {row["field"] for row in item["fields"]} == {"ledgerDirs", "indexDirs"}
    assert item["fields"][0]["new"] == list(host.ledgers)
    stored = host.stored()
    assert stored is not None

    async def touch(store: MetadataStore) -> None:
        await store.set(f"{host.root}/cookies/{ID}", stored, 0)

    host.operator.on_store(touch)
    late = host.operator.run("cookie", "update", ID, "--from-file", file, "--apply", plan, "--confirm", ID)
    assert late.exit_code == 5
    assert host.stored() == stored
    host.operator.succeed("cookie", "update", ID, "--from-file", file, "--confirm", ID)
    assert host.stored() == Path(file).read_bytes()


def test_two_at_once(host: BookieHost) -> None:
    host.boot()
    processes = [host.operator.begin("cookie", "delete", ID, "--confirm", ID) for _ in range(2)]
    codes = sorted(process.wait(60) for process in processes)
    assert codes[0] == 0
    assert codes[1] in {4, 5}
    assert host.stored() is None


@pytest.mark.parametrize("bookie_id", NO_BOOKIE_IDS)
def test_ids_that_hang_java_are_never_written(host: BookieHost, bookie_id: str) -> None:
    file = cookie_file(host)
    for words in (
        ["create", bookie_id, "--from-file", file],
        ["migrate", "--from", ID, "--to", bookie_id, *host.arguments],
    ):
        assert host.operator.run("cookie", *words, *answer(words[0], ID)).exit_code == 2
    assert host.operator.run("cookie", "show", bookie_id).exit_code in {2, 4}


@pytest.mark.parametrize("more", [["--instance-id", "another"], ["--instance-id", ""]])
def test_a_cookie_that_no_bookie_could_start_with_is_not_stored(host: BookieHost, more: list[str]) -> None:
    file = cookie_file(host, *more)
    assert host.operator.run("cookie", "create", ID, "--from-file", file, "--yes").exit_code == 3
    own = cookie_file(host)
    assert host.operator.run("cookie", "create", "another-id", "--from-file", own, "--yes").exit_code == 3
    Path(own).write_bytes(b"junk")
    assert host.operator.run("cookie", "create", ID, "--from-file", own, "--yes").exit_code == 2
    assert host.stored() is None


def test_generate_create_start(host: BookieHost) -> None:
    """A cookie made before the first start is that of an emptied disk: the directories must carry it too."""
    file = cookie_file(host)
    again = host.cookie("generate", "--out", file)
    assert (again.exit_code, again.stderr) == (5, f"error: {file} already exists: specify a new file\n")
    host.operator.succeed("cookie", "create", ID, "--from-file", file, "--yes")
    assert host.stored() == Path(file).read_bytes() == host.cookie("generate").stdout.encode()
    assert host.operator.run("cookie", "create", ID, "--from-file", file, "--yes").exit_code == 5
    found = host.verify()
    assert found["cause"] == "missing disk"
    host.operator.succeed("cookie", "delete", ID, "--confirm", ID)
    host.boot(1)
    assert host.stored() == Path(file).read_bytes()


def test_cookies_of_java(host: BookieHost) -> None:
    """Listed, shown and generated in the bytes that Java wrote, whatever the layout."""
    nodes = {path.rpartition("/")[2]: data for path, data in java_nodes("/cookies/")}
    for bookie_id, data in nodes.items():
        host.plant(data, bookie_id)
    host.plant(b"2\n", "old:1")
    rows = {row["bookie_id"]: row for row in host.operator.succeed("cookie", "list", "-o", "json").json()["items"]}
    assert set(rows) == {*nodes, "old:1"}
    assert "too old" in rows["old:1"]["problem"]
    assert host.operator.run("cookie", "show", "old:1").exit_code == 12
    assert host.operator.succeed("cookie", "show", "old:1", "--raw").stdout == "2\n"
    for bookie_id, data in nodes.items():
        cookie = decode_cookie(data)
        assert rows[bookie_id]["problem"] == "it belongs to another instance of the cluster"
        assert host.operator.succeed("cookie", "show", bookie_id, "--raw").stdout.encode() == data
        words = [word for path in cookie.journal_directories for word in ("--journal-dir", path)]
        words += [word for path in cookie.ledger_directories for word in ("--ledger-dir", path)]
        words += ["--instance-id", cookie.instance_id or ""]
        generated = host.operator.succeed("cookie", "generate", bookie_id, *words).stdout.encode()
        assert generated.partition(b"\n")[2] == data.partition(b"\n")[2]
        assert generated.startswith(b"5\n")


def test_expand_an_empty_bookie(host: BookieHost) -> None:
    host.boot()
    host.name_directories("j", "l1 l2 l3")
    for option in ("--yes", "--dry-run"):
        missing = host.cookie("expand", option)
        assert missing.exit_code == 3, "the new directory is to be there: a missing disk is none"
        assert "l3 is missing: mount its disk" in missing.stderr
    (host.directory / "l3").mkdir()
    found = host.verify()
    assert str(found["command"]).startswith("bkctl cookie expand")
    result = host.run_printed(found["command"], "--yes")
    assert result.exit_code == 0, result.stderr
    assert host.verify()["is_healthy"]
    for verb, kind in ((["expand"], "CookieExpanded"), (["update", ID, "--from-config"], "CookieUpdated")):
        again = host.cookie(*verb)
        assert (again.exit_code, "nothing to do" in again.stderr) == (0, True)
        found = again.json()
        assert (found["kind"], found["version"], found["fields"]) == (kind, result.json()["version"], [])
        plan = host.cookie(*verb, "--dry-run").json()
        assert (plan["kind"], plan["items"]) == ("Plan", [])
    host.boot(4, 5, 6)
    host.name_directories("j", "l1 l2 l3 l4")
    (host.directory / "l4").mkdir()
    before = host.tree()
    refused = host.cookie("expand", "--yes")
    assert refused.exit_code == 3
    assert "has ledgers" in refused.stderr
    assert f"bkctl decommission {ID}" in refused.stderr
    assert host.tree() == before


def test_a_version_file_that_cannot_be_written(host: BookieHost) -> None:
    host.boot(4)
    (host.directory / "l2").rename(host.directory / "moved")
    host.name_directories("j", "l1 moved")
    obstacle = host.version("moved").with_name("VERSION.tmp")
    obstacle.mkdir()
    result = host.cookie("update", ID, "--from-config", "--confirm", ID)
    assert result.exit_code == 1
    assert str(obstacle) in result.stderr
    assert host.verify()["cause"] == "moved directory"
    os.rmdir(obstacle)
    assert host.cookie("update", ID, "--from-config", "--confirm", ID).exit_code == 0
    host.boot(4)


def test_a_relative_directory_is_the_same_as_its_absolute_path(host: BookieHost) -> None:
    relative = os.path.relpath(host.directory / "l1")
    assert relative.startswith("..")
    host.ledgers = (relative,)
    host.boot(4)
    assert host.verify()["is_healthy"]
    host.ledgers = (os.path.abspath(relative),)
    assert host.verify()["is_healthy"]
    host.boot(4)
