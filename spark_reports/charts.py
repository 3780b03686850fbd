"""Charts of the report page, as inline SVG. Pure.

Widths are percentages and heights are pixels, so that a chart fits any window and its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

_ROW_PX = 38
_BAR_PX = 12
_STACK_PX = 26
_GAP_PERCENT = 0.2


class Bar(msgspec.Struct, frozen=True):
    """A bar of a chart, or a part of a stacked one. ``text``: its value in words; ``kind``: CSS class of its colour."""

    label: str
    value: int
    text: str
    kind: str = "neutral"


def bar_chart(bars: Sequence[Bar], title: str) -> Markup:
    """One row per bar, label and value above it; the longest bar has the full width."""
    longest = max((bar.value for bar in bars), default=0) or 1
    rows = Markup("").join(_row(index, bar, 100 * bar.value / longest) for index, bar in enumerate(bars))
    return _svg(title, len(bars) * _ROW_PX, rows)


def stacked_bar(parts: Sequence[Bar], title: str) -> Markup:
    """The parts of a whole in one bar, each wide enough to be seen; parts of size 0 are left out."""
    shown = [part for part in parts if part.value > 0]
    total = sum(part.value for part in shown) or 1
    widths = [max(100 * part.value / total, 0.7) for part in shown]
    scale = 100 / (sum(widths) or 1)
    pieces, begin = [], 0.0
    for part, width in zip(shown, (width * scale for width in widths), strict=True):
        pieces.append(
            Markup(
                '<rect class="{}" x="{:.2f}%" y="0" width="{:.2f}%" height="{}"><title>{}: {}</title></rect>'
            ).format(part.kind, begin, max(width - _GAP_PERCENT, 0.1), _STACK_PX, part.label, part.text)
        )
        begin += width
    return _svg(title, _STACK_PX, Markup("").join(pieces))


def _row(index: int, bar: Bar, width_percent: float) -> Markup:
    top = index * _ROW_PX
    return Markup(
        '<text x="0" y="{0}">{1}</text><text class="value" x="100%" y="{0}">{2}</text>'
        '<rect class="track" x="0" y="{3}" width="100%" height="{4}" rx="2"/>'
        '<rect class="{5}" x="0" y="{3}" width="{6:.2f}%" height="{4}" rx="2"/>'
    ).format(top + 14, bar.label, bar.text, top + 19, _BAR_PX, bar.kind, width_percent)


def _svg(title: str, height_px: int, content: Markup) -> Markup:
    return Markup('<svg role="img" aria-label="{}" width="100%" height="{}">{}</svg>').format(title, height_px, content)
