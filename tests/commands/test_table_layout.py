"""Tables on narrow terminals: columns are left out by priority, rows become blocks, no word is cut."""

from __future__ import annotations

import importlib
import pkgutil
import shlex
import subprocess
from collections.abc import Iterator, Sequence

import pytest

import bkctl.commands
from bkctl.commands.config import OutputForm, Settings
from bkctl.commands.recovery_rendering import LEAVING_PLAN_TABLE
from bkctl.commands.rendering import Column, Row, Table, clean
from bkctl.commands.table_layout import fit, labeled, wrapped
from tests.commands.test_console import Screen

COLUMNS = (
    Column("id", "ID"),
    Column("size", "SIZE", is_right=True, priority=1),
    Column("note", "NOTE", priority=2),
    Column("mode", "MODE", priority=1),
    Column("extra", "EXTRA", is_wide=True),
)
THINGS = Table("ThingList", *COLUMNS, name="id")
ROW: dict[str, object] = {"id": "127.0.0.1:3181", "size": 12, "note": "all is well", "mode": "rw", "extra": "x" * 10}
ROWS: Sequence[Row] = (ROW, ROW | {"id": "127.0.0.1:3182"})


def titles(width: int | None, *, is_wide: bool = False) -> str:
    columns = COLUMNS if is_wide else COLUMNS[:-1]
    layout = fit(columns, ROWS, width, has_headers=True, is_wide=is_wide)
    assert [*layout.columns, *layout.hidden] != []
    assert {*layout.columns, *layout.hidden} == {*columns}
    return " ".join(column.title for column in layout.columns) + (" in blocks" if layout.is_blocks else "")


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (None, "ID SIZE NOTE MODE"),
        (42, "ID SIZE NOTE MODE"),
        (41, "ID SIZE MODE"),
        (28, "ID SIZE MODE"),
        (27, "ID SIZE"),
        (20, "ID"),
        (14, "ID"),
        (13, "ID SIZE NOTE MODE in blocks"),
    ],
)
def test_columns_with_the_highest_number_go_first_and_the_last_of_equals(width: int | None, expected: str) -> None:
    assert titles(width) == expected


def test_the_problem_of_a_plan_is_the_last_column_to_go() -> None:
    problem = "too few bookies to copy to: 1 needed, 0 found (5 already in the ensemble)"
    ledger = {"action": "move ledger", "ledger_id": "55", "state": "closed", "fragments": 1, "entries": 5}
    ledger |= {"bytes": 5120, "surviving_copies": 5, "needs_fencing": False, "problem": problem}
    rows: Sequence[Row] = ({"action": "make read-only", "bookie_id": "127.0.0.1:24121"}, ledger)
    layout = fit(LEAVING_PLAN_TABLE.columns, rows, 80, has_headers=True, is_wide=False)
    assert [each.title for each in layout.columns][-1] == "PROBLEM"
    assert not layout.is_blocks


def test_columns_that_say_nothing_go_before_others() -> None:
    columns = (
        Column("id", "ID"),
        Column("bad", "BAD", priority=1),
        Column("new", "NEW", priority=2),
        Column("why", "WHY"),
    )
    rows = [{"id": "10", "bad": 0, "new": 5, "why": None}, {"id": "11", "bad": 0, "new": 0, "why": None}]
    found = {
        width: [c.title for c in fit(columns, rows, width, has_headers=True, is_wide=False).columns]
        for width in (19, 15, 10, 2)
    }
    assert found == {19: ["ID", "BAD", "NEW"], 15: ["ID", "BAD", "NEW"], 10: ["ID", "NEW"], 2: ["ID"]}
    rows[0] |= {"bad": 7, "why": "x"}
    layout = fit(columns, rows, 14, has_headers=True, is_wide=False)
    assert [c.title for c in layout.columns] == ["ID", "BAD", "WHY"]
    assert fit(columns, rows, 7, has_headers=True, is_wide=False).is_blocks, "WHY must be shown"


PROBLEMS = (
    Column("id", "ID"),
    Column("problem", "PROBLEM", priority=3),
    Column("size", "SIZE", is_right=True, priority=1),
    Column("note", "NOTE", priority=2),
)
PROBLEM_ROW: dict[str, object] = {
    "id": "127.0.0.1:3181",
    "problem": "the disk of this bookie is full since yesterday",
    "size": 12,
    "note": "all is well",
}


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (88, "ID PROBLEM SIZE NOTE"),
        (62, "ID PROBLEM SIZE NOTE"),
        (61, "ID PROBLEM SIZE"),
        (47, "ID PROBLEM"),
        (41, "ID PROBLEM"),
        (40, "ID"),
    ],
)
def test_what_is_wrong_is_wrapped_and_goes_last(width: int, expected: str) -> None:
    layout = fit(PROBLEMS, [PROBLEM_ROW], width, has_headers=True, is_wide=False)
    assert " ".join(column.title for column in layout.columns) == expected


@pytest.mark.parametrize("output", [OutputForm.TABLE, OutputForm.WIDE])
def test_a_wrapped_cell_goes_on_below_itself(output: OutputForm) -> None:
    shown = screen(62, output)
    table = Table("ThingList", *PROBLEMS, name="id")
    with shown.console.listing(table) as listing:
        for _ in range(1001):  # the last one is printed below the table
            listing.add(PROBLEM_ROW)
    lines = shown.out.getvalue().splitlines()
    row = [
        "127.0.0.1:3181   the disk of this bookie     12   all is well",
        "                 is full since yesterday",
    ]
    assert lines[0] == "ID               PROBLEM                   SIZE   NOTE"
    assert lines[2:4] == row
    assert lines[-2:] == row


def test_a_text_without_room_next_to_its_label_begins_below_it() -> None:
    lines = labeled([("lost_bookie_recovery_delay", "not set, because autorecovery is off"), ("id", "17")], 40)
    assert lines == [
        "lost_bookie_recovery_delay",
        "  not set, because autorecovery is off",
        "id                          17",
    ]
    assert labeled([("bookie in maintenance", "bookie-1.example.com:3181")], 40) == [
        "bookie in maintenance",
        "  bookie-1.example.com:3181",
    ]


def test_wide_leaves_nothing_out() -> None:
    assert titles(55, is_wide=True) == "ID SIZE NOTE MODE EXTRA"
    assert titles(54, is_wide=True) == "ID SIZE NOTE MODE EXTRA in blocks"


def test_texts_are_wrapped_between_words_and_after_commas() -> None:
    lines = labeled([("PATH", "/" + "x" * 40), ("WHY", "one two three four five six seven,eight,nine")], 30)
    assert lines == [
        "PATH  /" + "x" * 40,
        "WHY   one two three four five",
        "      six seven,eight,nine",
    ]
    assert labeled([("A", "word " * 10)], None) == ["A  " + "word " * 10]


def test_a_command_stays_on_one_line_so_that_it_can_be_pasted() -> None:
    command = "bkctl recover failed-bookie b1:3181 b2:3181 --resume /a,b/job.sqlite"
    assert wrapped(f"5 left: start b1:3181; then continue with: {command}", 40) == [
        "5 left: start b1:3181; then continue",
        "with:",
        command,
    ]
    assert wrapped("bkctl bookie undrain b1:3181 makes it writable: nothing else", 40) == [
        "bkctl bookie undrain b1:3181 makes it",
        "writable: nothing else",
    ]
    assert wrapped(f"to continue: {command}", 40) == ["to continue:", command]


def test_a_shell_takes_the_lines_of_a_long_command_as_one_command() -> None:
    words = ["failed-bookie", "b1.example.com:3181", "b2.example.com:3181", "--resume", "/a b/job.sqlite", "-y"]
    command = shlex.join(["printf", "%s|", *words])
    rows = [{"id": "1", "finding": "all is " + "not " * 12 + "well", "command": command}]
    shown = screen(40)
    shown.console.rows(Table("Things", Column("id", "ID"), Column("finding", "FINDING"), Column("command", "DO")), rows)
    lines = shown.out.getvalue().splitlines()
    pasted = lines[lines.index("DO") + 1 :]
    assert len(pasted) > 2
    assert all(len(line) <= 40 for line in pasted)
    assert subprocess.check_output(["sh", "-c", "\n".join(pasted)], text=True) == "".join(f"{word}|" for word in words)


def test_a_command_that_fits_below_its_label_stays_whole() -> None:
    assert labeled([("FINDING", "b1 is down"), ("COMMAND", "bkctl bookie show 127.0.0.1:3181")], 40, ["COMMAND"]) == [
        "FINDING  b1 is down",
        "COMMAND",
        "  bkctl bookie show 127.0.0.1:3181",
    ]


@pytest.mark.parametrize(
    "unbroken",
    [
        "bkctl recover failed-bookie b1:3181 --resume '/a b/job.sqlite' --yes",
        "bkctl --context prod bookie drain b1:3181",
        "bkctl autorecovery maintenance end b1:3181 --accept-risk",
        "bkctl ledger close 5 6 7",
        "/var/lib/a,b/job.sqlite",
        "'/var/lib/a b/job.sqlite'",
    ],
)
def test_messages_break_no_command_and_no_path(unbroken: str) -> None:
    for before in range(1, 40):
        text = f"{'x' * before} and y, then ({unbroken}) or {unbroken} moves them to others, one by one"
        for width in (40, 80):
            lines = wrapped(text, width)
            assert " ".join(lines).count(unbroken) == 2 == sum(line.count(unbroken) for line in lines), lines
            assert all(len(line) <= width or unbroken in line for line in lines), lines


def screen(width: int, output: OutputForm = OutputForm.TABLE, **settings: object) -> Screen:
    settings_of_form = Settings(output=output, **settings)  # type: ignore[arg-type]
    return Screen(settings_of_form, is_terminal=True, environment={"COLUMNS": str(width), "NO_COLOR": "1"})


def test_the_note_goes_to_stderr_and_only_with_a_table() -> None:
    for output in OutputForm:
        narrow = screen(30, output)
        narrow.console.rows(THINGS, ROWS)
        note = "Columns not shown: NOTE (-o\nwide shows all)\n" if output is OutputForm.TABLE else ""
        assert narrow.err.getvalue() == note
        assert "not shown" not in narrow.out.getvalue()
    quiet = screen(30, is_quiet=True)
    quiet.console.rows(THINGS, ROWS)
    assert quiet.err.getvalue() == ""


def test_no_line_is_longer_than_the_terminal() -> None:
    rows = [ROW | {"id": f"bookie-{number}", "note": "word " * 20} for number in range(3)]
    for width in (40, 60, 80, 200):
        for output in (OutputForm.TABLE, OutputForm.WIDE):
            shown = screen(width, output)
            shown.console.rows(THINGS, rows)
            lines = shown.out.getvalue().splitlines()
            assert max(map(len, lines)) <= width
            assert all(f"bookie-{number}" in shown.out.getvalue() for number in range(3))


@pytest.mark.parametrize("width", [13, 28])
def test_long_listings_go_on_as_they_began(width: int) -> None:
    shown = screen(width)
    with shown.console.listing(THINGS) as listing:
        for number in range(1001):
            listing.add(ROW | {"id": f"bookie-{number:07}"})
    whole = screen(width)
    whole.console.rows(THINGS, [ROW | {"id": f"bookie-{n:07}"} for n in (0, 1000)])
    first_and_last = whole.out.getvalue().splitlines()
    lines = shown.out.getvalue().splitlines()
    height = 5 if width == 13 else 1
    assert lines[: 2 if height == 1 else 4] == first_and_last[: 2 if height == 1 else 4]
    assert lines[-height:] == first_and_last[-height:]


def column_tuples() -> Iterator[tuple[str, Sequence[Column]]]:
    """All tables that a module of ``commands`` defines."""
    for module in pkgutil.walk_packages(bkctl.commands.__path__, "bkctl.commands."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, tuple) and value and all(isinstance(each, Column) for each in value):
                yield f"{module.name}.{name}", value


@pytest.mark.parametrize(("name", "columns"), list(column_tuples()))
def test_the_headings_of_every_table_fit_80_characters(name: str, columns: Sequence[Column]) -> None:
    """Cells may still be too wide; then rows become blocks."""
    shown = [column for column in columns if not column.is_wide]
    assert len({column.key for column in columns}) == len(columns), name
    assert any(column.priority == 0 for column in shown), name
    assert all(clean(column.title) == column.title for column in columns)
    assert fit(shown, (), 80, has_headers=True, is_wide=False).hidden != shown
    essential = [column.title for column in shown if column.priority == 0]
    assert len("   ".join(essential)) <= 80, name


def test_fields_of_a_record_are_wrapped() -> None:
    narrow = screen(40)
    narrow.console.record("Thing", {"id": "7", "problem": "the disk of this bookie is full since yesterday"})
    assert narrow.out.getvalue().splitlines() == [
        "id       7",
        "problem  the disk of this bookie is full",
        "         since yesterday",
    ]


def test_prose_after_a_command_is_broken() -> None:
    text = "ledger 5 is at risk: bkctl recover failed-bookie b3:3181 would copy its entries of a segment to others"
    assert wrapped(text, 80) == [
        "ledger 5 is at risk: bkctl recover failed-bookie b3:3181 would copy its entries",
        "of a segment to others",
    ]
