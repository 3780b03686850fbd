"""``bkctl ledger read`` and ``verify --range`` of ledgers whose end is unknown or damaged, and of one bookie."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from tests.commands.test_cluster_walk import HEADER_AND_DIGEST_BYTES, succeed
from tests.commands.test_recover_ledger import forget
from tests.processes import BkctlResult, BookieProcess, Cluster, run_bkctl_on_terminal
from tests.runtime.client.fakes import answers_so_far

pytestmark = pytest.mark.cluster

TEN = [str(entry_id) for entry_id in range(10)]


def write(
    cluster: Cluster,
    sizes: tuple[int, int, int],
    *,
    is_closed: bool = False,
    password: bytes = b"",
    payload: bytes | None = None,
) -> str:
    """A ledger of ten entries; its writer has died unless it is closed. ``payload``: of each."""

    async def do() -> int:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            writer = await client.create(
                ensemble_size=sizes[0], write_quorum_size=sizes[1], ack_quorum_size=sizes[2], password=password
            )
            for entry_id in range(10):
                await writer.append(b"payload of entry %d." % entry_id if payload is None else payload)
            if is_closed:
                await writer.close()
            await answers_so_far(client, *writer.metadata.last_segment.ensemble)  # an ack quorum may be less than all
            return writer.ledger_id

    return str(asyncio.run(do()))


def ids_of(result: BkctlResult) -> list[str]:
    return [item["entry_id"] for item in result.json()["items"]]


def require(result: BkctlResult, exit_code: int, *sentences: str) -> None:
    assert (result.exit_code, "Traceback" in result.stderr) == (exit_code, False), result
    assert all(sentence in result.stderr for sentence in sentences), result.stderr


def spoil(bookie: BookieProcess, entry_id: int, offset: int) -> None:
    """Change a byte of a stopped bookie's record. ``offset``: from the start of the payload."""
    text = b"payload of entry %d." % entry_id
    for log in Path(bookie.directory, "ledgers", "current").glob("*.log"):
        data = bytearray(log.read_bytes())
        if text in data:
            data[data.index(text) + offset] ^= 0x55
            log.write_bytes(data)


def stop_all_but(cluster: Cluster, bookie_id: str) -> None:
    for bookie in cluster.bookies:
        if bookie.id != bookie_id:
            cluster.stop_bookie(bookie.id)


def test_named_entries_of_a_ledger_that_cannot_be_closed(cluster: Cluster) -> None:
    ledger_id, secret = write(cluster, (3, 3, 2)), write(cluster, (3, 3, 3), password=b"secret")
    late = cluster.run("ledger", "read", ledger_id, "0-9")
    assert ids_of(late) == TEN
    require(late, 0, "is open, and its last confirmed entry is 8; entries that are not confirmed may never become part")
    confirmed = cluster.run("ledger", "read", ledger_id, "0-8")
    assert (confirmed.exit_code, confirmed.stderr) == (0, "")
    require(cluster.run("ledger", "read", ledger_id, "10"), 4, "has no entry 10: no bookie that should store it has it")
    require(cluster.run("ledger", "read", ledger_id, "9-"), 4, "has no entry 9: it is open, and its last confirmed")

    healthy = succeed(cluster, "ledger", "verify", ledger_id, "--range", "0-12").json()
    assert (healthy["entries"], healthy["copies_good"], healthy["items"][0]["last_entry_id"]) == (10, 30, "9")
    require(cluster.run("ledger", "verify", ledger_id, "--range", "10-12"), 4, "no entry of ledger")

    stop_all_but(cluster, cluster.bookies[0].id)

    found = cluster.run("ledger", "read", ledger_id, "0-9")
    assert ids_of(found) == TEN
    require(found, 0, f"ledger {ledger_id}: it is open, and its end is unknown (the last confirmed entry is unknown: ")
    for span in ("10", "0-10"):
        doubtful = cluster.run("ledger", "read", ledger_id, span)
        require(doubtful, 7, f"so it is not certain whether ledger {ledger_id} has entry 10: it is open, and its end")
        assert doubtful.stdout == ""
    for arguments in ((), ("3-",)):
        require(cluster.run("ledger", "read", ledger_id, *arguments), 7, "specify FIRST-LAST to read these entries")
    require(cluster.run("ledger", "read", ledger_id, f"0-{2**63}"), 2, "is too large")
    verified = cluster.run("ledger", "verify", ledger_id, "--range", "0-9")
    totals = verified.json()
    assert (verified.exit_code, totals["entries"]) == (10, 10)
    assert (totals["copies_good"], totals["copies_unreachable"], totals["copies_missing"]) == (10, 20, 0)
    assert "it is open, and its end is unknown" in totals["items"][0]["problem"]
    beyond = cluster.run("ledger", "verify", ledger_id, "--range", "8-12").json()["items"][0]
    assert (beyond["entries"], beyond["unreadable"], beyond["lost"]) == (2, "10-12", None)
    assert cluster.run("ledger", "show", ledger_id).json()["state"] == "open"
    assert ids_of(cluster.run("ledger", "read", secret, "0-9")) == TEN


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("offset", [0, -HEADER_AND_DIGEST_BYTES])
def test_named_entries_of_a_ledger_with_a_damaged_last_entry(
    start_cluster: Callable[[int], Cluster], offset: int, is_closed: bool
) -> None:
    cluster = start_cluster(1)
    ledger_id = write(cluster, (1, 1, 1), is_closed=is_closed)
    cluster.down()
    spoil(cluster.bookies[0], 9, offset)
    cluster.up(1)

    assert ids_of(cluster.run("ledger", "read", ledger_id, "0-8")) == TEN[:9]
    assert cluster.run("ledger", "read", ledger_id, "0-9").exit_code in {1, 7, 12}
    verified = cluster.run("ledger", "verify", ledger_id, "--range", "0-8").json()
    assert (verified["entries"], verified["copies_good"]) == (9, 9)
    one = cluster.run("ledger", "read", ledger_id, "--from-bookie", cluster.bookies[0].id)
    assert ids_of(one) == TEN[:9]
    require(one, 9, f"bookie {cluster.bookies[0].id}: ", "entry 9")


def test_the_copies_of_one_bookie(cluster: Cluster) -> None:
    ledger_id, other = write(cluster, (3, 2, 2), is_closed=True, password=b"secret"), write(cluster, (1, 1, 1))
    shown = cluster.run("ledger", "show", ledger_id).json()
    first, second, _ = shown["ensembles"][0]["ensemble"]
    expected = [each for each in TEN if int(each) % 3 in {0, 2}]

    def read(*arguments: str, bookie_id: str = first) -> BkctlResult:
        return cluster.run("ledger", "read", *arguments, "--from-bookie", bookie_id)

    whole = read(ledger_id)
    assert (whole.exit_code, ids_of(whole)) == (0, expected)
    assert f"bookie {first}: it does not have entry 1, 4, 7 of ledger {ledger_id}" in whole.stderr
    assert "warning" not in whole.stderr
    part = read(ledger_id, "0-3")
    assert ids_of(part) == ["0", "2", "3"]
    require(part, 9, f"warning: bookie {first}: it does not have entry 1 of ledger {ledger_id}")
    raw = read(ledger_id, "8-9", "--format", "raw")
    assert (raw.exit_code, raw.stdout) == (0, "payload of entry 8.payload of entry 9.")
    assert ids_of(read(ledger_id, "8-", "--limit", "1")) == ["8"]
    require(read(ledger_id, "1"), 4, f"error: bookie {first}: it does not have entry 1 of ledger {ledger_id}")
    require(read(ledger_id, "11-"), 4, "it has no entry from 11 on: its last one is 9")
    endless = read(ledger_id, f"9-{2**63 - 1}")
    assert ids_of(endless) == ["9"]
    require(endless, 9, f"it does not have entry 10-{2**63 - 1}")

    [holder] = cluster.run("ledger", "show", other).json()["ensembles"][0]["ensemble"]
    stranger = next(bookie.id for bookie in cluster.bookies if bookie.id != holder)
    for arguments in ((), ("0",), ("0-3",)):
        require(read(other, *arguments, bookie_id=stranger), 4, f"it does not have ledger {other}")
    assert ids_of(read(other, bookie_id=holder)) == TEN
    require(read(ledger_id, bookie_id="b1/3181"), 2, "'b1/3181' is not a valid bookie id")
    require(read(ledger_id, bookie_id="unknown:1"), 7, "bookie unknown:1: no connection")
    cluster.stop_bookie(second)
    require(read(ledger_id, bookie_id=second), 7, f"bookie {second}: no connection")
    succeed(cluster, "ledger", "delete", ledger_id, "--confirm", ledger_id)
    require(read(ledger_id), 4, "its metadata does not exist", "bring the metadata back with bkctl ledger import")


def test_entries_beyond_the_end_and_damage_on_one_bookie(cluster: Cluster) -> None:
    ledger_id = write(cluster, (3, 3, 2))
    lagging, damaged, returned = cluster.bookies
    cluster.down()
    forget(lagging, int(ledger_id), 8, 9)
    forget(damaged, int(ledger_id), 8, 9)
    spoil(damaged, 4, -HEADER_AND_DIGEST_BYTES)
    spoil(damaged, 6, 0)
    cluster.start_bookie(lagging.id)
    cluster.start_bookie(damaged.id)
    closed = cluster.run("ledger", "close", ledger_id, "--yes", "--grace", "0s")
    assert closed.exit_code == 0, closed.stderr
    cluster.start_bookie(returned.id)
    assert cluster.run("ledger", "show", ledger_id).json()["last_entry_id"] == "7"

    def read(bookie: BookieProcess, *arguments: str) -> BkctlResult:
        return cluster.run("ledger", "read", ledger_id, *arguments, "--from-bookie", bookie.id)

    for arguments in ((), ("0-9",)):
        found = read(returned, *arguments)
        assert (found.exit_code, ids_of(found)) == (0, TEN), "also beyond the end of the closed ledger"
    require(cluster.run("ledger", "read", ledger_id, "0-9"), 4, "has no entry 9: its last entry is 7")
    corrupt, unreadable = read(damaged, "6"), read(damaged, "4")
    require(corrupt, 12, f"bookie {damaged.id}: its copy of entry 6 of ledger {ledger_id} is damaged: ")
    require(unreadable, 7, f"bookie {damaged.id}: it cannot read entry 4 of ledger {ledger_id} from its disk")
    rest = read(damaged)
    assert ids_of(rest) == ["0", "1", "2", "3", "5", "7"]
    require(rest, 9, "warning: ", "entry 6 of ledger", "entry 4 of ledger")
    assert (corrupt.stdout, unreadable.stdout) == ("", "")


def test_what_is_left_of_a_ledger_is_read_by_the_command_that_is_printed(cluster: Cluster) -> None:
    ledger_id = write(cluster, (2, 1, 1), is_closed=True)
    first, second = cluster.run("ledger", "show", ledger_id).json()["ensembles"][0]["ensemble"]
    even, odd = TEN[::2], TEN[1::2]
    cluster.stop_bookie(second)
    require(cluster.run("ledger", "read", ledger_id), 7, "entry 1: ", f"bookie {second}: no connection")
    steps = cluster.run("ledger", "explain", ledger_id).json()["next_steps"]
    match = re.search("bkctl (ledger read [^;]*) -o jsonl > [^;]*.jsonl saves what is left", "\n".join(steps))
    assert match is not None, steps
    words = shlex.split(match[1])

    left = cluster.run(*words)
    assert ids_of(left) == even
    silent = f"warning: ledger {ledger_id}: entry {', '.join(odd)} cannot be read, and may exist: bookie {second}: no"
    require(left, 9, silent)
    assert "has entry" not in left.stderr, "silence proves nothing"
    rows = cluster.run(*words, "-o", "table").stdout.splitlines()[2:]
    assert [row.split()[0] for row in rows] == even
    raw = cluster.run(*words, "0-3", "--format", "raw")
    assert (raw.exit_code, raw.stdout) == (9, "payload of entry 0.payload of entry 2.")
    assert cluster.run(*words, "2").exit_code == 0
    alone = cluster.run(*words, "3")
    require(alone, 7, f"error: ledger {ledger_id}: entry 3 cannot be read, and may exist: bookie {second}: no connect")
    assert alone.stdout == ""
    for more in (["--from-bookie", first], ["--follow"]):
        require(cluster.run(*words, *more), 2, "--keep-going")

    forget(cluster.bookie(second), int(ledger_id), 1, 3)
    spoil(cluster.bookie(second), 5, 0)
    cluster.start_bookie(second)
    damaged = cluster.run(*words)
    assert ids_of(damaged) == ["0", "2", "4", "6", "7", "8", "9"]
    require(damaged, 9, f"ledger {ledger_id}: no bookie that should have it has entry 1, 3", "entry 5 is damaged: ")
    require(cluster.run(*words, "1-1"), 4, f"ledger {ledger_id}: no bookie that should have it has entry 1")
    require(cluster.run(*words, "5"), 12, "entry 5 is damaged")


def test_text_in_a_file_says_that_payloads_are_cut(cluster: Cluster) -> None:
    ledger_id = write(cluster, (1, 1, 1), is_closed=True, payload=1024 * b"x")
    [holder] = cluster.run("ledger", "show", ledger_id).json()["ensembles"][0]["ensemble"]
    warning = "payloads of more than 100 characters are cut; -o jsonl writes them whole"
    for form in ("table", "wide"):
        text = cluster.run("ledger", "read", ledger_id, "--from-bookie", holder, "-o", form)
        assert (text.exit_code, text.stdout.count("...\n"), text.stderr.count(warning)) == (0, 10, 1), text
    few = cluster.run("ledger", "read", ledger_id, "--limit", "3", "-o", "table")
    assert (few.stdout.count("xxx...\n"), few.stderr.count(warning)) == (3, 1)
    for form in ("json", "jsonl", "csv", "yaml"):
        whole = cluster.run("ledger", "read", ledger_id, "-o", form)
        assert (whole.stdout.count(1024 * "x"), "cut" in whole.stderr) == (10, False), whole
    short = write(cluster, (1, 1, 1), is_closed=True)
    assert "cut" not in cluster.run("ledger", "read", short, "-o", "table").stderr
    code, screen = run_bkctl_on_terminal("ledger", "read", ledger_id, BKCTL_METADATA_URI=cluster.metadata_uri)
    assert (code, "..." in screen, "are cut" in screen) == (0, True, False)


def test_what_is_left_of_an_open_ledger_without_a_known_end(cluster: Cluster) -> None:
    ledger_id = write(cluster, (3, 1, 1))
    [*ensemble] = cluster.run("ledger", "show", ledger_id).json()["ensembles"][0]["ensemble"]
    cluster.stop_bookie(ensemble[2])
    require(cluster.run("ledger", "read", ledger_id, "--keep-going"), 7, "specify FIRST-LAST to read these entries")
    left = cluster.run("ledger", "read", ledger_id, "0-10", "--keep-going")
    assert ids_of(left) == ["0", "1", "3", "4", "6", "7", "9"]
    require(left, 9, "its end is unknown", "entry 2, 5, 8 cannot be read, and may exist", "has entry 10")
    endless = cluster.run("ledger", "read", ledger_id, f"0-{2**63 - 1}", "--keep-going")
    require(endless, 2, "at most 100000 entries")
    assert endless.stdout == ""
