"""``bkctl help PAGE`` and messages on a real terminal: pages in a pager, and no line is broken inside a word."""

from __future__ import annotations

import pytest

from tests.processes import run_bkctl
from tests.tmux import PROMPT, Terminal

PAGE = "start-here"


def lines_of(text: str) -> list[str]:
    """Lines that a command printed, without the one of the prompt."""
    return [line for line in text.splitlines() if PROMPT.strip() not in line]


@pytest.mark.parametrize("pager", ["less", ""])
def test_a_page_is_shown_in_a_pager(pager: str) -> None:
    with Terminal(80, PAGER=pager) as terminal:
        terminal.bkctl("help", PAGE)
        seen = terminal.wait(lambda screen: "start here" in screen and screen.rstrip().endswith(":"))
        assert "Metadata that went backwards" not in seen
        terminal.press("C-c")  # it is not the end of the pager

        def goes_to_the_end(screen: str) -> bool:
            if "deleted." in screen:
                return True
            terminal.press("G")  # again: less drops what is typed while it handles the signal
            return False

        terminal.wait(goes_to_the_end)
        terminal.press("q")
        terminal.wait_for_prompt()


def test_the_pager_of_the_user_is_run_with_its_options() -> None:
    with Terminal(80, PAGER="sed -e 's/^# You/# PAGED: You/'") as terminal:
        terminal.bkctl("help", PAGE)
        assert "# PAGED: You were paged" in terminal.wait_for_prompt()


@pytest.mark.parametrize("pager", ["less '", " ", "no-such-pager"])
def test_a_pager_that_cannot_run_is_left_out(pager: str) -> None:
    with Terminal(80, PAGER=pager) as terminal:
        terminal.bkctl("help", PAGE)
        assert "deleted." in terminal.wait_for_prompt()


def test_without_the_pager_no_line_is_longer_than_the_terminal_is_wide() -> None:
    with Terminal(60, PAGER="false") as terminal:
        terminal.bkctl("help", "--no-pager", PAGE)
        lines = lines_of(terminal.wait_for_prompt())
    assert "All is well again when `bkctl status` exits with 0 and" in lines
    prose = [line for line in lines if not line.startswith("bkctl ")]  # commands are whole
    assert max(map(len, prose)) <= 60


def test_a_short_list_of_pages_ends_the_pager_by_itself() -> None:
    with Terminal(100, rows=200, PAGER="less") as terminal:
        terminal.bkctl("help")
        assert "When something is wrong" in terminal.wait_for_prompt()


def test_on_a_pipe_a_page_is_as_it_is() -> None:
    page = run_bkctl("help", PAGE, PAGER="false").stdout
    assert "\nRun one command first. It ends within seconds, also if ZooKeeper" in page


def test_the_option_is_refused_for_the_page_of_a_command() -> None:
    result = run_bkctl("help", "status", "--no-pager")
    assert result.exit_code == 2
    assert "No such option: --no-pager" in result.stderr


def test_messages_are_wrapped_at_the_width_of_the_terminal() -> None:
    with Terminal(60) as terminal:
        terminal.bkctl("status", "--metadata-uri", "zk+hierarchical://127.0.0.1:1/ledgers", "--timeout", "1s")
        lines = lines_of(terminal.wait_for_prompt())
    said = " ".join(lines)
    assert "127.0.0.1:1 connection refused" in said
    assert max(len(line) for line in lines if "bkctl -u " not in line) <= 60  # commands are never broken
