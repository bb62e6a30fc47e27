"""The stand-alone report: one HTML page without scripts or outside files, and the numbers behind it as CSV."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from prism.datacenter.characterize.characterization import Characterization, Plan
from prism.datacenter.characterize.comparison import Comparison, say
from prism.datacenter.characterize.document import write_document
from prism.datacenter.characterize.figures import Figure, draw_figures, draw_occupancy, tabulate_comparison
from prism.datacenter.characterize.first_page import (
    HEADS,
    action_rows,
    change_rows,
    loss_rows,
    node_rows,
    tabulate_first_page,
    trend_rows,
    use_rows,
    wait_rows,
)
from prism.datacenter.characterize.generator import NOTICE
from prism.errors import BadFileError

_STYLE = """
:root{color-scheme:light}
body{font:16px/1.5 system-ui,sans-serif;color:#111;background:#fff;max-width:1180px;margin:0 auto;padding:1rem}
h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.25rem;border-bottom:2px solid #111;margin-top:2rem}
.banner{border:3px double #111;padding:.5rem .8rem;font-weight:600}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:1rem;align-items:start}
figure{margin:0;border:1px solid #c4c4cc;padding:.6rem;break-inside:avoid;overflow-x:auto}
figure svg{width:100%;height:auto;max-width:640px}
figcaption{font-size:.9rem;margin-top:.3rem}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid #c4c4cc;padding:.18rem .6rem;text-align:right}
th:first-child,td:first-child{text-align:left}thead th{border-bottom:2px solid #111}
.wide{overflow-x:auto}a{color:#0b4a86}
.full{grid-column:1/-1}td.words,th.words{text-align:left}
@media print{body{max-width:none}a{color:#111}}
"""
_SHOWN_ROWS = 200


def write_report(reports: Sequence[Characterization], comparison: Comparison, folder: Path) -> list[Path]:
    """Write report.html, report.json and csv/ into a folder; returns what was written."""
    drawn = [(report, draw_figures(report)) for report in reports]
    table = tabulate_comparison(comparison)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / "report.html", folder / "report.json"]
        written[0].write_text(render_page(drawn, comparison, table), encoding="utf-8")
        document = write_document(reports, comparison)
        written[1].write_text(json.dumps(document, allow_nan=False, default=str) + "\n", encoding="utf-8")
        places = _name_folders(reports)
        for (report, figures), place in zip(drawn, places, strict=True):
            target = folder / "csv" / place
            target.mkdir(parents=True, exist_ok=True)
            for figure in figures:
                figure.table.write_csv(target / f"{figure.name}.csv")
                written.append(target / f"{figure.name}.csv")
            for name, numbers in tabulate_first_page(report).items():
                numbers.write_csv(target / f"{name}.csv")
                written.append(target / f"{name}.csv")
        table.table.write_csv(folder / "csv" / "comparison.csv")
    except OSError as error:
        raise BadFileError(
            f"{error.filename or folder}: cannot be written ({error.strerror}); choose another --output"
        ) from None
    return [*written, folder / "csv" / "comparison.csv"]


def render_page(
    drawn: Sequence[tuple[Characterization, Sequence[Figure]]], comparison: Comparison, table: Figure
) -> str:
    """The page as text."""
    names = ", ".join(report.name for report, _ in drawn)
    banner = f'<p class="banner">SYNTHETIC DATA: {escape(NOTICE)}</p>' if any(r.synthetic for r, _ in drawn) else ""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>Workload of {escape(names)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>Workload of {escape(names)}</h1>{banner}",
        *(part for report, _ in drawn for part in _render_first_page(report)),
        *(part for report, figures in drawn for part in _render_cluster(report, figures)),
        "<h2>Beside other datacenters</h2><ul>",
        *(f"<li>{escape(line)}</li>" for line in comparison.differences),
        f"</ul><div class='wide'>{_table(table.table, 40)}</div><p>{escape(table.caption)} {_download(table)}</p>",
        "</main></body></html>",
    ]
    return "\n".join(parts)


def summary_rows(report: Characterization) -> list[tuple[str, str]]:
    """The summary as text and numbers, for the page and the terminal."""
    s, known = report.study.summary, report.study.reliability
    rows = [
        ("jobs (GPU / CPU)", f"{s.jobs:,} ({s.gpu_jobs:,} / {s.cpu_jobs:,})"),
        ("GPU-hours", f"{s.gpu_hours:,.0f}"),
        (
            "GPUs per GPU job, mean / median / max",
            f"{say(s.mean_gpus, 'GPUs')} / {say(s.median_gpus, 'GPUs')} / {say(s.max_gpus, 'GPUs')}",
        ),
        (
            "duration, mean / median / p90",
            f"{say(s.duration_s.mean, 's')} / {say(s.duration_s.median, 's')} / {say(s.duration_s.p90, 's')}",
        ),
        (
            "queueing, mean / median / p90",
            f"{say(s.queue_s.mean, 's')} / {say(s.queue_s.median, 's')} / {say(s.queue_s.p90, 's')}",
        ),
        ("GPU-hours per failed job", f"{known.gpu_hours_per_failure:,.1f}" if known.gpu_hours_per_failure else "-"),
    ]
    if known.gpu_hours_per_infrastructure_failure:
        rows.append(("GPU-hours per infrastructure failure", f"{known.gpu_hours_per_infrastructure_failure:,.0f}"))
    if capacity := report.study.capacity:
        size = f"{capacity.gpus:,.0f} GPUs" + ("" if capacity.gpus_known else " (peak in use)")
        rows.append(("allocated on average", f"{capacity.allocated_pct:.1f} % of {size}"))
        rows.append(("idle while jobs waited", f"{capacity.idle_while_waiting_gpu_hours:,.0f} GPU-hours"))
    return rows


def advice_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Checkpoint advice as text: GPUs, time between failures, best interval, Young's, goodput."""
    return [
        (
            f"{a.gpus:,}",
            f"{a.mtbf_hours:,.1f} h",
            f"{a.interval_s / 60:,.1f} min",
            f"{a.young_interval_s / 60:,.1f} min",
            f"{a.goodput_pct:.1f} %",
        )
        for a in plan.advice
    ]


ADVICE_HEAD = ("job GPUs", "time between failures", "best interval", "Young's interval", "expected goodput")


def _render_first_page(report: Characterization) -> Iterable[str]:
    """GPU-hours bought, used and lost; actions; waiting users; the trend."""
    parts = (
        ("GPU-hours bought, and what they were used for", "use", use_rows(report)),
        ("Lost, and to what", "loss", loss_rows(report)),
        ("What to do first", "action", action_rows(report)),
        ("Nodes with most failed jobs", "node", node_rows(report)),
        ("Users whose jobs waited most", "wait", wait_rows(report)),
        ("Weeks up to the export", "trend", trend_rows(report)),
        ("What changed since the week before", "change", change_rows(report)),
    )
    yield f"<section id='{_slug(report.name)}-first-page'><h2>{escape(report.name)}: the first page</h2>"
    for words, name, rows in parts:
        if not rows:
            continue
        yield f"<h3>{escape(words)}</h3><div class='wide'>{_words_table(HEADS[name], rows)}</div>"
        if name == "action":
            yield "<p>Worth is the most that can be saved over a span as long as this one; savings overlap.</p>"
        if name == "loss" and (drawn := draw_occupancy(report)) is not None:
            yield f"<figure>{drawn.svg}<figcaption>{escape(drawn.caption)} {_download(drawn)}</figcaption></figure>"
    yield "</section>"


def _words_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns are words, or numbers where the head begins with '>'."""
    kinds = ["" if head.startswith(">") else " class='words'" for head in heads]
    top = "".join(f"<th scope='col'{k}>{escape(h.removeprefix('>'))}</th>" for h, k in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{_indent(cell)}</td>" for cell, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _indent(cell: str) -> str:
    return escape(cell).replace("  ", "&emsp;")


def _render_cluster(report: Characterization, figures: Sequence[Figure]) -> Iterable[str]:
    trace = report.trace
    yield f"<h2>{escape(report.name)}: the workload in figures</h2>"
    digest = f", SHA-256 {trace.sha256[:16]}…" if trace.sha256 else ""
    what = f"{trace.path.name}: {trace.columns.format} columns, {report.intake.rows:,} rows{digest}."
    yield f"<p>{escape(what)}</p>"
    yield "<table><tbody>" + "".join(
        f"<tr><th scope='row'>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in summary_rows(report)
    )
    yield "</tbody></table><h3>What to know about this trace</h3><ul>"
    yield from (f"<li>{escape(note)}</li>" for note in report.notes)
    yield "</ul><div class='figures'>"
    for figure in figures:
        shown = figure.svg or f"<div class='wide'>{_table(figure.table, _SHOWN_ROWS)}</div>"
        wide = "" if figure.svg else " class='full'"
        # Patterns are the same in every chart of a page, so that sharing their ids between charts does no harm.
        caption = f"<figcaption>{escape(figure.caption)} {_download(figure)}</figcaption>"
        yield f"<figure{wide} id='{_slug(report.name)}-{figure.name}'>{shown}{caption}</figure>"
    yield "</div>"
    yield from _render_lengths(report)
    if report.plan:
        plan = report.plan
        yield "<h3>Checkpoint interval</h3>"
        yield (
            f"<p>Failure rate: one per {plan.gpu_hours_per_failure:,.0f} GPU-hours, from {escape(plan.basis)}. "
            f"A save stops training for C = {plan.costs.save_s:g} s, a restart takes R = {plan.costs.restart_s:g} s; "
            f"M is the time between failures. {escape(plan.formula)}.</p>"
        )
        yield _rows_table(ADVICE_HEAD, advice_rows(plan))


def _render_lengths(report: Characterization) -> Iterable[str]:
    """The distributions as numbers."""
    kept = report.study.lengths.filter(pl.col("by") != "all").select(
        pl.col("measure").str.strip_suffix("_s").alias("of"),
        "by",
        "group",
        "count",
        "mean",
        "median",
        "p75",
        "p90",
        "p99",
        "max",
    )
    yield "<h3>Durations and queueing in numbers (seconds, GPU jobs)</h3>"
    yield f"<div class='wide'>{_table(kept, _SHOWN_ROWS)}</div>"


def _table(frame: pl.DataFrame, most: int) -> str:
    body = [[_cell(value) for value in row] for row in frame.head(most).iter_rows()]
    more = f"<p>{frame.height - most:,} more rows in the CSV.</p>" if frame.height > most else ""
    return _rows_table(frame.columns, body) + more


def _rows_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _download(figure: Figure) -> str:
    data = quote(figure.table.write_csv())
    return f'<a download="{figure.name}.csv" href="data:text/csv;charset=utf-8,{data}">numbers as CSV</a>'


def _name_folders(reports: Sequence[Characterization]) -> list[str]:
    """A folder per report; reports of one name get numbers."""
    names: list[str] = []
    for report in reports:
        slug, count = _slug(report.name), 2
        while slug in names:
            slug, count = f"{_slug(report.name)}-{count}", count + 1
        names.append(slug)
    return names


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "cluster"
