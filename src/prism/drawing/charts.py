"""Small SVG charts without dependencies: lines on log axes, bars, heat maps, Pareto charts.

Series differ in dash or hatch as well as in shade, so charts are readable in black and white; text is large enough
for half a page's width. Each chart has a title and a description for screen readers. A page may set the CSS
variables --paper, --ink, --grid, --band and --ink-0 to --ink-9 to use its own colours, such as those of a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 560
_LEFT, _RIGHT, _BOTTOM = 62, 16, 46
_TEXT = 13
_LONGEST = 36  # characters of a category before it is cut
_INKS = ("#111111", "#0b5fa5", "#c2410c", "#4d7c0f", "#7e22ce", "#0f766e", "#a16207", "#6b7280", "#be123c", "#1e40af")
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2 1 2 1 2", "12 4", "1 2", "8 2 2 2 2 2", "3 5", "6 6")
_FILLS = ("solid", "hatch", "dots", "empty", "cross", "grey")
_PAPER, _INK, _GRID = "var(--paper,#fff)", "var(--ink,#111)", "var(--grid,#d4d4d8)"
_BAND = 'style="fill:var(--band,#fbd5d5)"'


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded part of the x axis, and the reason."""

    start: float
    end: float
    name: str


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar per category; None leaves a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Maps a range of data to a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; values outside the range are put on its edge."""
        low, high, v = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, v = math.log10(low), math.log10(high), math.log10(v)
        share = (v - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def draw_lines(
    title: str, series: Sequence[Series], *, x_label: str, y_label: str, log_x: bool = False, steps: bool = False,
    x_ticks: Sequence[tuple[float, str]] | None = None, y_range: tuple[float, float] | None = None, height: int = 320,
    bands: Sequence[Band] = (),
) -> str:  # fmt: skip
    """Lines over one x axis, which may be logarithmic; `steps` draws stairs, as counts over time are."""
    drawn = [s for s in series if len(s.x)]
    legend, top = _legend([(s.name, _line_key(i)) for i, s in enumerate(drawn)]) if len(drawn) > 1 else ([], 38.0)
    xs = [v for s in drawn for v in s.x if not log_x or v > 0] or [1.0]
    ys = [v for s in drawn for v in s.y] or [0.0]
    x_axis = Axis(low=min(xs), high=max(xs), start=_LEFT, end=WIDTH - _RIGHT, log=log_x)
    low, high = y_range or (min(0.0, *ys), _round_up(max(ys)))
    y_axis = Axis(low=low, high=high, start=height - _BOTTOM, end=top)
    ticks = x_ticks or [
        (v, say_number(v))
        for v in (log_ticks(x_axis.low, x_axis.high) if log_x else even_ticks(x_axis.low, x_axis.high))
    ]
    shades = [
        _box(x_axis.at(b.start), top, max(x_axis.at(b.end) - x_axis.at(b.start), 2), y_axis.start - top, _BAND, b.name)
        for b in bands
    ]
    body = [*shades, *_frame(x_axis, y_axis, ticks, x_label, y_label), *legend]
    for index, line in enumerate(drawn):
        points = [(x_axis.at(x), y_axis.at(y)) for x, y in zip(line.x, line.y, strict=True) if not log_x or x > 0]
        shape = _path(points, steps=steps)
        body.append(f'<path d="{shape}" {_stroke(index)} fill="none"><title>{escape(line.name)}</title></path>')
    return _svg(title, f"{y_label} against {x_label}: " + ", ".join(s.name for s in drawn), height, body)


def draw_bars(
    title: str,
    categories: Sequence[str],
    groups: Sequence[Bars],
    *,
    unit: str,
    stacked: bool = False,
    high: float | None = None,
) -> str:
    """Horizontal bars, grouped or stacked, each labelled with its number."""
    legend, top = _legend([(g.name, _box_key(i)) for i, g in enumerate(groups)]) if len(groups) > 1 else ([], 34.0)
    categories = [c if len(c) <= _LONGEST else c[: _LONGEST - 1] + "…" for c in categories]
    left = 18 + 7.4 * max((len(c) for c in categories), default=1)
    bar = 15 if stacked else 13
    slot = bar + 11 if stacked else bar * len(groups) + 9
    height = int(top + slot * len(categories) + 38)
    peak = high or _round_up(max([sum(v or 0 for v in column) if stacked else max((v or 0 for v in column), default=0)
                                  for column in zip(*(g.values for g in groups), strict=True)] or [1.0]))  # fmt: skip
    axis = Axis(low=0, high=max(peak, 1e-9), start=left, end=WIDTH - (_RIGHT if stacked else 58))
    body = list(legend)
    for tick in even_ticks(0, axis.high):
        x = axis.at(tick)
        body.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4:.0f}" y2="{height - 36}" class="grid"/>')
        body.append(_text(x, height - 20, say_number(tick), "middle"))
    body.append(_text(WIDTH - 4, height - 4, unit, "end"))
    for row, name in enumerate(categories):
        y = top + row * slot
        body.append(_text(left - 6, y + (slot - 7) / 2 + 4, name, "end"))
        body += _stack(groups, row, axis, y, bar) if stacked else _side_by_side(groups, row, axis, y, bar)
    return _svg(title, f"{unit} for " + ", ".join(categories), height, body)


def draw_heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], *, unit: str
) -> str:
    """A grid shaded from white (none) to black (most); hovering over a cell shows its number."""
    left, top, cell_h = 44.0, 46.0, 24.0
    cell_w = (WIDTH - left - _RIGHT) / max(len(columns), 1)
    peak = max((v for line in values for v in line), default=0) or 1.0
    height = int(top + cell_h * len(rows) + 42)
    body = []
    for r, (name, line) in enumerate(zip(rows, values, strict=True)):
        body.append(_text(left - 6, top + r * cell_h + 16, name, "end"))
        for c, value in enumerate(line):
            hover = f"<title>{escape(f'{name} {columns[c]}: {say_number(value)} {unit}')}</title>"
            body.append(
                f'<rect x="{left + c * cell_w:.1f}" y="{top + r * cell_h:.1f}" width="{cell_w:.1f}" height="{cell_h}" '
                f'fill="{_shade(value / peak)}" style="stroke:{_PAPER}">{hover}</rect>'
            )
    every = max(1, math.ceil(len(columns) / 12))
    body += [
        _text(left + (c + 0.5) * cell_w, top + cell_h * len(rows) + 16, name, "middle")
        for c, name in enumerate(columns)
        if c % every == 0
    ]
    key_y = height - 16
    body.append(_text(left, height - 5, "0", "start"))
    for i in range(20):
        body.append(
            f'<rect x="{left + 14 + i * 8}" y="{key_y}" width="8" height="12" fill="{_shade((i + 0.5) / 20)}"/>'
        )
    body.append(_text(left + 180, height - 5, f"{say_number(peak)} {unit}", "start"))
    return _svg(title, f"{unit} by row and column, at most {say_number(peak)}", height, body)


def draw_pareto(title: str, categories: Sequence[str], values: Sequence[float], *, unit: str, most: int = 12) -> str:
    """The largest bars, largest first, each with the cumulative share after its name."""
    order = sorted(range(len(values)), key=lambda i: -values[i])
    total = sum(values) or 1.0
    running, labels = 0.0, []
    for i in order[:most]:
        running += values[i]
        labels.append(f"{categories[i][:26]} ({100 * running / total:.0f} %)")
    bars = Bars(unit, [values[i] for i in order[:most]])
    return draw_bars(title, labels, [bars], unit=f"{unit} (running share of all in brackets)")


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range, or the ends of the range if there is none."""
    powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    return [p for p in powers if low <= p <= high] or [low, high]


def even_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers, evenly spaced, over a range."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def say_number(value: float) -> str:
    """A number in few characters: 1.2 M, 30 k, 4.5."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == ' k' else size):.3g}{suffix}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def _frame(x_axis: Axis, y_axis: Axis, ticks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> list[str]:
    """Grid, ticks and labels of both axes; tick labels that would touch are left out."""
    parts, last = [], -1e9
    for value, label in ticks:
        if not x_axis.low <= value <= x_axis.high:
            continue
        x, half = x_axis.at(value), 3.7 * len(label)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_axis.end:.1f}" y2="{y_axis.start:.1f}" class="grid"/>')
        if x - half > last + 6:
            parts.append(_text(x, y_axis.start + 17, label, "middle"))
            last = x + half
    for value in even_ticks(y_axis.low, y_axis.high):
        y = y_axis.at(value)
        parts.append(f'<line x1="{x_axis.start}" x2="{x_axis.end}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(_text(x_axis.start - 6, y + 4, say_number(value), "end"))
    parts.append(f'<path d="M{x_axis.start} {y_axis.end:.1f}V{y_axis.start:.1f}H{x_axis.end}" class="axis"/>')
    parts.append(_text((x_axis.start + x_axis.end) / 2, y_axis.start + 38, x_label, "middle"))
    middle = (y_axis.start + y_axis.end) / 2
    turned = f'text-anchor="middle" transform="rotate(-90 14 {middle:.0f})"'
    parts.append(f'<text x="14" y="{middle:.0f}" {turned}>{escape(y_label)}</text>')
    return parts


def _legend(entries: Sequence[tuple[str, str]]) -> tuple[list[str], float]:
    """Keys above the plot, wrapped to its width, and where the plot begins."""
    parts, x, y = [], 8.0, 42.0
    for name, key in entries:
        width = 34 + 8 * len(name) + 14
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + 19
        parts.append(f'<g transform="translate({x:.0f} {y:.0f})">{key}{_text(32, 4, name, "start")}</g>')
        x += width
    return parts, y + 14


def _line_key(index: int) -> str:
    return f'<path d="M0 0H26" {_stroke(index)} fill="none"/>'


def _box_key(index: int) -> str:
    return f'<rect x="6" y="-7" width="18" height="12" {_fill(index)}/>'


def _stroke(index: int) -> str:
    dash = _DASHES[index % len(_DASHES)]
    ink = index % len(_INKS)
    paint = f'style="stroke:var(--ink-{ink},{_INKS[ink]})" stroke-width="2"'
    return paint + (f' stroke-dasharray="{dash}"' if dash else "")


def _fill(index: int) -> str:
    return f'fill="url(#{_FILLS[index % len(_FILLS)]})" style="stroke:{_INK}" stroke-width="1"'


def _stack(groups: Sequence[Bars], row: int, axis: Axis, y: float, bar: int) -> list[str]:
    parts, so_far = [], 0.0
    for index, group in enumerate(groups):
        value = group.values[row] or 0.0
        x, end = axis.at(so_far), axis.at(so_far + value)
        so_far += value
        parts.append(_box(x, y, end - x, bar, _fill(index), f"{group.name}: {say_number(value)}"))
        if end - x > 34:  # room for the number
            middle = (x + end) / 2
            parts.append(_box(middle - 15, y + 1.5, 30, bar - 3, f'style="fill:{_PAPER}" opacity="0.9"'))
            parts.append(_text(middle, y + bar - 3, say_number(round(value, 1)), "middle"))
    return parts


def _side_by_side(groups: Sequence[Bars], row: int, axis: Axis, y: float, bar: int) -> list[str]:
    parts = []
    for index, group in enumerate(groups):
        value = group.values[row]
        if value is None:
            continue
        end, at = axis.at(value), y + index * bar
        parts.append(_box(axis.start, at, end - axis.start, bar - 2, _fill(index)))
        parts.append(_text(end + 5, at + bar - 3, say_number(round(value, 2)), "start"))
    return parts


def _box(x: float, y: float, width: float, height: float, paint: str, hover: str = "") -> str:
    inside = f"<title>{escape(hover)}</title>" if hover else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" {paint}>{inside}</rect>'


def _path(points: Sequence[tuple[float, float]], *, steps: bool) -> str:
    parts = []
    for index, (x, y) in enumerate(points):
        if index == 0:
            parts.append(f"M{x:.1f} {y:.1f}")
        elif steps:
            parts.append(f"H{x:.1f}V{y:.1f}")
        else:
            parts.append(f"L{x:.1f} {y:.1f}")
    return "".join(parts)


def _shade(share: float) -> str:
    level = round(255 - 225 * min(max(share, 0.0), 1.0) ** 0.8)
    return f"#{level:02x}{level:02x}{min(255, level + 12):02x}"


def _round_up(value: float) -> float:
    """The next number at which an axis may end."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return float(next(m * power for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * power >= value * 0.999))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _pattern(name: str, size: int, ground: str, marks: str = "", turn: str = "") -> str:
    return (
        f'<pattern id="{name}" width="{size}" height="{size}" patternUnits="userSpaceOnUse"{turn}>'
        f'<rect width="{size}" height="{size}" style="fill:{ground}"/>{marks}</pattern>'
    )


_PATTERNS = "".join(
    (
        "<defs>",
        _pattern("solid", 4, "var(--ink,#1f2937)"),
        _pattern("hatch", 5, _PAPER, '<rect width="2" height="5" fill="#0b5fa5"/>', ' patternTransform="rotate(45)"'),
        _pattern("dots", 5, _PAPER, '<circle cx="2.5" cy="2.5" r="1.3" fill="#c2410c"/>'),
        _pattern("empty", 4, _PAPER),
        _pattern("cross", 6, _PAPER, '<path d="M0 0L6 6M6 0L0 6" stroke="#4d7c0f"/>'),
        _pattern("grey", 4, "#b6bcc6"),
        "</defs>",
    )
)


def _svg(title: str, description: str, height: int, body: Sequence[str]) -> str:
    style = (
        f"text{{font:{_TEXT}px system-ui,sans-serif;fill:{_INK}}}.grid{{stroke:{_GRID};stroke-width:1}}"
        f".axis{{stroke:{_INK};stroke-width:1.2;fill:none}}"
        ".head{font-weight:600;font-size:15px}"
    )
    heading = f'<text x="8" y="19" class="head">{escape(title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{style}</style>{_PATTERNS}"
        f'<rect width="{WIDTH}" height="{height}" style="fill:{_PAPER}"/>{heading}{"".join(body)}</svg>'
    )
