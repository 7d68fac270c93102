"""A line chart as SVG, written by hand: both axes logarithmic, a line for each series."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

_COLORS = ("#d9662b", "#7a8ca3", "#3d7a4f", "#8a5fa8")
_LEFT, _TOP, _WIDTH, _HEIGHT = 70, 64, 460, 320

Points = Sequence[tuple[float, float]]


def line_chart(lines: Mapping[str, Points], title: str, x_label: str, y_label: str) -> str:
    """Return the text of an SVG file; all numbers must be positive."""
    xs = sorted({x for points in lines.values() for x, _ in points}) or [1.0]
    ys = [y for points in lines.values() for _, y in points] or [1.0]
    low, high = 2 ** math.floor(math.log2(min(ys))), 2 ** math.ceil(math.log2(max(ys)))
    high = max(high, 2 * low)
    span = math.log2(max(xs) / min(xs)) or 1.0

    def right(x: float) -> float:
        return _LEFT + math.log2(x / min(xs)) / span * _WIDTH

    def up(y: float) -> float:
        return _TOP + _HEIGHT - math.log2(y / low) / math.log2(high / low) * _HEIGHT

    body: list[str] = []
    for x in xs:
        body.append(_rule(right(x), _TOP, right(x), _TOP + _HEIGHT))
        body.append(_text(right(x), _TOP + _HEIGHT + 18, f"{x:g}", 'text-anchor="middle"'))
    y = float(low)
    while y <= high * 1.001:
        body.append(_rule(_LEFT, up(y), _LEFT + _WIDTH, up(y)))
        body.append(_text(_LEFT - 8, up(y) + 4, f"{y:g}", 'text-anchor="end"'))
        y *= 4 if high / low > 64 else 2
    for index, (name, points) in enumerate(lines.items()):
        color = _COLORS[index % len(_COLORS)]
        path = " ".join(f"{right(x):.1f},{up(y):.1f}" for x, y in points)
        body.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        body += [
            f'<circle cx="{right(x):.1f}" cy="{up(y):.1f}" r="3" fill="{color}"/>'
            for x, y in points
        ]
        left = _LEFT + 110 * index
        body.append(f'<rect x="{left}" y="36" width="11" height="11" fill="{color}"/>')
        body.append(_text(left + 16, 46, name))
    width, height = _LEFT + _WIDTH + 30, _TOP + _HEIGHT + 56
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12" fill="#222">',
            '<rect width="100%" height="100%" fill="white"/>',
            _text(8, 22, title, 'font-size="15" font-weight="bold"'),
            *body,
            _text(_LEFT + _WIDTH / 2, height - 14, x_label, 'text-anchor="middle"'),
            _text(8, _TOP - 2, y_label),
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
