"""Line plots as SVG files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 30, 45

Points = Sequence[tuple[float, float]]


def line_plot(series: Mapping[str, Points], *, title: str, x_label: str, y_label: str, log_y: bool = False) -> str:
    """Return an SVG file with a line for each series.

    Args:
        series: points (x, y) by the line's name, ascending in x.
        log_y: logarithmic y axis; values must be positive then.

    Raises:
        ValueError: there is no point, or one that a logarithmic axis does not have.
    """
    points = [point for line in series.values() for point in line]
    if not points or (log_y and min(y for _, y in points) <= 0):
        raise ValueError("no points, or none on a logarithmic axis")
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low_y, high_y = (min(y for _, y in points) if log_y else 0.0), max(y for _, y in points)
    low, high = (math.log10(low_y), math.log10(high_y)) if log_y else (low_y, high_y)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        value = math.log10(y) if log_y else y
        return (
            LEFT + (x - low_x) / ((high_x - low_x) or 1) * (right - LEFT),
            bottom - (value - low) / ((high - low) or 1) * (bottom - TOP),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif"'
        f' font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>'
    ]
    for i in range(5):
        value = low + (high - low) * i / 4
        y = bottom - (bottom - TOP) * i / 4
        shown = 10**value if log_y else value
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown:.3g}</text>')
        x, x_value = LEFT + (right - LEFT) * i / 4, low_x + (high_x - low_x) * i / 4
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{x_value:.3g}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 2}" font-size="11">{escape(y_label)}</text>')
    for i, (name, line) in enumerate(series.items()):
        color = COLORS[i % len(COLORS)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        parts.append(f'<text x="{right + 12}" y="{TOP + 16 * (i + 1)}" fill="{color}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def distribution(values: Sequence[float], points: int = 100) -> Points:
    """Return (value, share of the values up to it) at equal steps of the share."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return [(ordered[round(last * i / points)], i / points) for i in range(points + 1)] if ordered else []
