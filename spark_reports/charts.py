"""Charts of the report page, as inline SVG. Pure.

Widths are percentages and heights are pixels, so that a chart fits any window and its text keeps its size. Each chart
has a scale: lines at round values, with their labels below, and what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from markupsafe import Markup

from bkctl.runtime.replication.cluster_audit.comparison import AuditRun
from bkctl.spark_reports.page_tables import time_words
from bkctl.storage.words import size

_ROW_PX = 38
_BAR_PX = 12
_STACK_PX = 26
_SCALE_PX = 38
_COLUMNS_PX = 96
_TICKS_MAX = 4
_LABEL_MAX = 44
"""Characters of a label that fit the narrowest chart; the whole one is shown on hover."""


class Bar(msgspec.Struct, frozen=True):
    """A bar of a chart, or a part of a stacked one. ``text``: its value in words; ``kind``: CSS class of its colour."""

    label: str
    value: int
    text: str
    kind: str = "neutral"


class Scale(msgspec.Struct, frozen=True):
    """What the lengths of bars mean: ``unit`` is what is counted, ``one`` if it is 1, ``text`` a value in words.

    ``base``: round values are 1, 2 or 5 times a power of 10, or powers of 2 of bytes.
    """

    unit: str
    text: Callable[[int], str]
    base: int = 10
    one: str = ""


def ticks(longest: int, base: int = 10) -> list[int]:
    """Round values from 0 to the first that is at least ``longest``, at equal distances, at most five of them."""
    step = 1
    while step * _TICKS_MAX < longest:
        step = _next_step(step) if base == 10 else 2 * step
    return [step * index for index in range(max(1, -(-longest // step)) + 1)]


def _next_step(step: int) -> int:
    """1, 2, 5, 10, 20, 50, and so on."""
    return step * 5 // 2 if str(step).startswith("2") else step * 2


def bar_chart(bars: Sequence[Bar], title: str, scale: Scale) -> Markup:
    """One row per bar, label and value above it, and the scale below all of them."""
    marks = ticks(max((bar.value for bar in bars), default=0), scale.base)
    height = len(bars) * _ROW_PX
    rows = Markup("").join(_row(index, bar, 100 * bar.value / marks[-1]) for index, bar in enumerate(bars))
    return _svg(title, height + _SCALE_PX, _scale(marks, scale, height) + rows)


def stacked_bar(parts: Sequence[Bar], title: str, scale: Scale) -> Markup:
    """The parts of a whole in one bar, in proportion; parts of size 0 are left out. Neighbours may have one colour."""
    total = sum(part.value for part in parts)
    marks = [0, 25, 50, 75, 100]
    pieces, gaps, begin = [], [], 0.0
    for part in parts:
        width = 100 * part.value / (total or 1)
        if part.value:
            pieces.append(
                Markup(
                    '<rect class="part {}" x="{:.3f}%" y="0" width="{:.3f}%" height="{}"><title>{}: {}</title></rect>'
                ).format(part.kind, begin, width, _STACK_PX, part.label, part.text)
            )
            if begin:
                gap = Markup('<line class="gap" x1="{0:.3f}%" x2="{0:.3f}%" y1="0" y2="{1}"/>')
                gaps.append(gap.format(begin, _STACK_PX))
        begin += width
    return _svg(title, _STACK_PX + _SCALE_PX, _scale(marks, scale, _STACK_PX) + Markup("").join([*pieces, *gaps]))


def column_chart(bars: Sequence[Bar], title: str, scale: Scale) -> Markup:
    """One column per bar, from left to right, all of one width; at least one bar. The labels of the first and the last
    are below, the value of the last above."""
    top = ticks(max(bar.value for bar in bars), scale.base)[-1]
    width, columns = 100 / len(bars), []
    for index, bar in enumerate(bars):
        height = _COLUMNS_PX * bar.value / top
        columns.append(
            Markup(
                '<rect class="{}" x="{:.3f}%" y="{:.1f}" width="{:.3f}%" height="{:.1f}"><title>{}: {}</title></rect>'
            ).format(
                bar.kind, (index + 0.1) * width, 20 + _COLUMNS_PX - height, 0.8 * width, height, bar.label, bar.text
            )
        )
    bottom, unit = 20 + _COLUMNS_PX, (top == 1 and scale.one) or scale.unit
    frame = Markup(
        '<line class="grid" x1="0" x2="100%" y1="20" y2="20"/><line class="grid" x1="0" x2="100%" y1="{0}" y2="{0}"/>'
        '<text class="tick first" x="0" y="14">{1} {2}</text><text class="value" x="100%" y="14">{3}</text>'
        '<text class="tick first" x="0" y="{4}">{5}</text><text class="tick last" x="100%" y="{4}">{6}</text>'
    ).format(bottom, scale.text(top), unit, bars[-1].text, bottom + 15, bars[0].label, bars[-1].label)
    return _svg(title, bottom + 24, frame + Markup("").join(columns))


def _scale(marks: Sequence[int], scale: Scale, height_px: int) -> Markup:
    lines = Markup("").join(
        Markup(
            '<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="{1}"/>'
            '<text class="tick {2}" x="{0:.2f}%" y="{3}">{4}</text>'
        ).format(
            100 * mark / marks[-1],
            height_px + 4,
            "first" if mark == 0 else "last" if mark == marks[-1] else "",
            height_px + 17,
            scale.text(mark),
        )
        for mark in marks
    )
    return lines + Markup('<text class="tick unit" x="50%" y="{}">{}</text>').format(height_px + 33, scale.unit)


def _row(index: int, bar: Bar, width_percent: float) -> Markup:
    top = index * _ROW_PX
    label = bar.label if len(bar.label) <= _LABEL_MAX else f"{bar.label[: _LABEL_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
    return Markup(
        '<text class="label" x="0" y="{0}">{7}<title>{1}</title></text><text class="value" x="100%" y="{0}">{2}</text>'
        '<rect class="{5}" x="0" y="{3}" width="{6:.2f}%" height="{4}" rx="2"><title>{1}: {2}</title></rect>'
    ).format(top + 14, bar.label, bar.text, top + 19, _BAR_PX, bar.kind, width_percent, label)


def _svg(title: str, height_px: int, content: Markup) -> Markup:
    return Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>').format(title, height_px, content)


RUNS_SHOWN_MAX = 60
_NAMES_SHOWN_MAX = 6
"""Owners, and bookies, with a chart of their own: those with the most bytes in any of the runs."""


class PageChart(msgspec.Struct, frozen=True):
    """A chart with its title."""

    title: str
    svg: Markup


def trend_charts(runs: Sequence[AuditRun]) -> list[PageChart]:
    """Of the newest runs, the oldest first; none of fewer than two."""
    shown = runs[-RUNS_SHOWN_MAX:]
    return list(_charts(shown)) if len(shown) > 1 else []


def _charts(runs: Sequence[AuditRun]) -> Iterator[PageChart]:
    ledgers = Scale("ledgers", "{:,}".format, one="ledger")
    copies = Scale("copies of entries", "{:,}".format, one="copy of an entry")
    in_bytes = Scale("of copies", size, base=2)
    for title, scale, kind, values in (
        ("Ledgers with missing copies", ledgers, "warning", [run.missing_copies for run in runs]),
        ("Ledgers lost with their bookies", ledgers, "critical", [run.lost for run in runs]),
        ("Live copies of entries", copies, "ok", [run.live_copies for run in runs]),
        ("Copies of entries that are not live", copies, "critical", [run.copies - run.live_copies for run in runs]),
        ("Bytes of all copies", in_bytes, "neutral", [run.copy_bytes for run in runs]),
    ):
        yield _chart(runs, title, scale, kind, values)
    for title, scale, kind, name in (
        ("Bad copies", copies, "critical", "bad_copies"),
        ("Entries without a good copy", Scale("entries", "{:,}".format, one="entry"), "critical", "lost_entries"),
    ):
        taken = [run for run in runs if getattr(run, name) is not None]
        if len(taken) > 1:
            yield _chart(taken, title, scale, kind, [getattr(run, name) for run in taken])
    for what, found in (("owner", [run.owners for run in runs]), ("bookie", [run.bookies for run in runs])):
        for name in _largest(found):
            yield _chart(runs, f"Bytes of {what} {name}", in_bytes, "neutral", [each.get(name, 0) for each in found])


def _largest(found: Sequence[Mapping[str, int]]) -> list[str]:
    largest: dict[str, int] = {}
    for values in found:
        for name, value in values.items():
            largest[name] = max(value, largest.get(name, 0))
    named = [name for name, value in largest.items() if value]
    return sorted(named, key=lambda each: (-largest[each], each))[:_NAMES_SHOWN_MAX]


def _chart(runs: Sequence[AuditRun], title: str, scale: Scale, kind: str, values: Sequence[int]) -> PageChart:
    bars = [
        Bar(time_words(run.judged_at_ms), value, scale.text(value), kind)
        for run, value in zip(runs, values, strict=True)
    ]
    return PageChart(title, column_chart(bars, title, scale))
