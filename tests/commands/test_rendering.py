"""Values as people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.commands.rendering import (
    envelope,
    flat,
    in_memory,
    json_parts,
    plain,
    to_csv_line,
    to_json,
    to_json_line,
    to_yaml,
)

VALUE = {"id": "9223372036854775806", "none": None, "list": ["a", "ü"], "truth": True, "number": 1.5, "in": {"x": "0"}}


def test_json_and_yaml_carry_the_same_values() -> None:
    assert json.loads(to_json(VALUE)) == VALUE
    assert json.loads(to_json_line(VALUE)) == VALUE
    assert yaml.safe_load(to_yaml(VALUE)) == VALUE
    assert "\n" not in to_json_line(VALUE)


def test_csv_quotes_line_ends_and_escapes_what_a_terminal_executes() -> None:
    assert to_csv_line(["a\nb", "c\rd", "e\r\n"]) == '"a\nb","c\\rd","e\\r\n"'


def test_csv_quotes_and_writes_none_as_nothing() -> None:
    assert to_csv_line(['a"b', "c,d", None, True, ["x", "y"], 3]) == '"a""b","c,d",,true,x y,3'


def test_other_values() -> None:
    assert [plain(value) for value in (None, True, False, [], ["a", 1], "x")] == ["-", "yes", "no", "-", "a,1", "x"]


def test_every_structured_result_starts_alike() -> None:
    assert list(envelope("Thing", {"a": 1}).items()) == [("apiVersion", "bkctl/v1"), ("kind", "Thing"), ("a", 1)]


def test_nested_fields_are_joined_by_dots() -> None:
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == [("a", 1), ("b.c", 2), ("b.d.e", 3)]


class Squares(Sequence[dict[str, int]]):
    """Rows that are made when they are needed."""

    def __len__(self) -> int:
        return 30_000

    def __getitem__(self, index: int | slice) -> Any:
        return {"square": range(30_000)[index] ** 2} if isinstance(index, int) else list(self)[index]


@settings(max_examples=40)  # deep ones, which take their time
@given(
    st.dictionaries(
        st.text(), st.recursive(st.none() | st.integers(0, 9) | st.text(), st.lists), min_size=1, max_size=4
    )
)
def test_json_in_parts_is_the_same_json(fields: dict[str, Any]) -> None:
    assert "".join(json_parts(fields)) == to_json(fields)
    assert "".join(json_parts(fields, is_line=True)) == to_json_line(fields)


def test_json_in_parts_takes_rows_one_by_one() -> None:
    fields = {"before": 1, "rows": Squares(), "after": [{"a": [], "b": {}}]}
    parts = list(json_parts(fields))
    assert "".join(parts) == to_json(in_memory(fields))
    assert max(map(len, parts)) < 70_000 < sum(map(len, parts))
