"""A picture of decode steps as SVG: what the host launched, what the device computed, when answers left.

Two panels: all of the steps, and, some fifty times larger, the place where one of them follows another. It needs no
script and no font, and follows the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from xml.sax.saxutils import escape

from benchmarks.step_times import Step, busy_share, decode_pairs, gaps_us

WIDTH = 960
LEFT, RIGHT = 84.0, 944.0
LANES = ("launch", "device", "answer")
LANE_HEIGHT = 46.0
BAR = 22.0
PANEL_TOPS = (92.0, 322.0)
AXIS = len(LANES) * LANE_HEIGHT
HEIGHT = 522
MIN_LABEL = 26.0
"""Pixels that a bar must have for a number within it."""

STYLE = """
:root { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --band: #f6f8fa;
  --launch: #8250df; --even: #0969da; --odd: #54aeff; --on-even: #ffffff; --on-odd: #0a3069; --on-launch: #ffffff;
  --answer: #bc4c00; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #3d444d;
  --band: #151b23; --launch: #ab7df8; --even: #1f6feb; --odd: #79c0ff; --on-even: #ffffff; --on-odd: #0a3069;
  --on-launch: #1b0a33; --answer: #f0883e; } }
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
.title { font-size: 16px; font-weight: 600; } .soft { fill: var(--soft); } .small { font-size: 11px; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.paper { fill: var(--paper); } .band { fill: var(--band); } .rule { stroke: var(--line); }
.tie { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; fill: none; }
.launch { fill: var(--launch); } .even { fill: var(--even); } .odd { fill: var(--odd); }
.answer { fill: var(--answer); } .on-even { fill: var(--on-even); } .on-odd { fill: var(--on-odd); }
.on-launch { fill: var(--on-launch); }
.lens { fill: none; stroke: var(--soft); }
"""


@dataclass(frozen=True)
class Window:
    """Milliseconds that a panel shows, in the trace's time, and where the panel stands."""

    first: float
    last: float
    top: float

    def x(self, at: float) -> float:
        return LEFT + (at - self.first) / (self.last - self.first) * (RIGHT - LEFT)

    def clip(self, at: float) -> float:
        return min(max(self.x(at), LEFT), RIGHT)

    def lane(self, name: str) -> float:
        """y of the middle of a lane."""
        return self.top + (LANES.index(name) + 0.5) * LANE_HEIGHT


def draw(steps: Sequence[Step]) -> str:
    """The picture of successive decode steps, at least three.

    Raises:
        ValueError: there are fewer.
    """
    if len(steps) < 3:
        raise ValueError("a picture needs at least three steps")
    pairs = decode_pairs(steps)
    took, gap, busy = median(s.took for s in steps), median(gaps_us(pairs)), busy_share(pairs)
    zero = steps[0].begin
    margin = 0.01 * (steps[-1].end - zero)
    first = max(min(s.launch_begin for s in steps), zero - took)
    last = max(steps[-1].end, steps[-1].answered)
    whole = Window(
        min(zero, first) - margin, last + 5 * margin, PANEL_TOPS[0]
    )  # with room for the last answer's number
    middle = (len(steps) - 1) // 2
    near = _around(steps, middle)
    rows = _said_rows([s.rows for s in steps])
    title = f"{len(steps)} decode steps of {rows}"
    facts = f"median step {took:.2f} ms, {gap:.0f} µs between steps, device busy {busy:.1%} of the time"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape(facts)}. While the device computes one step, the host launches the next.</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(16, 30, title, "title"),
        _text(16, 52, facts, "soft"),
        *_panel(whole, steps, zero),
        *_lens(whole, near),
        _text(
            (LEFT + RIGHT) / 2, PANEL_TOPS[1] - 16,
            f"where step {steps[middle + 1].step} follows step {steps[middle].step}, "
            f"{(whole.last - whole.first) / (near.last - near.first):.0f} times as large", "middle",
        ),
        *_panel(near, steps, zero),
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _said_rows(rows: Sequence[int]) -> str:
    few, many = min(rows), max(rows)
    return f"{few} to {many} rows" if few != many else f"{many} row" + "s" * (many != 1)


def _around(steps: Sequence[Step], middle: int) -> Window:
    """From shortly before a step's end until it is answered and the step after the next is launched."""
    end = steps[middle].end
    events = [steps[middle].answered, steps[middle + 1].begin]
    if middle + 2 < len(steps):
        events.append(steps[middle + 2].launch_end)
    last = min(max(events), end + steps[middle + 1].took)
    margin = 0.12 * (last - end)
    return Window(end - 2 * margin, last + margin, PANEL_TOPS[1])


def _panel(window: Window, steps: Sequence[Step], zero: float) -> list[str]:
    parts = []
    for name in LANES:
        y = window.lane(name) - BAR / 2 - 6
        parts.append(f'<rect class="band" x="{LEFT}" y="{y:.1f}" width="{RIGHT - LEFT}" height="{BAR + 12}"/>')
        parts.append(_text(LEFT - 10, window.lane(name) + 4.5, name, "end"))
    parts += _axis(window, zero)
    seen = [s for s in steps if s.answered >= window.first and s.launch_begin <= window.last]
    for step in seen:
        parts += _ties(window, step)
    for step in seen:
        parts += _marks(window, step)
    return parts


def _axis(window: Window, zero: float) -> list[str]:
    step = _tick(window.last - window.first)
    digits = max(0, -_exponent(step))
    bottom = window.top + AXIS
    parts = [f'<path class="rule" d="M{LEFT} {bottom}H{RIGHT}"/>']
    at = -(-(window.first - zero) // step)
    while (value := at * step) <= window.last - zero:
        x = window.x(value + zero)
        parts.append(f'<path class="rule" d="M{x:.1f} {window.top}V{bottom + 5}"/>')
        parts.append(_text(x, bottom + 19, f"{value or 0.0:.{digits}f}", "soft small middle"))
        at += 1
    parts.append(_text(LEFT - 10, bottom + 19, "ms", "soft small end"))
    return parts


def _tick(span: float) -> float:
    """A round number of which about ten make up the span."""
    power = 10.0 ** _exponent(span / 10)
    return min((m * power for m in (1, 2, 5, 10)), key=lambda tick: abs(span / tick - 9))


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _ties(window: Window, step: Step) -> list[str]:
    """From launched to computed, and from computed to answered."""
    down = ((step.launch_end, "launch", step.begin, "device"), (step.end, "device", step.answered, "answer"))
    return [
        f'<path class="tie" d="M{window.x(a):.1f} {window.lane(top) + BAR / 2:.1f}'
        f'L{window.x(b):.1f} {window.lane(bottom) - BAR / 2:.1f}"/>'
        for a, top, b, bottom in down
        if window.first <= a and b <= window.last
    ]


def _marks(window: Window, step: Step) -> list[str]:
    shade = "odd" if step.step % 2 else "even"
    number = str(step.step)
    parts = _bar(window, "launch", step.launch_begin, step.launch_end, "launch", number, "on-launch")
    parts += _bar(window, "device", step.begin, step.end, shade, number, f"on-{shade}")
    if window.first <= step.answered <= window.last:
        x, y = window.x(step.answered), window.lane("answer")
        parts.append(f'<circle class="answer" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(_text(x + 9, y + 4.5, number, "small"))
    return parts


def _bar(window: Window, lane: str, begin: float, end: float, shade: str, number: str, on: str) -> list[str]:
    if end <= window.first or begin >= window.last:
        return []
    left, right = window.clip(begin), window.clip(end)
    y = window.lane(lane)
    parts = [
        f'<rect class="{shade}" x="{left:.2f}" y="{y - BAR / 2:.1f}" width="{max(right - left, 0.75):.2f}" '
        f'height="{BAR}"/>'
    ]
    if right - left >= MIN_LABEL:
        parts.append(_text((left + right) / 2, y + 4.5, number, f"small middle {on}"))
    else:
        parts.append(_text(right + 4, y + 4.5, number, "small"))
    return parts


def _lens(whole: Window, near: Window) -> list[str]:
    """What the second panel shows, marked in the first."""
    left, right = whole.x(near.first) - 1.5, whole.x(near.last) + 1.5
    bottom = whole.top + AXIS
    return [
        f'<rect class="lens" x="{left:.1f}" y="{whole.top:.1f}" width="{right - left:.1f}" height="{AXIS:.1f}"/>',
        f'<path class="tie" d="M{left:.1f} {bottom:.1f}L{LEFT} {near.top - 6}M{right:.1f} {bottom:.1f}'
        f'L{RIGHT} {near.top - 6}"/>',
    ]


def _text(x: float, y: float, said: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(said)}</text>'
