"""A bar chart as SVG, written by hand: grouped bars on a logarithmic axis."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_COLORS = ("#7a8ca3", "#d9662b", "#3d7a4f", "#8a5fa8")
_ROW, _GAP, _LEFT, _WIDTH, _TOP = 13, 9, 130, 520, 64


@dataclass(frozen=True)
class Bar:
    """One bar: the label of its group, its series, the heading above its group, and its length."""

    label: str
    series: str
    heading: str
    value: float


def bar_chart(bars: Sequence[Bar], title: str) -> str:
    """Return the text of an SVG file; bars grow to the right from 1, or to the left below it."""
    series = list(dict.fromkeys(bar.series for bar in bars))
    values = [bar.value for bar in bars] or [1.0]
    low = min(0.5, 2 ** math.floor(math.log2(min(values))))
    high = max(2.0, 2 ** math.ceil(math.log2(max(values))))
    scale = _WIDTH / math.log2(high / low)

    def at(value: float) -> float:
        return _LEFT + math.log2(value / low) * scale

    body: list[str] = []
    y = _TOP
    heading = label = ""
    for bar in bars:
        if bar.heading != heading:
            heading, y = bar.heading, y + 22
            body.append(_text(8, y - 6, heading, 'font-weight="bold"'))
        if bar.label != label:
            label, y = bar.label, y + _GAP
            count = sum(b.label == label and b.heading == heading for b in bars)
            body.append(_text(_LEFT - 8, y + count * _ROW / 2 + 4, label, 'text-anchor="end"'))
        color = _COLORS[series.index(bar.series) % len(_COLORS)]
        left, right = sorted((at(1.0), at(bar.value)))
        body.append(
            f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" '
            f'height="{_ROW - 2}" fill="{color}"/>'
        )
        body.append(_text(right + 4, y + _ROW - 4, f"{bar.value:.2f}", 'font-size="10"'))
        y += _ROW
    height = y + 40
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 60}" '
            f'height="{height}" font-family="sans-serif" font-size="12" fill="#222">',
            '<rect width="100%" height="100%" fill="white"/>',
            _text(8, 22, title, 'font-size="15" font-weight="bold"'),
            *_legend(series),
            *_axis(low, high, at, y + 8),
            *body,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>'


def _legend(series: Sequence[str]) -> list[str]:
    parts = []
    for index, name in enumerate(series):
        x = _LEFT + 110 * index
        color = _COLORS[index % len(_COLORS)]
        parts.append(f'<rect x="{x}" y="36" width="11" height="11" fill="{color}"/>')
        parts.append(_text(x + 16, 46, name))
    return parts


def _axis(low: float, high: float, at: Callable[[float], float], bottom: float) -> list[str]:
    parts = []
    value = low
    while value <= high * 1.001:
        x = at(value)
        color = "#444" if value == 1 else "#ddd"
        parts.append(
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{color}"/>'
        )
        parts.append(_text(x, bottom + 16, f"{value:g}x", 'text-anchor="middle"'))
        value *= 2
    return parts
