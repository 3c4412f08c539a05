"""Charts as SVG text, for light and dark pages. They need nothing from elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 360, 64, 190, 44, 52
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
_INK, _GRID = "#808080", "#80808040"
_LINE_HEIGHT = 16
_BAR, _GAP = 26, 10

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The titles of the axes. `low` and `high` bound the values; None takes them from the lines."""

    title: str
    x: str
    y: str
    low: float | None = None
    high: float | None = None


def line_chart(axes: Axes, lines: Mapping[str, Sequence[Point]]) -> str:
    """Returns one line for each name, which stands at its right end."""
    lines = {name: points for name, points in lines.items() if points}
    xs = [x for points in lines.values() for x, _ in points] or [0.0]
    ys = [y for points in lines.values() for _, y in points] or [0.0]
    across = _Scale(ticks(min(xs), max(xs)), min(xs), max(xs), LEFT, WIDTH - RIGHT)
    low = min(ys) if axes.low is None else axes.low
    high = max(ys) if axes.high is None else axes.high
    marks = ticks(low, high)
    up = _Scale(marks, min(low, marks[0]), max(high, marks[-1]), HEIGHT - BOTTOM, TOP)
    drawn = [_text(LEFT, 22, axes.title, weight="bold")]
    drawn += [_line([(LEFT, up.at(mark)), (WIDTH - RIGHT, up.at(mark))], _GRID, 1) for mark in marks]
    drawn += [_text(LEFT - 8, up.at(mark) + 4, number(mark), anchor="end") for mark in marks]
    drawn += [
        _text(across.at(mark), HEIGHT - BOTTOM + 18, number(mark), anchor="middle")
        for mark in across.marks
        if min(xs) <= mark <= max(xs)
    ]
    drawn.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axes.x, anchor="middle"))
    drawn.append(
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)" text-anchor="middle" '
        f'fill="{_INK}">{escape(axes.y)}</text>'
    )
    heights = _apart({name: up.at(points[-1][1]) for name, points in lines.items()})
    for position, (name, points) in enumerate(lines.items()):
        colour = COLOURS[position % len(COLOURS)]
        drawn.append(_line([(across.at(x), up.at(y)) for x, y in points], colour, 2))
        end = f"{name} {number(points[-1][1])}"
        drawn.append(_text(across.at(points[-1][0]) + 8, heights[name] + 4, end, colour=colour))
    return _svg(HEIGHT, axes.title, drawn)


def bar_chart(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Returns a bar for each name, with its value and the value's text."""
    most = max((value for _, value, _ in bars), default=0.0) or 1.0
    height = TOP + len(bars) * (_BAR + _GAP) + 8
    drawn = [_text(8, 22, title, weight="bold")]
    for position, (name, value, words) in enumerate(bars):
        top = TOP + position * (_BAR + _GAP)
        width = max(value, 0.0) / most * (WIDTH - RIGHT - RIGHT)
        colour = COLOURS[position % len(COLOURS)]
        drawn.append(_text(RIGHT - 8, top + _BAR / 2 + 4, name, anchor="end"))
        drawn.append(f'<rect x="{RIGHT}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>')
        drawn.append(_text(RIGHT + width + 8, top + _BAR / 2 + 4, words))
    return _svg(height, title, drawn)


@dataclass(frozen=True, slots=True)
class _Scale:
    marks: Sequence[float]
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float) -> list[float]:
    """About six round numbers that reach from `low` or less to `high` or more."""
    if high <= low:
        return [low, low + 1.0]
    rough = (high - low) / 5
    power = 10.0 ** floor(log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [step * each for each in range(first, last + 1)]


def number(value: float) -> str:
    """Returns `1 213`, `94.3`, `0.52`."""
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _apart(wanted: Mapping[str, float]) -> dict[str, float]:
    """Returns heights a line apart at least, from the top down; all are moved up where the lowest would be outside."""
    placed: dict[str, float] = {}
    lowest = 0.0
    for name, height in sorted(wanted.items(), key=lambda item: item[1]):
        lowest = placed[name] = max(height, lowest + _LINE_HEIGHT)
    over = max(lowest - (HEIGHT - BOTTOM), 0.0)
    return {name: height - over for name, height in placed.items()}


def _svg(height: float, title: str, drawn: Sequence[str]) -> str:
    name = escape(title, quote=True)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" role="img" aria-label="{name}">'
    )
    return "\n".join([head, f"<title>{name}</title>", *drawn, "</svg>", ""])


def _line(places: Sequence[Point], colour: str, width: int) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = _INK, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )
