"""One result in every form; talk on the other stream; no answer means no."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
import yaml

from bkctl.commands.config import ColorMode, OutputForm, Settings
from bkctl.commands.console import Console
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Lines, Row, Table
from bkctl.runtime.errors import RefusedError
from bkctl.storage.severity import Severity
from bkctl.storage.words import size
from tests.until import wait_until

THINGS = Table(
    "ThingList",
    Column("id", "ID"),
    Column("bytes", "BYTES", size, is_right=True),
    Column("note", "NOTE", is_wide=True),
    name="id",
)
ROWS: Sequence[Row] = (
    {"id": "10", "bytes": 2048, "note": "a,b"},
    {"id": "9", "bytes": None, "note": None},
    {"id": "11", "bytes": 5, "note": "[bold]x"},
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Screen:
    """A console and what it printed."""

    def __init__(
        self,
        settings: Settings,
        *,
        is_terminal: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.out = Terminal() if is_terminal else io.StringIO()
        self.err = Terminal() if is_terminal else io.StringIO()
        self.console = Console(settings, environment or {}, self.out, self.err, io.StringIO())

    def rows(self, rows: Sequence[Row] = ROWS, *, is_truncated: bool = False) -> str:
        self.console.rows(THINGS, rows, is_truncated=is_truncated)
        return self.out.getvalue()

    def record(self) -> str:
        body = {"id": "7", "bytes": 1024, "in": {"x": None}}
        self.console.record("Thing", body, name="id", show={"bytes": size}, details={"items": list(ROWS)})
        return self.out.getvalue()


def form(output: OutputForm, **others: object) -> Settings:
    return Settings(output=output, **others)  # type: ignore[arg-type]


def test_the_same_text_on_a_terminal_and_on_a_pipe() -> None:
    no_colors = {"NO_COLOR": "1", "COLUMNS": "80"}
    assert Screen(Settings(), is_terminal=True, environment=no_colors).rows() == Screen(Settings()).rows()
    assert Screen(Settings()).record() == "id     7\nbytes  1.0 KiB\nin.x   -\n"
    assert Screen(form(OutputForm.CSV), is_terminal=True).console.form is OutputForm.CSV


def test_a_pipe_has_no_color_and_all_columns_and_rows() -> None:
    columns = [Column(f"c{number}", f"C{number}", priority=1) for number in range(12)]
    table = Table("Things", Column("severity", "SEVERITY"), *columns, name="severity")
    row: Row = {"severity": "critical"} | {column.key: "x" * 20 for column in columns}
    screen = Screen(Settings(), environment={"COLUMNS": "80", "TERM": "xterm-256color"})
    screen.console.rows(table, [row] * 1100)
    screen.console.table(table, [row] * 1100)
    lines = screen.out.getvalue().splitlines()
    assert len([line for line in lines if line.split() == ["critical", *["x" * 20] * 12]]) == 2200
    assert "\x1b" not in screen.out.getvalue()
    assert screen.err.getvalue() == ""


def test_listing_as_table() -> None:
    text = Screen(form(OutputForm.TABLE)).rows()
    assert text.splitlines() == ["ID     BYTES", "────────────", "10   2.0 KiB", "9          -", "11       5 B"]


def test_listing_as_wide_table_shows_all_columns_as_they_are() -> None:
    text = Screen(form(OutputForm.WIDE)).rows()
    assert "NOTE" in text
    assert "[bold]x" in text


def test_a_table_is_as_wide_as_it_must_be() -> None:
    long_id = "x" * 500
    assert long_id in Screen(form(OutputForm.TABLE)).rows([{"id": long_id, "bytes": 1}])


def test_listing_as_json_and_yaml() -> None:
    expected = {"apiVersion": "bkctl/v1", "kind": "ThingList", "items": list(ROWS), "truncated": False}
    assert json.loads(Screen(form(OutputForm.JSON)).rows()) == expected
    assert yaml.safe_load(Screen(form(OutputForm.YAML)).rows()) == expected
    assert json.loads(Screen(form(OutputForm.JSON)).rows([])) == expected | {"items": []}


def test_listing_as_lines() -> None:
    assert [json.loads(line) for line in Screen(form(OutputForm.JSONL)).rows().splitlines()] == list(ROWS)
    assert Screen(form(OutputForm.CSV)).rows().splitlines() == ["id,bytes,note", '10,2048,"a,b"', "9,,", "11,5,[bold]x"]
    assert Screen(form(OutputForm.NAME)).rows() == "10\n9\n11\n"
    assert Screen(form(OutputForm.NAME)).rows([]) == ""


def test_no_headers() -> None:
    assert Screen(form(OutputForm.CSV, has_headers=False)).rows().splitlines()[0] == '10,2048,"a,b"'
    assert "ID" not in Screen(form(OutputForm.TABLE, has_headers=False)).rows()


def test_limit_shortens_and_says_so() -> None:
    result = json.loads(Screen(form(OutputForm.JSON, limit=2)).rows())
    assert (len(result["items"]), result["truncated"]) == (2, True)
    result = json.loads(Screen(form(OutputForm.JSON, limit=3)).rows())
    assert (len(result["items"]), result["truncated"]) == (3, False)
    assert Screen(form(OutputForm.TABLE, limit=1)).rows().splitlines()[-1] == "... more than 1"
    assert json.loads(Screen(form(OutputForm.JSON)).rows(is_truncated=True))["truncated"]


@pytest.mark.parametrize("name", ["--5", "-", "\u00b2", "\u0665", "5-5", ""])
def test_names_that_look_like_numbers_are_sorted_as_names(name: str) -> None:
    """A bookie may be called --5."""
    rows: list[Row] = [{"id": name}, {"id": "7"}, {"id": "-10"}]
    assert Screen(form(OutputForm.NAME, sort="id")).rows(rows).split("\n") == ["-10", "7", name, ""]


def test_sort_is_by_number_where_there_are_numbers_and_unknown_comes_last() -> None:
    assert Screen(form(OutputForm.NAME, sort="id")).rows() == "9\n10\n11\n"
    assert Screen(form(OutputForm.NAME, sort="bytes")).rows() == "11\n10\n9\n"
    result = json.loads(Screen(form(OutputForm.JSON, sort="id", limit=1)).rows())
    assert (result["items"][0]["id"], result["truncated"]) == ("9", True)
    with pytest.raises(
        InvalidArgumentError, match="cannot sort by 'size': this listing has the fields id, bytes, note"
    ):
        Screen(form(OutputForm.NAME, sort="size")).rows()


def test_sort_takes_headings_in_any_case() -> None:
    for named in ("BYTES", "Bytes"):
        assert Screen(form(OutputForm.NAME, sort=named)).rows() == "11\n10\n9\n"
        assert Screen(form(OutputForm.NAME, sort=f"{named}:desc")).rows() == "10\n11\n9\n"


def test_lines_are_written_as_rows_come() -> None:
    screen = Screen(form(OutputForm.NAME))
    with screen.console.listing(THINGS) as listing:
        listing.add(ROWS[0])
        assert screen.out.getvalue() == "10\n"


def test_a_failed_listing_is_not_printed_as_if_it_were_whole() -> None:
    screen = Screen(form(OutputForm.JSON))

    def fail_half_way() -> None:
        with screen.console.listing(THINGS) as listing:
            listing.add(ROWS[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert screen.out.getvalue() == ""


def test_record_in_every_form() -> None:
    body = {"apiVersion": "bkctl/v1", "kind": "Thing", "id": "7", "bytes": 1024, "in": {"x": None}, "items": list(ROWS)}
    assert json.loads(Screen(form(OutputForm.JSON)).record()) == body
    assert json.loads(Screen(form(OutputForm.JSONL)).record()) == body
    assert yaml.safe_load(Screen(form(OutputForm.YAML)).record()) == body
    assert Screen(form(OutputForm.TABLE)).record() == "id     7\nbytes  1.0 KiB\nin.x   -\n"
    assert Screen(form(OutputForm.CSV)).record() == "id,bytes,in.x\n7,1024,\n"
    assert Screen(form(OutputForm.NAME)).record() == "7\n"


@pytest.mark.parametrize("output", OutputForm)
def test_names_that_are_not_unicode_are_spelled(output: OutputForm) -> None:
    """A file may have any bytes for a name."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8")
    console = Console(form(output), {}, out, io.StringIO(), io.StringIO())
    row = {"id": "f\udcff", "list": ["f\udcff"], "in": {"x": "f\udcff"}}
    console.rows(Table("ThingList", Column("id", "ID"), name="id"), [row])
    console.record("Thing", row, name="id")
    out.flush()
    text = raw.getvalue().decode()
    is_json = output in {OutputForm.JSON, OutputForm.JSONL}
    assert text.count("f\\\\udcff" if is_json else "f\\udcff") >= 2
    if output is OutputForm.JSONL:
        assert [json.loads(line)["in"] for line in text.splitlines()] == [{"x": "f\\udcff"}] * 2


@pytest.mark.parametrize("output", OutputForm)
def test_no_output_has_characters_that_a_terminal_executes_or_that_reorder_a_line(output: OutputForm) -> None:
    hostile = "ü\x1b]0;owned\x07\x9b2J\u202egnp.exe\u2066\U000e0041"
    screen = Screen(form(output))
    row = {"id": hostile, "list": [hostile], "in": {"x": hostile}}
    screen.console.rows(Table("ThingList", Column("id", "ID"), name="id"), [row])
    screen.console.record("Thing", row, name="id")
    text = screen.out.getvalue()
    assert text.count("gnp.exe") >= 2
    assert text.replace("\n", "").isprintable()
    if output is OutputForm.JSONL:
        assert [json.loads(line)["in"] for line in text.splitlines()] == [{"x": hostile}] * 2
    if output is OutputForm.YAML:
        assert yaml.safe_load(text[text.rindex("apiVersion") :])["in"] == {"x": hostile}


def test_csv_of_a_record_that_has_lines_is_its_lines() -> None:
    for rows, lines in ((ROWS, ["id,bytes,note", '10,2048,"a,b"', "9,,", "11,5,[bold]x"]), ((), ["id,bytes,note"])):
        for has_headers in (True, False):
            screen = Screen(form(OutputForm.CSV, has_headers=has_headers))
            screen.console.record("Thing", {"sum": 5}, name="sum", lines=Lines(THINGS, rows))
            assert screen.out.getvalue().splitlines() == lines[not has_headers :]
    for is_cut, lines in (
        (True, ["id,bytes,note", '10,2048,"a,b"']),
        (False, ["id,bytes,note", '10,2048,"a,b"', "9,,", "11,5,[bold]x"]),
    ):
        screen = Screen(form(OutputForm.CSV, limit=1))
        screen.console.record("Thing", {"sum": 5}, name="sum", lines=Lines(THINGS, ROWS, is_cut=is_cut))
        assert screen.out.getvalue().splitlines() == lines
    screen = Screen(form(OutputForm.NAME))
    screen.console.record("Thing", {"sum": 5}, name="sum", lines=Lines(THINGS, ROWS))
    assert screen.out.getvalue() == "5\n"


def test_lists_inside_a_record_end_at_the_limit() -> None:
    lists = {"long": ROWS, "short": ROWS[:1]}
    for limit, long_count, is_truncated in ((None, 3, False), (3, 3, False), (2, 2, True), (1, 1, True), (0, 0, True)):
        details = Screen(form(OutputForm.JSON, limit=limit)).console.cut(lists)
        assert details == {"long": ROWS[:long_count], "short": ROWS[: min(long_count, 1)], "truncated": is_truncated}
    assert Screen(form(OutputForm.JSON)).console.cut(lists, is_truncated=True)["truncated"]


def test_a_table_below_a_record_is_for_people_and_ends_where_the_screen_does() -> None:
    rows = [{"id": str(number), "bytes": number} for number in range(2060)]
    for settings, shown in ((form(OutputForm.TABLE), 50), (form(OutputForm.TABLE, limit=2), 2)):
        screen = Screen(settings, is_terminal=True)
        screen.console.table(THINGS.titled("Things"), rows)
        lines = screen.out.getvalue().splitlines()
        assert lines[:2] == ["", "Things"]
        assert len(lines) == 4 + shown + 1
        assert lines[-1] == f"... and {2060 - shown:,} more of 2,060" + (" (-o json has all)" if shown == 50 else "")
    for output in (OutputForm.JSON, OutputForm.CSV):
        screen = Screen(form(output))
        screen.console.table(THINGS.titled("Things"), rows)
        assert screen.out.getvalue() == ""


@pytest.mark.parametrize("output", [OutputForm.TABLE, OutputForm.WIDE])
def test_what_others_wrote_moves_no_cursor(output: OutputForm) -> None:
    """Keys and values of a record, cells of tables, the lines below a long one, and talk."""
    evil, clean = "k\x1b[2J\n\x9b1m\u202e\udcff", "k\\x1b[2J\\n\\x9b1m\\u202e\\udcff"
    screen = Screen(form(output))
    screen.console.record("Thing", {"custom": {evil: evil}, "list": [evil]})
    screen.console.table(THINGS.titled("Two\nlines"), [{"id": evil}])
    screen.console.rows(THINGS, [{"id": "1"}] * 1000 + [{"id": evil}])
    for talk in (screen.console.say, screen.console.warn, screen.console.error):
        talk(f"of {evil}")
    shown = screen.out.getvalue()
    assert f"custom.{clean}  {clean}\n" in shown
    assert "\nTwo\nlines\n" in shown
    assert shown.count(clean) == 5
    told = screen.err.getvalue()
    assert told.count(clean.replace("\\n", "\n")) == 3
    for printed in (shown, told):
        assert "".join(filter(str.isprintable, printed)) == printed.replace("\n", "")


def test_talk_goes_to_stderr_and_quiet_silences_only_what_is_not_a_warning() -> None:
    for is_quiet in (False, True):
        screen = Screen(Settings(is_quiet=is_quiet))
        screen.console.say("said")
        screen.console.warn("warned")
        screen.console.error("failed")
        assert screen.out.getvalue() == ""
        assert screen.err.getvalue() == "said\n" * (not is_quiet) + "warning: warned\nerror: failed\n"


def test_a_severity_looks_the_same_in_messages_and_tables() -> None:
    screen = Screen(form(OutputForm.TABLE, color=ColorMode.ALWAYS, is_quiet=True))
    for severity in Severity:
        screen.console.report(severity, "x")
    warning, critical = "\x1b[33mwarning", "\x1b[1;31mcritical"
    assert screen.err.getvalue() == f"{warning}:\x1b[0m x\n{critical}:\x1b[0m x\n", "information is silenced"
    severities = Table("Findings", Column("severity", "SEVERITY"))
    screen.console.rows(severities, [{"severity": severity.value} for severity in Severity])
    for shown in ("\x1b[36minformation\x1b[0m", f"{warning}\x1b[0m", f"{critical}\x1b[0m"):
        assert shown in screen.out.getvalue()


@pytest.mark.parametrize(
    ("mode", "is_terminal", "environment", "is_colored"),
    [
        (ColorMode.AUTO, True, {}, True),
        (ColorMode.AUTO, False, {}, False),
        (ColorMode.AUTO, True, {"NO_COLOR": "1"}, False),
        (ColorMode.AUTO, True, {"TERM": "dumb"}, False),
        (ColorMode.AUTO, False, {"FORCE_COLOR": "1"}, True),
        (ColorMode.NEVER, True, {}, False),
        (ColorMode.ALWAYS, False, {"NO_COLOR": "1"}, True),
    ],
)
def test_color(mode: ColorMode, is_terminal: bool, environment: dict[str, str], is_colored: bool) -> None:
    screen = Screen(Settings(color=mode), is_terminal=is_terminal, environment=environment)
    screen.console.error("x")
    assert ("\x1b[" in screen.err.getvalue()) is is_colored


class Keyboard:
    """A console whose questions go to a real terminal, and the keys of that terminal."""

    def __init__(self) -> None:
        self.keys, terminal = pty.openpty()
        self.answers = os.fdopen(terminal, encoding="utf-8")
        self.err = io.StringIO()
        self.console = Console(Settings(), {}, io.StringIO(), self.err, self.answers)

    def type(self, keys: str) -> None:
        os.write(self.keys, keys.encode())

    def close(self) -> None:
        self.answers.close()
        os.close(self.keys)


@pytest.fixture
def keyboard() -> Iterator[Keyboard]:
    keyboard = Keyboard()
    try:
        yield keyboard
    finally:
        keyboard.close()


@pytest.mark.parametrize("answer", ["y\n", "yes\n", " Y \n"])
async def test_yes_goes_ahead(keyboard: Keyboard, answer: str) -> None:
    keyboard.type(answer)
    await keyboard.console.confirm("Go?")
    assert keyboard.err.getvalue() == "Go? [y/N] "


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", "yess\n"])
async def test_anything_else_and_the_end_of_input_mean_no(keyboard: Keyboard, answer: str) -> None:
    keyboard.type(answer)
    with pytest.raises(RefusedError, match="nothing was changed: the answer was no"):
        await keyboard.console.confirm("Go?")
    assert keyboard.err.getvalue() == "Go? [y/N] " + "\n" * (answer == "\x04")


async def test_a_question_does_not_stop_the_event_loop_and_is_cancelled_at_once(keyboard: Keyboard) -> None:
    keyboard.type("ye")  # a line that is not finished answers nothing
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(keyboard.console.confirm("Go?"), 0.1)
    assert keyboard.err.getvalue() == "Go? [y/N] \n"
    keyboard.type("s\n")
    await keyboard.console.confirm("Really?")


async def test_no_terminal_means_no_unless_yes_was_given() -> None:
    with pytest.raises(RefusedError, match="use --yes"):
        await Screen(Settings()).console.confirm("Go?")
    screen = Screen(Settings(assume_yes=True))
    await screen.console.confirm("Go?")
    assert screen.err.getvalue() == ""


def test_talk_that_nobody_hears_stops_no_work() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    err = os.fdopen(writer, "w", encoding="utf-8")
    console = Console(Settings(), {}, io.StringIO(), err, io.StringIO())
    console.say("bookie stopped")
    console.warn("it took long")
    with pytest.raises(BrokenPipeError):  # the stream was really broken
        err.close()


@pytest.mark.parametrize(
    ("settings", "is_terminal", "is_shown"),
    [
        (Settings(), True, True),
        (Settings(), False, False),
        (Settings(has_progress=False), True, False),
        (Settings(is_quiet=True), True, False),
    ],
)
def test_progress_is_for_terminals(settings: Settings, is_terminal: bool, is_shown: bool) -> None:
    screen = Screen(settings, is_terminal=is_terminal)
    with screen.console.progress("working") as progress:
        progress.update(1, 2, "at 7")
        if is_shown:
            wait_until(lambda: "at 7" in screen.err.getvalue())
        progress.update(2, 2)
    assert ("working" in screen.err.getvalue()) is is_shown
    assert screen.out.getvalue() == ""


@pytest.mark.parametrize(("total", "count"), [(None, " 7 "), (9, " 7/9 ")])
def test_progress_shows_no_total_that_nobody_knows(total: int | None, count: str) -> None:
    screen = Screen(Settings(color=ColorMode.NEVER), is_terminal=True)
    with screen.console.progress("working") as progress:
        progress.update(7, total)
        wait_until(lambda: count in re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", " ", screen.err.getvalue()))


def test_nothing_of_a_bar_is_coloured_or_stays() -> None:
    screen = Screen(Settings(color=ColorMode.ALWAYS), is_terminal=True)
    with screen.console.progress("working") as progress:
        progress.update(7, 9)
        wait_until(lambda: "7/9" in screen.err.getvalue())
    assert not re.search(r"\x1b\[[0-9;]*m", screen.err.getvalue())
    assert screen.err.getvalue().endswith("\x1b[J\r\x1b[?25h"), "the bar is erased, the cursor is shown"


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    screen = Screen(Settings(), is_terminal=True, environment={"TERM": "dumb"})
    with screen.console.progress("working") as progress:
        assert not progress.is_shown
    assert screen.console.prints_progress_lines
    assert screen.err.getvalue() == ""


@pytest.mark.parametrize("output", ["json", "jsonl", "yaml", "csv", "table"])
def test_commands_in_texts_are_completed_and_data_is_not(output: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    settings = Settings(output=OutputForm(output))
    console = Console(settings, {}, out, err, io.StringIO(), lambda text: text.replace("bkctl", "bkctl -u URI"))
    findings = [{"finding": "see bkctl audit", "label": "bkctl bookie sanity", "command": "bkctl audit"}]
    table = Table("Findings", Column("finding", "FINDING"), Column("label", "LABEL"), Column("command", "COMMAND"))
    body = {"label": "bkctl bookie sanity", "custom_metadata": {"application": "bkctl bookie sanity"}}
    console.record("Status", body, details={"findings": findings}, lines=Lines(table, findings))
    console.table(table, findings)
    console.rows(table, findings)
    console.verdict(Severity.WARNING, "see bkctl audit", "then bkctl status")
    console.error("see bkctl audit")
    printed = out.getvalue() + err.getvalue()
    assert "see bkctl -u URI audit" in printed
    assert "then bkctl -u URI status" in printed
    assert "error: see bkctl -u URI audit" in printed
    assert "bkctl -u URI bookie sanity" not in printed
    assert "bkctl audit" not in printed
