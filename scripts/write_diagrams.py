"""Write the diagrams of docs/architecture.md as SVG: the packages in their layers, and the life of a record.

The layers are read from the import contract in pyproject.toml, so the picture cannot disagree with what is checked.
"""

from __future__ import annotations

import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images"
WIDTH, ROW, GAP = 980, 64, 14
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#1f2937}.s{font-size:11px;fill:#6b7280}"
    "rect{fill:#eef2ff;stroke:#6366f1;rx:6}.l{fill:none;stroke:#d1d5db}path{stroke:#6b7280;fill:none;"
    "marker-end:url(#a)}@media(prefers-color-scheme:dark){text{fill:#e5e7eb}.s{fill:#9ca3af}rect{fill:#1e1b4b}"
    ".l{fill:none;stroke:#374151}}</style><defs><marker id='a' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
    "markerHeight='7' orient='auto'><path d='M0 0L8 4L0 8z' style='fill:#6b7280;stroke:none;marker-end:none'/>"
    "</marker></defs>"
)
WHAT = {
    "cli": "commands", "serve": "dashboard", "lab": "known truth, the tour",
    "datacenter": "characterize, predict, place", "recover": "restart, save", "observe": "flows to findings",
    "evidence": "traces, logs, one verdict", "emulate": "virtual peers", "evaluate": "scores",
    "simulate": "graph, costs", "collect": "reads flows", "drawing": "charts", "records": "tables and files",
    "machine": "files, processes",
}  # fmt: skip
LIFE = (
    ("exporter", "a switch or host writes a record", "IPFIX, sFlow, pcap, nfdump, CSV"),
    ("collect/", "recognised by content, units made equal, checked", "FLOWS"),
    ("observe/traffic/", "records that belong together become messages", "messages"),
    ("observe/jobs/", "endpoints that talk are one job", "jobs"),
    ("observe/parallelism/", "pairs and groups get a kind, the job its degrees", "Layout"),
    ("observe/steps/", "the job's time is cut into steps", "steps"),
    ("observe/findings/", "what is slow, who is the culprit, what it costs", "FINDINGS"),
    ("observe/timeline/, report/", "drawn as spans and told in words", "SPANS, report.html, --json"),
    ("serve/, evidence/fusion/", "shown beside everything else known of the job", "pages, verdict"),
)


def read_layers() -> list[list[str]]:
    """The packages by layer, top first, as the import contract has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    named = [[name.strip(" ()") for name in layer.split("|")] for layer in layers]
    return [[n for n in layer if n in WHAT] for layer in named if any(n in WHAT for n in layer)]


def draw_layers() -> str:
    """One row per layer; a package may import those in the rows below."""
    layers = read_layers()
    parts = []
    for row, layer in enumerate(layers):
        top = 10 + row * (ROW + GAP)
        parts.append(f"<rect class='l' x='4' y='{top - 4}' width='{WIDTH - 8}' height='{ROW + 2}'/>")
        wide = (WIDTH - 20 - GAP * (len(layer) - 1)) / len(layer)
        for at, name in enumerate(layer):
            left = 10 + at * (wide + GAP)
            parts.append(f"<rect x='{left:.0f}' y='{top}' width='{wide:.0f}' height='{ROW - 6}'/>")
            parts.append(_text(left + wide / 2, top + 24, name) + _text(left + wide / 2, top + 44, WHAT[name], "s"))
    height = 10 + len(layers) * (ROW + GAP)
    note = _text(WIDTH / 2, height + 8, "imports go downwards only; make check refuses others", "s")
    return _svg(height + 20, "Packages of Prism by layer", [*parts, note])


def draw_life() -> str:
    """One box per stage with what it does; beside the arrow, what it hands on."""
    parts = []
    for row, (place, does, gives) in enumerate(LIFE):
        top = 8 + row * (ROW + 6)
        parts.append(f"<rect x='10' y='{top}' width='560' height='40'/>")
        parts.append(_text(24, top + 17, place, "", "start") + _text(24, top + 33, does, "s", "start"))
        if row + 1 < len(LIFE):
            parts.append(f"<path d='M290 {top + 40}V{top + ROW + 4}'/>")
        parts.append(_text(590, top + 25, gives, "", "start"))
    return _svg(len(LIFE) * (ROW + 6), "The life of a flow record", parts)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' class='{kind}' text-anchor='{anchor}'>{escape(text)}</text>"


def _svg(height: float, title: str, parts: list[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' role='img'>"
    return f"{head}<title>{title}</title>{STYLE}\n" + "\n".join(parts) + "\n</svg>\n"


def main(arguments: list[str]) -> int:
    """Write both files, or compare them with `--check`."""
    made = {"packages.svg": draw_layers(), "life-of-a-record.svg": draw_life()}
    if "--check" in arguments:
        old = [n for n, svg in made.items() if not (FOLDER / n).exists() or (FOLDER / n).read_text() != svg]
        print(*(f"docs/images/{name} is out of date; run: make docs" for name in old), sep="\n", end="")
        return int(bool(old))
    for name, svg in made.items():
        (FOLDER / name).write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
