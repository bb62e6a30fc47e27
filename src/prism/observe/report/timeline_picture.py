"""The timeline picture of a job: a few ranks over a few steps, drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import polars as pl

from prism.observe.diagnosis import JobDiagnosis
from prism.observe.report.words import say_seconds
from prism.records.findings import Finding

WIDTH = 1080
_LEFT, _RIGHT, _TOP, _ROW = 190, 10, 46, 24
_RANKS = 12
_STEPS = 3
_JOIN_PX = 0.4  # bars closer than this are drawn as one

LANES = {
    "compute": 0, "wait": 0, "host": 0,
    "dp": 1, "pp": 1, "tp": 1, "cp": 1, "ep": 1, "embedding": 1, "storage": 1, "unknown": 1,
}  # fmt: skip
"""The half of a rank's row in which each kind of span is drawn: work above, communication below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What of a job is drawn: some ranks, from when to when."""

    ranks: tuple[int, ...]
    blamed: frozenset[int]
    start_ns: int
    end_ns: int

    def at(self, ns: int) -> float:
        """The pixel of a moment."""
        share = (ns - self.start_ns) / max(self.end_ns - self.start_ns, 1)
        return _LEFT + min(max(share, 0.0), 1.0) * (WIDTH - _LEFT - _RIGHT)


def choose_scene(job: JobDiagnosis, findings: Sequence[Finding], hosts: dict[str, str]) -> Scene | None:
    """The step before the worst finding and those after it; else steps from the middle. Ranks blamed come first."""
    if job.steps.is_empty():
        return None
    starts, ends = job.steps["start_ns"].to_numpy(), job.steps["end_ns"].to_numpy()
    worst = findings[0] if findings else None
    onset = int(np.searchsorted(starts, worst.start_ns, side="right")) - 1 if worst else len(starts) // 2
    first = min(max(onset - 1, 0), max(len(starts) - _STEPS, 0))
    last = min(first + _STEPS, len(starts)) - 1
    blamed = _blame(job, worst, hosts) if worst else []
    even = np.linspace(0, len(job.endpoints) - 1, min(_RANKS, len(job.endpoints))).round().astype(int).tolist()
    ranks = list(dict.fromkeys([*blamed[: _RANKS // 3], *even]))[:_RANKS]
    stages = job.layout.stages
    ranks.sort(key=lambda r: (stages.get(job.endpoints[r], 0), r))
    return Scene(ranks=tuple(ranks), blamed=frozenset(blamed), start_ns=int(starts[first]), end_ns=int(ends[last]))


def _blame(job: JobDiagnosis, finding: Finding, hosts: dict[str, str]) -> list[int]:
    """Ranks that a finding names, by their address, host or stage."""
    kind, named = finding.culprit.type, set(finding.culprit.id.replace(">", ",").split(","))
    if kind == "stage":
        return [i for i, a in enumerate(job.endpoints) if str(job.finding_stages.get(a)) in named]
    return [i for i, a in enumerate(job.endpoints) if a in named or (kind == "host" and hosts.get(a) in named)]


def draw_timeline(job: JobDiagnosis, spans: pl.DataFrame, scene: Scene, hosts: dict[str, str]) -> str:
    """The picture as SVG; `hosts` maps addresses to host names, `spans` are the job's."""
    inside = spans.filter(
        pl.col("rank").is_in(list(scene.ranks))
        & (pl.col("end_ns") > scene.start_ns)
        & (pl.col("start_ns") < scene.end_ns)
    ).with_columns(pl.col("kind").cast(pl.String))
    height = _TOP + _ROW * len(scene.ranks) + 34
    parts = [*_draw_legend(sorted(set(inside["kind"]) & set(LANES), key=list(LANES).index))]
    for row, rank in enumerate(scene.ranks):
        y = _TOP + row * _ROW
        address = job.endpoints[rank]
        mark = " blamed" if rank in scene.blamed else ""
        label = f"{hosts.get(address, '')} {address}".strip()
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end" class="rank{mark}">{escape(label)}</text>')
        parts += _draw_rank(inside.filter(pl.col("rank") == rank), scene, y, label)
    parts += _draw_steps(job, scene, _TOP + _ROW * len(scene.ranks))
    title = f"Timeline of {job.id}: {len(scene.ranks)} of {len(job.endpoints)} endpoints"
    return (
        f'<svg class="wide-picture" role="img" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _draw_legend(kinds: Sequence[str]) -> list[str]:
    parts, x = [], float(_LEFT)
    for kind in kinds:
        parts.append(f'<rect x="{x:.0f}" y="8" width="16" height="12" class="k-{kind}"/>')
        parts.append(f'<text x="{x + 21:.0f}" y="19">{kind}</text>')
        x += 36 + 8 * len(kind)
    return parts


def _draw_rank(spans: pl.DataFrame, scene: Scene, y: int, label: str) -> list[str]:
    """One path for each kind of span: a rank has thousands of spans, and a picture a thousand pixels."""
    parts = []
    half = (_ROW - 4) / 2
    for kind, lane in LANES.items():
        bars = _pixels(spans.filter(pl.col("kind") == kind), scene)
        if len(bars):
            top = y + 1 + lane * half
            shape = "".join(
                f"M{a:.1f} {top:.0f}h{max(b - a, 0.5):.1f}v{half:.0f}h{-max(b - a, 0.5):.1f}z" for a, b in bars
            )
            parts.append(f'<path d="{shape}" class="k-{kind}"><title>{escape(f"{label}: {kind}")}</title></path>')
    return parts


def _pixels(spans: pl.DataFrame, scene: Scene) -> list[tuple[float, float]]:
    """Where spans lie, those that touch or nearly touch joined."""
    ordered = spans.sort("start_ns")
    bars: list[tuple[float, float]] = []
    for start, end in ordered.select("start_ns", "end_ns").iter_rows():
        a, b = scene.at(start), scene.at(end)
        if bars and a - bars[-1][1] < _JOIN_PX:
            bars[-1] = (bars[-1][0], max(b, bars[-1][1]))
        else:
            bars.append((a, b))
    return bars


def _draw_steps(job: JobDiagnosis, scene: Scene, bottom: int) -> list[str]:
    """Lines between steps, and each step's number and length below."""
    shown = job.steps.filter((pl.col("end_ns") > scene.start_ns) & (pl.col("start_ns") < scene.end_ns))
    parts = []
    for index, start, end in shown.select("index", "start_ns", "end_ns").iter_rows():
        for moment in (start, end):
            x = scene.at(moment)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{bottom + 4}" class="edge"/>')
        words = f"step {index}: {say_seconds((end - start) / 1e9)}"
        middle = (scene.at(start) + scene.at(end)) / 2
        parts.append(f'<text x="{middle:.0f}" y="{bottom + 20}" text-anchor="middle">{words}</text>')
    return parts
