"""What long commands draw on a real terminal: no old frame stays, whatever happens in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.processes import Cluster, kill_and_wait, stdout_on_terminal
from tests.tmux import PROMPT, Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

LEDGERS = 60
FRAME = re.compile(r"elapsed \d|━")
COMMAND = re.compile(r"([A-Z]+ )? *bkctl ")
"""A line with a command is not wrapped, so that it can be pasted."""

WIDTHS = [40, *(pytest.param(columns, marks=pytest.mark.battery) for columns in (80, 160))]


@pytest.fixture(scope="module")
def damaged(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A cluster with a dead bookie; a recovery at a low rate takes long, so that it is met in the middle."""
    cluster = Cluster(str(tmp_path_factory.mktemp("live")), f"zk+hierarchical://{zookeeper.connect_string}/live")
    cluster.up(3)
    written = cluster.run(
        *("ledger", "write-test", "--ledgers", str(LEDGERS), "--entries", "20", "--entry-size", "4096"),
        *("-E", "2", "-W", "2", "-A", "2"),
    )
    assert written.exit_code == 0, written.stderr
    dead = cluster.bookies[0].id
    cluster.stop_bookie(dead)
    yield cluster, dead
    cluster.stop()


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """For a test that kills it."""
    server = asyncio.run(EmbeddedZooKeeper.start(str(tmp_path / "zookeeper")))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def start_on_own(own_zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    """Starts a cluster of so many bookies on that ZooKeeper."""
    cluster = Cluster(str(tmp_path / "cluster"), f"zk+hierarchical://{own_zookeeper.connect_string}/ledgers")

    def start(bookie_count: int) -> Cluster:
        cluster.up(bookie_count)
        return cluster

    yield start
    cluster.stop()


def recover(terminal: Terminal, dead: str, *options: str) -> None:
    """Begin a recovery, and wait until its progress is drawn."""
    terminal.bkctl("recover", dead, "--yes", "--copy-rate", "2KiB", *options)
    terminal.wait_for("elapsed 0:0")


def with_a_dead_bookie(start: Callable[[int], Cluster]) -> tuple[Cluster, str]:
    """Four bookies with 40 ledgers, of which one was killed; and its id."""
    cluster = start(4)
    written = cluster.run("ledger", "write-test", "--ledgers", "40", "--entries", "20", "--entry-size", "4096")
    assert written.exit_code == 0, written.stderr
    dead = cluster.bookies[0]
    kill_and_wait(dead.pid)
    return cluster, dead.id


def times(screen: str) -> list[str]:
    return re.findall(r"elapsed \d:\d\d", screen)


def shows_another_time(before: list[str], screen: str) -> bool:
    return times(screen) not in (before, [])


def is_cut_to(rows: int, screen: str) -> bool:
    return ("more lines" in screen) == (rows == 10) and "critical: " in screen


def require_one_frame(text: str) -> None:
    assert text.count("recovering") == 1, text
    assert len(re.findall(r"elapsed \d", text)) == 1, text


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_bar_survives_resizes_and_leaves_nothing_after_ctrl_c(damaged: tuple[Cluster, str], columns: int) -> None:
    cluster, dead = damaged
    with Terminal(columns, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        recover(terminal, dead)
        assert not terminal.is_cursor_shown()
        for width in (columns // 2 + 10, 132, columns, 47):
            before = times(terminal.screen())
            terminal.resize(width)
            terminal.wait(partial(shows_another_time, before))
            require_one_frame(terminal.text())
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert not FRAME.search(text), text
        assert "error: interrupted" in text
        resume = re.search(r"to continue:\s(bkctl recover .*)", text)
        assert resume is not None, text
        assert re.fullmatch(rf"bkctl recover {dead} --yes --resume /\S+\.sqlite", resume[1].rstrip()), text
        assert terminal.is_cursor_shown()


def test_a_verification_shows_bytes_and_keeps_what_it_found_when_it_is_stopped(
    damaged: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, _ = damaged
    found = tmp_path / "found.jsonl"
    with Terminal(160, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        terminal.bkctl("ledger", "verify", "--all", "--copy-rate", "256KiB", "--out", str(found))
        progress = re.compile(r"about \d:\d\d left; .* of about \d.* with findings")
        screen = terminal.wait(lambda seen: progress.search(seen) and "waits for the copy rate" in seen)
        assert re.search(r"B/s, \d+ ledgers? with findings; oldest: ledger \d+, for ", screen), screen
        terminal.press("C-c")
        text = re.sub(r"\s+", " ", terminal.wait_for_prompt())
    assert not FRAME.search(text), text
    stopped = re.search(r"stopped before the end: (\d+) ledgers? verified \(.* read\), (\d+) with findings; (.*)", text)
    assert stopped is not None, text
    verified, bad = int(stopped[1]), int(stopped[2])
    assert 0 < bad <= verified < LEDGERS, text
    assert stopped[3].startswith(f"{found} has the bad copies found so far; to see them: bkctl ledger verify "), text
    assert "error: interrupted" in text
    end = json.loads(found.read_text().splitlines()[-1])
    assert end["kind"] == "LedgerFindingsEnd", "copies that were not read are not bad"


@pytest.mark.parametrize("columns", WIDTHS[::2])
def test_a_suspended_command_leaves_the_shell_a_clean_terminal(damaged: tuple[Cluster, str], columns: int) -> None:
    cluster, dead = damaged
    with Terminal(columns, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        recover(terminal, dead)
        for _ in range(2):
            terminal.press("C-z")
            terminal.wait_for("Stopped")
            text = terminal.wait_for_prompt()
            assert not FRAME.search(text), text
            assert terminal.is_cursor_shown()
            terminal.enter("fg")
            terminal.wait(FRAME.search)
            require_one_frame(terminal.text())
            assert not terminal.is_cursor_shown()
        terminal.press("C-z")
        terminal.wait_for_prompt()
        terminal.enter("bg")
        terminal.enter("kill -INT %1; wait; echo over")
        text = terminal.wait_for("\nover\n")
        assert not FRAME.search(text), "a job in the background draws nothing"


@pytest.mark.parametrize("columns", WIDTHS[::2])
def test_log_lines_and_warnings_go_above_the_bar(damaged: tuple[Cluster, str], columns: int) -> None:
    cluster, dead = damaged
    with Terminal(columns, 50, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        recover(terminal, dead, "--debug")
        lines_before = terminal.text().count(" DEBUG ")
        terminal.wait(lambda _: terminal.text().count(" DEBUG ") > lines_before)
        assert len(re.findall(r"elapsed \d", terminal.text())) <= 1, terminal.text()
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert not FRAME.search(text), text
        for warning in ("warning: stopped before", "warning: to continue:", "error: interrupted"):
            assert f"\n{warning}" in text, "each message has a line of its own"
        for line in re.findall(r".* DEBUG .*", text.replace("^C", "")):  # the echo of the key
            assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} DEBUG ", line), line


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "words",
    [
        "status",
        "audit",
        "bookie list",
        "bookie info",
        "cluster info",
        "autorecovery status",
        "autorecovery pending",
        "ledger list --limit 5",
        "ledger explain 0",
        "ledger verify 0 1 2",
        "cookie list",
        "metadata doctor",
        "recover {dead} --dry-run",
        "decommission {dead} --dry-run",
    ],
)
def test_no_word_of_a_result_is_broken(damaged: tuple[Cluster, str], words: str, columns: int) -> None:
    cluster, dead = damaged
    variables = {"BKCTL_METADATA_URI": cluster.metadata_uri, "COLUMNS": str(columns)}
    lines = stdout_on_terminal(*words.format(dead=dead).split(), **variables).splitlines()
    assert lines
    for line in lines:
        is_whole = max(map(len, line.split()), default=0) > columns - 2 or COMMAND.match(line)
        assert len(line.rstrip()) <= columns or is_whole, line


@pytest.mark.parametrize("columns", WIDTHS)
def test_an_audit_ends_with_its_result_alone(damaged: tuple[Cluster, str], columns: int) -> None:
    cluster, _ = damaged
    variables = {"BKCTL_METADATA_URI": cluster.metadata_uri, "BKCTL_ZOOKEEPER_SCAN_OPERATIONS_PER_S_MAX": "10"}
    with Terminal(columns, 200, **variables) as terminal:
        terminal.bkctl("audit")
        terminal.wait(re.compile("elapsed 0:0[1-9]").search)
        assert terminal.text().count("auditing") == 1
        text = terminal.wait_for_prompt()
        assert "auditing" not in text
        assert not FRAME.search(text), text


def test_a_lost_zookeeper_is_shown_below_the_bar(
    start_on_own: Callable[[int], Cluster], own_zookeeper: EmbeddedZooKeeper
) -> None:
    cluster, dead_id = with_a_dead_bookie(start_on_own)
    with Terminal(80, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        recover(terminal, dead_id)
        kill_and_wait(own_zookeeper.pid)
        seen = terminal.wait_for("waiting for ZooKeeper")
        assert seen.count("recovering") == 1, seen
        assert "connection refused" in seen
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert "waiting for ZooKeeper" not in text
        assert not FRAME.search(text), text


def test_a_zookeeper_that_stands_still_is_shown_before_its_connection_is_given_up(
    start_on_own: Callable[[int], Cluster], own_zookeeper: EmbeddedZooKeeper
) -> None:
    """No request waits for it: the ledgers wait for the copy rate."""
    cluster, dead_id = with_a_dead_bookie(start_on_own)
    with Terminal(80, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        recover(terminal, dead_id)
        os.kill(own_zookeeper.pid, signal.SIGSTOP)
        try:
            seen = terminal.wait_for("the server does not respond")
            assert (seen.count("recovering"), seen.count("waiting for ZooKeeper")) == (1, 1), seen
        finally:
            os.kill(own_zookeeper.pid, signal.SIGCONT)
        terminal.wait(lambda seen: "waiting for ZooKeeper" not in seen and "recovering" in seen)
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert not FRAME.search(text), text


async def open_ledger(metadata_uri: str, entries: int) -> int:
    """A ledger whose writer has ended without closing it."""
    async with await LedgerClient.connect(metadata_uri) as client:
        writer = await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        for _ in range(entries):
            await writer.append(b"an entry")
        return writer.ledger_id


def test_a_close_says_what_it_waits_for_and_how_it_ends(damaged: tuple[Cluster, str]) -> None:
    cluster, _ = damaged
    ledger_id = asyncio.run(open_ledger(cluster.metadata_uri, 42))
    with Terminal(100, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        terminal.bkctl("ledger", "close", str(ledger_id), "--yes")
        terminal.wait(re.compile(r"waits until \d\d:\d\d:\d\d UTC for the writer of ledger \d+ to close it").search)
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert not FRAME.search(text), text
        assert f"warning: ledger {ledger_id} left as before: writers can go on\n" in text
        assert f"warning: to continue: bkctl ledger close {ledger_id} --yes\nerror: interrupted" in text
        terminal.bkctl("ledger", "close", str(ledger_id), "--yes", "--grace", "1s")
        text = terminal.wait_for_prompt()
        assert f"\nok: ledger {ledger_id} closed at entry 41; 42 entries\n" in text, text
        terminal.bkctl("ledger", "close", str(ledger_id), "--yes")
        text = terminal.wait_for_prompt()
        assert f"\nok: ledger {ledger_id} was closed already at entry 41; 42 entries\n" in text, text


def test_a_decommission_says_until_when_it_waits_for_the_stop(start_on_own: Callable[[int], Cluster]) -> None:
    cluster = start_on_own(4)
    bookie_id = cluster.bookies[0].id
    with Terminal(100, 40, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        terminal.bkctl("decommission", bookie_id, "--yes")
        seen = terminal.wait(re.compile(rf"waits until \d\d:\d\d:\d\d UTC at most for {bookie_id} to leave").search)
        assert f"stop it now, on its host: bkctl bookie stop {bookie_id}" in seen, seen
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert not FRAME.search(text), text
        assert "warning: stopped before the end: there were no ledgers to move; the cookie is deleted last\n" in text
        assert f"warning: bookie {bookie_id} is drained, but was not stopped\n" in text
        assert f"bkctl bookie undrain {bookie_id} makes it writable" in " ".join(text.split())
        assert f"to continue: bkctl decommission {bookie_id} --yes" in text
        terminal.bkctl("decommission", bookie_id, "--yes", "--wait", "2s")
        terminal.wait_for("waiting for the stop")
        text = terminal.wait_for_prompt()
        assert f"bookie {bookie_id} is drained, but was not stopped within 2 s" in " ".join(text.split()), text
        assert not FRAME.search(text), text


def test_a_shorter_look_leaves_nothing_of_the_longer_one(
    start_on_own: Callable[[int], Cluster], own_zookeeper: EmbeddedZooKeeper
) -> None:
    with Terminal(80, 40, BKCTL_METADATA_URI=start_on_own(4).metadata_uri) as terminal:
        terminal.bkctl("status", "--watch", "--interval", "300ms")
        terminal.wait_for("answers in")
        kill_and_wait(own_zookeeper.pid)
        seen = terminal.wait_for("does not answer")
        below = [line.rstrip() for line in seen.partition("does not answer")[2].splitlines()]
        assert below[:3] == ["", "", "Findings"], "the line above the findings is blank"
        terminal.press("C-c")
        terminal.wait_for_prompt()


@pytest.mark.parametrize("columns", WIDTHS)
def test_each_look_of_a_watch_replaces_the_one_before(damaged: tuple[Cluster, str], columns: int) -> None:
    cluster, dead = damaged
    with Terminal(columns, 40, BKCTL_METADATA_URI=cluster.metadata_uri) as terminal:
        terminal.bkctl("status", "--watch", "--interval", "300ms")
        terminal.wait_for("answers in")
        for width, rows in ((60, 40), (200, 40), (80, 10), (columns, 40)):
            terminal.resize(width, rows)
            terminal.wait(partial(is_cut_to, rows))
            assert terminal.text().count("answers in") <= 1, terminal.text()
            assert len(re.findall(r"^critical: ", terminal.text(), re.MULTILINE)) == 1, terminal.text()
        terminal.press("C-z")
        terminal.wait_for("Stopped")
        assert "answers in" not in terminal.wait_for_prompt()
        terminal.enter("fg")
        terminal.wait_for("answers in")
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert text.count("answers in") == 1, text
        assert f"{dead}" in text, "the last look stays, whole"
        assert text.rstrip().splitlines()[-2].endswith("error: interrupted")
        assert text.rstrip().endswith(PROMPT.strip())
        assert terminal.is_cursor_shown()
