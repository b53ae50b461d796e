"""Markdown tables and percentiles."""

from collections.abc import Iterable, Sequence


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile, 0 to 100, with linear interpolation between the two nearest values (numpy's default).

    Raises ValueError when there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table with its columns padded to one width."""
    body = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(header))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in body)
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
