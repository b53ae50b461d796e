"""Line plots as SVG files, by Matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]

# Texts stay texts, and the same figures give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "radixrt"})


def line_plot(
    path: Path, lines: Mapping[str, Points], *, title: str = "", x_label: str, y_label: str = "", log: str = ""
) -> None:
    """Write a plot with a line for each series.

    Args:
        lines: points (x, y) by the line's name, ascending in x.
        log: axes that are logarithmic, "x" or "y".
    """
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=x_label, ylabel=y_label)
    for name, points in lines.items():
        axes.plot([x for x, _ in points], [y for _, y in points], label=name)
    if "x" in log:
        axes.set_xscale("log", base=2)
    if "y" in log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, format="svg", metadata={"Date": None})
