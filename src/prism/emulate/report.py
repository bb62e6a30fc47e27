"""A page that stands alone: the headline, where the time goes, memory, and the timeline of one iteration."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from prism.drawing.charts import Bars, draw_bars
from prism.emulate.emulation import Emulation
from prism.emulate.live import LiveRun
from prism.emulate.predict import Prediction

_COLOURS = {
    "compute": "#4c78a8", "host": "#9ecae9", "dp": "#f58518", "tp": "#e45756", "pp": "#72b7b2", "cp": "#b279a2",
    "ep": "#ff9da6", "embedding": "#9d755d", "unknown": "#eeca3b", "wait": "#d5d5d5",
}  # fmt: skip
_WIDTH, _LANE, _MOST_LANES, _MOST_SPANS, _MOST_BARS = 1100, 18, 40, 20_000, 16
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1140px;color:#222}
table{border-collapse:collapse}td,th{padding:.2em .9em .2em 0;text-align:left}td.n{text-align:right}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.6em}small{color:#666}svg{background:#fafafa}"""


def write_report(emulation: Emulation, spans: pl.DataFrame, path: Path, live: Sequence[LiveRun] = ()) -> None:
    """Write the page."""
    prediction = emulation.prediction
    launch = emulation.config.capture.launch
    command = html.escape(" ".join(launch.script))
    parts = [
        f"<h1>{launch.world_size:,} ranks: {_headline(prediction)}</h1>",
        f"<p><code>{command}</code> on {html.escape(prediction.cluster.name)}; compute measured on "
        f"{html.escape(next(iter(emulation.captures.values())).device)}, communication {prediction.communication}; "
        f"error band {prediction.error_band_pct:g} %.</p>",
        "<h2>Where the time goes</h2>",
        _draw_split(emulation),
        _table(("part", "share"), _split_rows(emulation)),
        "<h2>Memory</h2>",
        _draw_memory(emulation),
        _table(("class", "ranks", "peak allocated", "peak reserved", "communicators", "fits"), _memory_rows(emulation)),
    ]
    if live:
        parts.append("<h2>Live ranks</h2>")
        rows = ((r.rank, r.status, f"{r.median_ms:.2f} ms", f"{r.predicted_ms:.2f} ms", r.reason) for r in live)
        parts.append(_table(("rank", "ended", "iteration", "predicted", ""), rows))
    parts += ["<h2>One iteration</h2>", draw_timeline(spans)]
    body = "\n".join(parts)
    title = f"Prism: {launch.world_size} ranks"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>\n{body}\n")


def _headline(prediction: Prediction) -> str:
    if prediction.not_predicted:
        return f"step not predicted here ({prediction.not_predicted})"
    return f"{prediction.headline_ms:,.2f} ms per iteration"


def draw_timeline(spans: pl.DataFrame) -> str:
    """The last iteration of the first lanes, as SVG."""
    steps = spans.filter(pl.col("lane") == "steps")
    if steps.is_empty():
        return "<p>No iteration was solved.</p>"
    last = steps.sort("end_ns").row(-1, named=True)
    inside = spans.filter((pl.col("lane") != "steps") & (pl.col("end_ns") > last["start_ns"]))
    lanes = inside.select("rank", "lane").unique().sort("rank", "lane").head(_MOST_LANES)
    drawn = inside.join(lanes.with_row_index("row"), on=["rank", "lane"]).head(_MOST_SPANS)
    scale = (_WIDTH - 130) / max(last["end_ns"] - last["start_ns"], 1)
    height = lanes.height * _LANE + 24
    out = [f'<svg width="{_WIDTH}" height="{height}" font-size="11" font-family="system-ui">']
    for row, (rank, lane) in enumerate(lanes.iter_rows()):
        out.append(f'<text x="0" y="{row * _LANE + 13}">rank {rank} {html.escape(lane)}</text>')
    for span in drawn.iter_rows(named=True):
        start = max(span["start_ns"], last["start_ns"])
        left, width = 120 + (start - last["start_ns"]) * scale, max((span["end_ns"] - start) * scale, 0.3)
        colour = _COLOURS.get(span["kind"], "#999")
        label = html.escape(f"{span['name']}: {(span['end_ns'] - span['start_ns']) / 1e6:.3f} ms")
        out.append(
            f'<rect x="{left:.1f}" y="{span["row"] * _LANE + 2}" width="{width:.1f}" height="{_LANE - 4}" '
            f'fill="{colour}"><title>{label}</title></rect>'
        )
    legend = " ".join(f'<tspan fill="{c}">■ {k}</tspan>' for k, c in _COLOURS.items())
    out.append(f'<text x="120" y="{height - 6}">{legend}</text></svg>')
    return "\n".join(out)


def _draw_split(emulation: Emulation) -> str:
    """One bar: an iteration, as ranks spend it on average."""
    split, median = emulation.prediction.split, emulation.prediction.headline_ms
    parts = (
        ("compute", split.compute),
        ("exposed communication", split.exposed_communication),
        ("bubble", split.bubble),
    )
    return draw_bars(
        "An iteration", ["mean of all ranks"], [Bars(n, [s * median]) for n, s in parts], unit="ms", stacked=True
    )


def _draw_memory(emulation: Emulation) -> str:
    """Allocated and reserved memory of the first classes."""
    shown = emulation.prediction.memory[:_MOST_BARS]
    groups = [
        Bars("peak allocated", [m.peak_allocated_bytes / 2**30 for m in shown]),
        Bars("peak reserved", [m.peak_reserved_bytes / 2**30 for m in shown]),
    ]
    return draw_bars("Memory of a rank", [f"class {i}" for i in range(len(shown))], groups, unit="GiB")


def _split_rows(emulation: Emulation) -> Iterable[tuple[object, ...]]:
    split = emulation.prediction.split
    yield "compute", f"{split.compute:.1%}"
    yield "exposed communication", f"{split.exposed_communication:.1%}"
    yield "bubble", f"{split.bubble:.1%}"
    yield "communication hidden behind compute", f"{split.overlapped_communication:.1%}"


def _memory_rows(emulation: Emulation) -> Iterable[tuple[object, ...]]:
    for number, memory in enumerate(emulation.prediction.memory):
        fits = {True: "yes", False: "no", None: "GPU size not given"}[memory.fits]
        sizes = (memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.communicator_bytes)
        yield number, f"{len(memory.ranks)} from {memory.ranks[0]}", *(f"{b / 2**20:,.1f} MiB" for b in sizes), fits


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join(lines) + "</table>"
