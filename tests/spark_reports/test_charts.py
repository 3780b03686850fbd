"""The scale of a chart: round values at equal distances, that cover the longest bar."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from bkctl.spark_reports.charts import Bar, Scale, bar_chart, column_chart, stacked_bar, ticks


@given(st.integers(0, 2**60), st.sampled_from([2, 10]))
def test_ticks_cover_the_longest_bar(longest: int, base: int) -> None:
    marks = ticks(longest, base)
    assert marks[0] == 0
    assert marks[-1] >= longest
    assert marks[-2] < max(longest, 1), "the last mark is the first that covers it"
    assert 2 <= len(marks) <= 5
    step = marks[1]
    assert marks == [step * index for index in range(len(marks))]
    if base == 2:
        assert step & (step - 1) == 0
    else:
        assert re.fullmatch("[125]0*", str(step))


def test_a_bar_ends_at_its_value_on_the_scale() -> None:
    svg = bar_chart([Bar("a", 35, "35"), Bar("b", 12, "12")], "Ledgers", Scale("ledgers", "{:,}".format))
    assert re.findall(r'class="neutral" x="0" y="\d+" width="([\d.]+)%"', svg) == ["87.50", "30.00"]
    labels = re.findall(r'<text class="tick (?:first|last|)" x="([\d.]+)%" y="\d+">([^<]+)', svg)
    assert labels == [("0.00", "0"), ("25.00", "10"), ("50.00", "20"), ("75.00", "30"), ("100.00", "40")]
    assert '<text class="tick unit" x="50%"' in svg
    assert ">ledgers</text>" in svg


def test_parts_of_a_whole_are_in_proportion() -> None:
    bars = [Bar("a", 999, "999"), Bar("b", 0, "0"), Bar("c", 1, "1")]
    svg = stacked_bar(bars, "States", Scale("percent", lambda percent: f"{percent} %"))
    assert re.findall(r'x="([\d.]+)%" y="0" width="([\d.]+)%"', svg) == [("0.000", "99.900"), ("99.900", "0.100")]
    assert "100 %" in svg


def test_a_column_is_as_high_as_its_value_on_the_scale() -> None:
    bars = [Bar("first", 0, "0"), Bar("second", 20, "20"), Bar("third", 35, "35"), Bar("last", 40, "40")]
    svg = column_chart(bars, "Ledgers", Scale("ledgers", "{:,}".format))
    found = re.findall(r'<rect class="neutral" x="([\d.]+)%" y="([\d.]+)" width="20.000%" height="([\d.]+)"', svg)
    assert found == [
        ("2.500", "116.0", "0.0"),
        ("27.500", "68.0", "48.0"),
        ("52.500", "32.0", "84.0"),
        ("77.500", "20.0", "96.0"),
    ]
    assert re.findall(r">([^<]+)</text>", svg) == ["40 ledgers", "40", "first", "last"]


def test_a_scale_up_to_one_is_in_the_singular() -> None:
    svg = column_chart(
        [Bar("first", 0, "0"), Bar("last", 1, "1")], "Lost", Scale("ledgers", "{:,}".format, one="ledger")
    )
    assert re.findall(r">([^<]+)</text>", svg) == ["1 ledger", "1", "first", "last"]
