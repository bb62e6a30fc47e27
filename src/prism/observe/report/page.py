"""report.html: one self-contained page with pictures, for the person who acts on a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

import numpy as np
import polars as pl

from prism.drawing.charts import Band, Series, draw_lines
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.report.style import STYLE
from prism.observe.report.timeline_picture import choose_scene, draw_timeline
from prism.observe.report.topology_picture import INKS, draw_topology
from prism.observe.report.words import (
    MEANINGS,
    describe_culprit,
    describe_layout,
    describe_step,
    say_nothing_found,
    say_seconds,
    say_window,
    step_seconds,
)
from prism.records.findings import Finding

_PICTURED = 12  # jobs that get pictures, those with findings first
_LISTED = 50  # findings in the list


def render_report(diagnosis: Diagnosis, spans: pl.DataFrame) -> str:
    """The page as text; it loads nothing from anywhere. `spans` is the timeline of all jobs."""
    hosts = dict(diagnosis.traffic.endpoints.select("address", "host").iter_rows())
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>Prism: what the network showed</title><style>{STYLE}</style></head><body><main>",
        "<h1>What the network showed</h1>",
        _summary(diagnosis),
        "<h2>Findings</h2>",
        *_findings(diagnosis.findings),
        *_ports(diagnosis),
        "<h2>Jobs</h2>",
        _jobs_table(diagnosis),
        "<h2>Topology</h2><p>Hosts with their NICs; a colour for each job, as in the table. "
        "Numbers are those of the findings.</p>",
        f"<div class='scroll'>{draw_topology(diagnosis, diagnosis.findings)}</div>",
        *(part for job in _pictured(diagnosis) for part in _job_section(job, diagnosis, spans, hosts)),
        *_notes(diagnosis),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _summary(diagnosis: Diagnosis) -> str:
    messages = diagnosis.traffic.messages
    if messages.is_empty():
        return "<p>No flows between different endpoints were seen.</p>"
    begin, until = (int(v) for v in messages.select(a=pl.min("start_ns"), b=pl.max("end_ns")).row(0))
    when = "" if begin < 10**17 else f" from {datetime.fromtimestamp(begin / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    seen = (
        f"{messages.height:,} flows between {diagnosis.traffic.endpoints.height:,} endpoints over "
        f"{say_seconds((until - begin) / 1e9)}{when}: {_count(len(diagnosis.jobs), 'job')}, "
        f"{_count(len(diagnosis.findings), 'finding')}."
    )
    if not diagnosis.findings:
        told = say_nothing_found(diagnosis)
        return f"<p>{seen}</p><p class='verdict{' good' if told.clean else ''}'>{escape(told.text)}</p>"
    worst = diagnosis.findings[0]
    verdict = (
        f"Worst: {worst.kind.replace('_', ' ')} of {worst.job}, {describe_culprit(worst)}, "
        f"{worst.lost_gpu_seconds:,.0f} GPU-seconds lost."
    )
    return f"<p>{seen}</p><p class='verdict'>{escape(verdict)}</p>"


def _count(num: int, word: str) -> str:
    return f"{num:,} {word}" + ("" if num == 1 else "s")


def _findings(findings: Sequence[Finding]) -> Iterable[str]:
    if not findings:
        yield "<p>None.</p>"
        return
    yield "<ol class='findings'>"
    for finding in findings[:_LISTED]:
        yield (
            f"<li><h3>{escape(finding.kind.replace('_', ' '))}: {escape(describe_culprit(finding, most=8))}</h3>"
            f"<p class='facts'><span>{escape(finding.job)}</span><span>{say_window(finding.start_ns, finding.end_ns)}"
            f"</span><span><b>{finding.lost_gpu_seconds:,.0f}</b> GPU-seconds lost</span>"
            f"<span>{100 * finding.score:.0f} % sure</span></p>"
            f"<p>{escape(finding.evidence)}</p><p class='meaning'>{escape(MEANINGS[finding.kind])}.</p></li>"
        )
    yield "</ol>"
    if len(findings) > _LISTED:
        yield f"<p>{len(findings) - _LISTED:,} more in diagnosis.json.</p>"


def _ports(diagnosis: Diagnosis) -> Iterable[str]:
    """Ports that lost packets or were full, and how many others were counted."""
    if not diagnosis.ports:
        return
    troubled = [port for port in diagnosis.ports if port.is_troubled]
    yield f"<h2>Switch ports</h2><p>{_count(len(diagnosis.ports), 'port')} with counters, {len(troubled):,} of them "
    yield "lost packets or used 90 % of their speed or more. Counters do not say whose packets were lost.</p>"
    if troubled:
        yield "<ul>"
        yield from (f"<li>{escape(port.describe())}</li>" for port in troubled[:_LISTED])
        yield "</ul>"


def _jobs_table(diagnosis: Diagnosis) -> str:
    head = ("", "job", "hosts", "endpoints", "layout", "sure", "steps", "step time", "step time over the window",
            "findings", "GPU-seconds lost")  # fmt: skip
    rows = []
    for i, job in enumerate(diagnosis.jobs):
        own = [f for f in diagnosis.findings if f.job == job.id]
        cells = (
            f"{len(job.hosts):,}", f"{len(job.endpoints):,}", escape(describe_layout(job)),
            f"{100 * job.layout.confidence:.0f} %", f"{job.steps.height:,}", escape(describe_step(job)),
            _spark(step_seconds(job)), f"{len(own):,}" if own else "-",
            f"{max(f.lost_gpu_seconds for f in own):,.0f}" if own else "-",
        )  # fmt: skip
        swatch = f"<td><i class='swatch job-{i % INKS}'></i></td>"
        rows.append(f"<tr>{swatch}<th scope='row'>{escape(job.id)}</th>{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    if not rows:
        return "<p>No training job was recognised.</p>"
    top = "".join(f"<th scope='col'>{name}</th>" for name in head)
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _spark(values: Sequence[float]) -> str:
    """A small line from zero to the longest step."""
    if len(values) < 2:
        return ""
    means = [float(part.mean()) for part in np.array_split(np.array(values), min(60, len(values)))]
    top = max(means) or 1.0
    points = " ".join(
        f"{2 + 116 * i / max(len(means) - 1, 1):.1f},{21 - 18 * v / top:.1f}" for i, v in enumerate(means)
    )
    return f"<svg class='spark' viewBox='0 0 120 24' width='120' height='24'><polyline points='{points}'/></svg>"


def _pictured(diagnosis: Diagnosis) -> list[JobDiagnosis]:
    """Jobs that get a section: those with findings, the worst first, then the largest."""
    order = {f.job: i for i, f in reversed(list(enumerate(diagnosis.findings)))}
    return sorted(diagnosis.jobs, key=lambda j: order.get(j.id, len(order) + len(diagnosis.findings)))[:_PICTURED]


def _job_section(job: JobDiagnosis, diagnosis: Diagnosis, spans: pl.DataFrame, hosts: dict[str, str]) -> Iterable[str]:
    own = [f for f in diagnosis.findings if f.job == job.id]
    yield f"<h2>{escape(job.id)}: {escape(describe_layout(job))}</h2>"
    yield f"<div class='figure'>{_plot_steps(job, own)}</div>" if job.steps.height else "<p>No steps are visible.</p>"
    scene = choose_scene(job, own, hosts)
    if scene is not None:
        own_spans = spans.filter(pl.col("job") == job.id)
        yield "<p>Some of its endpoints: work above, communication below. Those that are blamed are in red.</p>"
        yield f"<div class='scroll'>{draw_timeline(job, own_spans, scene, hosts)}</div>"


def _plot_steps(job: JobDiagnosis, findings: Sequence[Finding]) -> str:
    """Length of every step over time, with the windows of findings shaded."""
    begin = int(job.steps["start_ns"][0])
    lengths = step_seconds(job)
    at = [(ns - begin) / 1e9 for ns in job.steps["start_ns"].to_list()]
    low, high = min(lengths), max(lengths)
    # Where steps hardly differ a plot from zero would show a flat line.
    base = 0.0 if high > 1.5 * low else max(0.0, low - (high - low) - 0.05 * low)
    bands = [
        Band((f.start_ns - begin) / 1e9, (f.end_ns - begin) / 1e9, f"{f.kind}: {describe_culprit(f)}") for f in findings
    ]
    return draw_lines(
        f"{job.id}: length of its steps", [Series(job.id, at, lengths)], x_label="seconds since its first step",
        y_label="seconds", y_range=(base, high * 1.05 or 1.0), height=260, bands=bands,
    )  # fmt: skip


def _notes(diagnosis: Diagnosis) -> Iterable[str]:
    if diagnosis.notes:
        yield "<h2>About the data</h2><ul>"
        yield from (f"<li>{escape(note)}</li>" for note in diagnosis.notes)
        yield "</ul>"
