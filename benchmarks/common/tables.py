"""Markdown tables."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table with its columns padded to one width."""
    body = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(header))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in body)
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
