"""An investigation as one HTML file: no scripts, no other files, so that it can be attached to a ticket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from prism.drawing.charts import Bars, draw_bars
from prism.evidence.fusion.investigation import Investigation

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #d0d7de}
.who{font-size:1.2rem}.who b{background:#ffe3e0;padding:.1rem .4rem;border-radius:.3rem}
.meter{background:#e6e9ed;border-radius:.3rem;height:.6rem;width:16rem}
.meter div{background:#c0392b;height:100%;border-radius:.3rem}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #e6e9ed;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.dim{color:#57606a}svg{max-width:100%;height:auto}
@media(prefers-color-scheme:dark){body{color:#e6e9ed;background:#15191e}.who b{background:#6b1f1a}
.meter{background:#30363d}td,th{border-color:#30363d}.dim{color:#9aa4af}}
"""
_MOST_RANKS = 64


def write_page(found: Investigation, path: Path, *, title: str) -> None:
    """Write the page of an investigation."""
    path.write_text(draw_page(found, title=title), encoding="utf-8")


def draw_page(found: Investigation, *, title: str) -> str:
    """The page as text; everything that comes from the job is escaped."""
    verdict = found.fused
    who = ", ".join(f"<b>{escape(s.type)} {escape(s.id)}</b>" for s in verdict.culprits) or "nobody can be named"
    parts = [
        f"<p class=dim>{escape(title)}</p><h1>{escape(verdict.what)}</h1>",
        f"<p class=who>{who}</p>",
        f"<div class=meter role=img aria-label='sure to {verdict.confidence:.0%}'>"
        f"<div style='width:{100 * verdict.confidence:.0f}%'></div></div>",
        f"<p>sure to {verdict.confidence:.0%}{_since(verdict.since_ns)}</p>",
    ]
    if verdict.advice:
        parts.append(f"<h2>What to do next</h2><p>{escape(verdict.advice)}</p>")
    rows = [[c.source, c.what, c.text, f"{c.confidence:.0%}"] for c in found.clues]
    parts.append("<h2>Evidence</h2>" + _table(["source", "what", "what it says", ">sure"], rows))
    if verdict.against or verdict.alternatives:
        others = ", ".join(f"{s.type} {s.id}" for s in verdict.alternatives[:20])
        parts.append("<h2>What speaks against it</h2>" + _list(verdict.against))
        parts.append(f"<p>also named: {escape(others)}</p>" if others else "")
    if found.profiles is not None:
        parts.append(_draw_profiles(found))
    if found.notes:
        parts.append("<h2>What is missing, and what to collect next time</h2>" + _list(found.notes))
    head = f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
    look = "<meta name=viewport content='width=device-width'>" + f"<style>{_STYLE}</style></head><body>"
    return head + look + "".join(parts) + "</body></html>"


def _draw_profiles(found: Investigation) -> str:
    assert found.profiles is not None
    job = found.profiles
    whole = job.breakdown.filter(pl.col("step").is_null()).sort("rank").head(_MOST_RANKS)
    kinds = {
        "compute": "compute_ns",
        "exposed communication": "exposed_ns",
        "copies": "copies_ns",
        "idle, host late": "idle_host_ns",
        "idle, other": "idle_other_ns",
    }
    bars = [Bars(name, (whole[column] / 1e6).to_list()) for name, column in kinds.items()]
    picture = draw_bars(
        "Where each rank's time went", [f"rank {r}" for r in whole["rank"]], bars, unit="ms", stacked=True
    )
    told = [picture]
    late = [[r["rank"], r["last"], r["calls"], f"{r['held_ns'] / 1e6:.2f}"] for r in job.lateness.head(8).to_dicts()]
    if late:
        told.append("<h2>Who came last</h2>" + _table([">rank", ">last to", ">of calls", ">others waited, ms"], late))
    rates = [
        [r["collective"], r["bytes"], r["calls"], f"{r['median_us']:.0f}", f"{r['bus_gbps'] or 0:.2f}"]
        for r in job.bandwidth.head(12).to_dicts()
    ]
    if rates:
        columns = ["collective", ">bytes", ">calls", ">median us", ">bus GB/s"]
        told.append("<h2>Bandwidth</h2>" + _table(columns, rates))
    return "<h2>Profiles</h2>" + "".join(told)


def _since(since_ns: int | None) -> str:
    if since_ns is None or not 0 < since_ns < 4 * 10**18:
        return ""
    return f", since {datetime.fromtimestamp(since_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; a column whose name begins with > holds numbers."""
    kind = [" class=n" if c.startswith(">") else "" for c in columns]
    head = "".join(f"<th{k}>{escape(c.lstrip('>'))}</th>" for c, k in zip(columns, kind, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{escape(str(v))}</td>" for v, k in zip(row, kind, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
