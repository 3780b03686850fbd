"""``bkctl ledger list`` as a process, over metadata in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import csv
import io
import json

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bkctl.runtime.ledger.changes import new_ledger, replace_bookies, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.commands.ledger.conftest import BOOKIES, CLOSED, OPEN, LedgerShell, labelled
from tests.processes import run_bkctl, run_bkctl_on_terminal

GARBAGE = b"BookieMetadataFormatVersion\t3\n\xff\xff"
AGES_MS = {2: 1_600_000_000_000, 5: 1_700_000_000_000}  # 2020-09-13, 2023-11-14


@pytest.fixture
async def full(shell: LedgerShell) -> LedgerShell:
    one_wide = new_ledger(("b1:3181", "b2:3181", "b3:3181"), 1, 1, DigestType.CRC32C, b"")
    planted: dict[int, LedgerMetadata | bytes] = {
        1: OPEN,
        2: msgspec.structs.replace(CLOSED, ctime_ms=AGES_MS[2]),
        3: to_in_recovery(OPEN),
        4: GARBAGE,
        5: labelled(
            msgspec.structs.replace(to_closed(OPEN, 0, 10**9), ctime_ms=AGES_MS[5]), application="pulsar", x="1"
        ),
        6: to_closed(one_wide, 0, 5),  # entry 0 alone: on b1 and nowhere else
        7: replace_bookies(replace_bookies(OPEN, 4, {0: "b4:3181"}), 8, {0: "b5:3181"}),
        8: msgspec.structs.replace(CLOSED, ctime_ms=-1),
        2**62: CLOSED,
    }
    for ledger_id, content in planted.items():
        await shell.plant(ledger_id, content)
    return shell


async def ids(shell: LedgerShell, *arguments: str) -> list[int]:
    rows = (await shell.succeed("list", *arguments))["items"]
    named = await shell.run("list", "-o", "name", *arguments)
    counted = await shell.succeed("list", "--count", *arguments)
    found = [int(row["ledger_id"]) for row in rows]
    assert list(map(int, named.stdout.split())) == found
    assert counted["count"] == len(found)
    return found


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("", [1, 2, 3, 4, 5, 6, 7, 8, 2**62]),
        ("--state open", [1, 7]),
        ("--state in-recovery", [3]),
        ("--state closed --bookie b2:3181", [2, 5, 8, 2**62]),
        ("--bookie b1:3181", [1, 2, 3, 5, 6, 7, 8, 2**62]),
        ("--bookie b3:3181", [1, 2, 3, 7, 8, 2**62]),  # the one entry of 5 is not there, the open ends count
        ("--bookie b4:3181", [7]),
        ("--bookie b4:3181 --bookie b3:3181", [1, 2, 3, 7, 8, 2**62]),
        ("--bookie b5:3181", [7]),
        ("--size-gt 1000", [5]),
        ("--size-gt 999", [2, 5, 8, 2**62]),
        ("--size-lt 6", [6]),
        ("--created-before 2021-01-01", [2]),
        ("--created-before 2023-11-14T22:13:20.001Z", [2, 5]),
        ("--created-before 2023-11-14T22:13:20Z", [2]),
        ("--created-after 1d", [1, 3, 6, 7, 8, 2**62]),
        ("--created-after 2021-01-01 --created-before 1h", [5]),
        ("--label application=pulsar", [5]),
        ("--label application=pulsar --label x", [5]),
        ("--label application=other", []),
        ("--label application=", []),
    ],
)
async def test_filters(full: LedgerShell, filters: str, expected: list[int]) -> None:
    assert await ids(full, *filters.split()) == expected


async def test_not_in_a_file(full: LedgerShell) -> None:
    known = full.directory / "known"
    known.write_text(
        f"# known to the brokers\n1\n0x2  # in hexadecimal\n\n{2**62}\n00000000-0000-0000-0000-000000000003\n"
    )
    assert await ids(full, "--not-in", str(known)) == [4, 5, 6, 7, 8]
    known.write_text((await full.run("list", "-o", "csv", "--state", "closed")).stdout)
    assert await ids(full, "--not-in", str(known)) == [1, 3, 4, 7]
    for content, reason in [
        (f"1\n{2**63 - 1}\n", "line 2: ledger id '9223372036854775807' is too large"),
        ("-1\n", "line 1: '-1' is not a ledger id"),
    ]:
        known.write_text(content)
        refused = await full.run("list", "--not-in", str(known))
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert reason in refused.stderr
    assert (await full.run("list", "--not-in", str(full.directory / "absent"))).exit_code == 4


async def test_what_cannot_be_read_is_a_row_with_the_reason(full: LedgerShell) -> None:
    items = (await full.succeed("list"))["items"]
    [row] = [item for item in items if item["state"] == "unreadable"]
    assert (row["ledger_id"], row["ensemble"]) == ("4", None)
    assert "ledger metadata" in row["problem"]
    filtered = await full.run("list", "--state", "open")
    assert filtered.exit_code == 0
    assert "omitted because their metadata cannot be read: 1 ledger\n" in filtered.stderr
    assert (await full.run("list")).stderr == ""


async def test_every_form_has_the_same_ledgers(full: LedgerShell) -> None:
    expected = [str(each) for each in (1, 2, 3, 4, 5, 6, 7, 8, 2**62)]
    lines = (await full.run("list", "-o", "jsonl")).stdout.splitlines()
    assert [json.loads(line)["ledger_id"] for line in lines] == expected
    rows = list(csv.DictReader(io.StringIO((await full.run("list", "-o", "csv")).stdout)))
    assert [row["ledger_id"] for row in rows] == expected
    assert rows[0]["ensemble"] == " ".join(BOOKIES)
    table = (await full.run("list", "-o", "wide")).stdout.splitlines()
    assert [line.split()[0] for line in table[2:]] == expected
    page = await full.succeed("list", "--limit", "3")
    assert ([item["ledger_id"] for item in page["items"]], page["truncated"]) == (expected[:3], True)
    whole = await full.succeed("list", "--limit", "9")
    assert (len(whole["items"]), whole["truncated"]) == (9, False)
    sizes = await full.succeed("list", "--sort", "length_bytes", "--limit", "2")
    assert [item["ledger_id"] for item in sizes["items"]] == ["6", "2"]
    named = await full.run("list", "--sort", "length_bytes", "--limit", "2", "-o", "name")
    assert named.stdout.split() == ["6", "2"]
    largest = await full.succeed("list", "--sort", "length_bytes:desc", "--limit", "2")
    assert [item["ledger_id"] for item in largest["items"]] == ["5", "2"]
    for form in ("name", "jsonl", "table"):
        backwards = (await full.run("list", "--sort", "ledger_id:desc", "-o", form, "--no-headers")).stdout
        assert [text for text in expected if text in backwards] == expected
        assert backwards.index(expected[-1]) < backwards.index(expected[0])
    up = (await full.run("list", "--sort", "length_bytes:asc", "-o", "name")).stdout.split()
    down = (await full.run("list", "--sort", "length_bytes:desc", "-o", "name")).stdout.split()
    assert (up, down) == (
        ["6", "2", "8", expected[-1], "5", "1", "3", "4", "7"],
        ["5", "2", "8", expected[-1], "6", "1", "3", "4", "7"],
    )


async def test_wrong_words_are_usage(shell: LedgerShell) -> None:
    for arguments in (
        ["--created-before", "yesterday"],
        ["--size-gt", "big"],
        ["--label", "=x"],
        ["--state", "lost"],
        ["--sort", "nothing"],
        ["--bookie", ""],
        ["--bookie", "../x"],
    ):
        result = await shell.run("list", *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments


async def test_a_count_takes_no_options_of_a_listing(shell: LedgerShell) -> None:
    for option in (["--sort", "ledger_id"], ["--limit", "1"]):
        for command in (["ledger", "list"], ["autorecovery", "pending"]):
            result = await asyncio.to_thread(run_bkctl, *command, "--count", *option, "-u", shell.uri)
            assert (result.exit_code, result.stdout) == (2, ""), command
            assert f"--count lists nothing: omit {option[0]} or --count" in result.stderr


async def test_an_unknown_field_or_direction_names_the_choices(shell: LedgerShell) -> None:
    field = await shell.run("list", "--sort", "size:desc")
    assert "cannot sort by 'size': this listing has the fields ledger_id, state, " in field.stderr
    for sort in ("ledger_id:down", "ledger_id:"):
        direction = await shell.run("list", "--sort", sort)
        assert (direction.exit_code, direction.stdout) == (2, "")
        assert "use ledger_id:asc or ledger_id:desc" in direction.stderr


async def test_an_unknown_bookie_is_not_found(shell: LedgerShell) -> None:
    await shell.plant(1, CLOSED)
    for form in ("json", "csv", "name"):
        unknown = await shell.run("list", "--bookie", "b9:3181", "-o", form)
        assert (unknown.exit_code, unknown.stdout) == (4, "")
        assert (
            "bookie b9:3181 is unknown: it has no cookie, is not registered, and no ledger references it"
            in unknown.stderr
        )
    assert (await shell.run("list", "--bookie", "b9:3181", "--count")).exit_code == 4
    assert await ids(shell, "--bookie", "b1:3181") == [1], "a ledger names it"

    await shell.store.create(shell.paths.cookie("b8:3181"), make_parents=True)
    await shell.store.create(shell.paths.read_only_bookie("b7:3181"), is_ephemeral=True, make_parents=True)
    for known in ("b8:3181", "b7:3181"):
        assert await ids(shell, "--bookie", known) == []
    await shell.plant(2, GARBAGE)
    unknown = await shell.run("list", "--bookie", "b9:3181")
    assert (unknown.exit_code, unknown.stdout) == (4, "")
    assert "and no ledger references it (1 ledger cannot be read); see bkctl bookie list" in unknown.stderr


async def test_a_long_table_goes_on_below_its_first_rows(shell: LedgerShell) -> None:
    for ledger_id in range(1100):
        await shell.plant(ledger_id, CLOSED)
    await shell.plant(2**62, labelled(CLOSED, owner="x"))
    lines = (await shell.run("list", "-o", "table")).stdout.splitlines()
    assert len(lines) == 2 + 1101
    assert len({line.index("closed") for line in lines[2:-1]}) == 1, "one column for all"
    assert lines[-1].startswith(f"{2**62}   closed")
    cut = (await shell.run("list", "-o", "table", "--limit", "1050")).stdout.splitlines()
    assert cut[:-1] == lines[:1052]
    assert cut[-1] == "... more than 1050"


async def test_no_cluster(metadata_uri: str) -> None:
    code, screen = run_bkctl_on_terminal("ledger", "list", BKCTL_METADATA_URI=metadata_uri)
    assert code == 4
    assert "there is no BookKeeper cluster" in screen


async def test_the_forbidden_id_in_the_tree_is_passed_over(shell: LedgerShell) -> None:
    """It makes Java bookies delete everything; here it is nobody's ledger, and no command takes it for one."""
    await shell.plant(1, CLOSED)
    path = f"{shell.ledgers.root}/922/3372/0368/5477/L5807"
    await shell.store.create(path, encode_ledger_metadata(CLOSED), make_parents=True)
    assert await ids(shell) == [1]
    exported = await shell.run("export", "--all")
    assert [json.loads(line)["ledger_id"] for line in exported.stdout.splitlines()] == ["1"]
    for verb in (["show"], ["export"], ["delete", "--unreadable", "--confirm", str(2**63 - 1)]):
        assert (await shell.run(*verb, str(2**63 - 1))).exit_code == 2
    assert await shell.store.exists(path) is not None


async def test_a_number_of_entries_that_cannot_be_is_none(shell: LedgerShell) -> None:
    ends = {1: -1, 2: 2**63 - 2, 3: 2**63 - 1}
    for ledger_id, last_entry_id in ends.items():
        await shell.plant(ledger_id, msgspec.structs.replace(CLOSED, last_entry_id=last_entry_id, length=0))
    entries = {1: 0, 2: 2**63 - 1, 3: None}
    assert {int(row["ledger_id"]): row["entries"] for row in (await shell.succeed("list"))["items"]} == entries
    assert (await shell.succeed("show", "3"))["entries"] is None
    assert (await shell.succeed("show", "3"))["last_entry_id"] == str(2**63 - 1)


async def test_what_this_session_may_not_read_is_a_row_too(shell: LedgerShell, zookeeper: EmbeddedZooKeeper) -> None:
    await shell.plant(1, CLOSED)
    await shell.plant(2, CLOSED)
    client = KazooClient(zookeeper.connect_string)
    await asyncio.to_thread(client.start)
    try:
        await asyncio.to_thread(client.set_acls, shell.path(2), [make_digest_acl("somebody", "else", all=True)])
    finally:
        await asyncio.to_thread(client.stop)
        client.close()
    items = (await shell.succeed("list"))["items"]
    assert [(item["ledger_id"], item["state"]) for item in items] == [("1", "closed"), ("2", "unreadable")]
    exported = await shell.run("export", "--all")
    assert (exported.exit_code, len(exported.stdout.splitlines())) == (9, 1)
    assert "because this session may not read them: 1 ledger" in exported.stderr
    assert (await shell.run("show", "2")).exit_code == 11
    for words in (("export", "2"), ("close", "2", "--yes"), ("delete", "2", "--confirm", "2", "--unreadable")):
        refused = await shell.run(*words)
        assert refused.exit_code == 11, (words, refused)
