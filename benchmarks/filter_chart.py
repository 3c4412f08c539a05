"""A line chart with two logarithmic axes, as SVG text."""

from collections.abc import Mapping
from math import log10

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 210, 40, 50
COLOURS = ("#888888", "#1f77b4", "#d62728", "#2ca02c", "#9467bd")
TICKS_MS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
MEASURED_BEFORE = {"HAMi 2.10": {100: 7.0, 1000: 75.0, 5000: 445.0}}
"""p50 of the same request to HAMi's extender, 4 pods per node, on a similar machine."""


def chart(lines: Mapping[str, Mapping[int, float]]) -> str:
    """p50 in ms over nodes, one line for each name."""
    lines = {name: points for name, points in {**lines, **MEASURED_BEFORE}.items() if points}
    sizes = sorted({nodes for points in lines.values() for nodes in points})
    times = [ms for points in lines.values() for ms in points.values()]
    ticks = [tick for tick in TICKS_MS if min(times) / 3 <= tick <= max(times) * 3]
    low, high = log10(ticks[0]), log10(ticks[-1])
    first, last = log10(sizes[0]), max(log10(sizes[-1]), log10(sizes[0]) + 1)

    def x(nodes: int) -> float:
        return LEFT + (log10(nodes) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - (log10(ms) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, "p50 of /filter over HTTP, milliseconds, by nodes of 8 GPUs with 4 pods each"),
    ]
    for tick in ticks:
        drawn.append(_line([(LEFT, y(tick)), (WIDTH - RIGHT, y(tick))], "#dddddd", 1))
        drawn.append(_text(LEFT - 8, y(tick) + 4, f"{tick:g}", anchor="end"))
    drawn += [_text(x(nodes), HEIGHT - BOTTOM + 20, f"{nodes:,}".replace(",", " "), anchor="middle") for nodes in sizes]
    labels = _spread({name: y(points[max(points)]) for name, points in lines.items()})
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        places = [(x(nodes), y(ms)) for nodes, ms in sorted(points.items())]
        drawn.append(_line(places, colour, 2))
        drawn += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in places]
        drawn.append(_text(places[-1][0] + 10, labels[name] + 4, f"{name} {points[max(points)]:.3g}", colour=colour))
    return "\n".join([*drawn, "</svg>", ""])


def _spread(wanted: Mapping[str, float]) -> dict[str, float]:
    """Heights at least a line apart, from the top down."""
    placed: dict[str, float] = {}
    lowest = 0.0
    for name, height in sorted(wanted.items(), key=lambda item: item[1]):
        lowest = placed[name] = max(height, lowest + 16)
    return placed


def _line(places: list[tuple[float, float]], colour: str, width: int) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(a: float, b: float, words: str, *, anchor: str = "start", colour: str = "#333333") -> str:
    return f'<text x="{a:.1f}" y="{b:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'
