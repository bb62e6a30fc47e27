"""The Evaluation page: progress, scores over steps, and where each trial ran."""

from __future__ import annotations

import polars as pl

from prism.serve.shapes.evaluation import (
    EvaluationDocument,
    EvaluationRow,
    EvaluationsDocument,
    PhaseShare,
    ScoreRow,
)
from prism.serve.snapshot import Snapshot
from prism.serve.sources.evaluated import Evaluated
from prism.serve.views.jobs import key_of

_MOST_SCORES = 5_000


def describe_evaluations(snapshot: Snapshot) -> EvaluationsDocument:
    """The list."""
    rows = [describe_row(snapshot, source) for source in snapshot.all_of(Evaluated)]
    return EvaluationsDocument(evaluations=tuple(sorted(rows, key=lambda row: -int(row.updated_ns))))


def describe_evaluation(snapshot: Snapshot, key: str) -> EvaluationDocument | None:
    """One evaluation; None where there is none of that key."""
    source = find_evaluated(snapshot, key)
    if source is None:
        return None
    scores = _list_scores(source.scores)
    return EvaluationDocument(
        evaluation=describe_row(snapshot, source),
        progress=source.progress,
        makespan_s=source.makespan_s,
        lower_bound_s=source.lower_bound_s,
        scores=tuple(scores[:_MOST_SCORES]),
        scores_left_out=max(0, len(scores) - _MOST_SCORES),
        regressions=source.regressions,
        broken=source.broken,
        phases=tuple(_share_phases(source.phases)),
        num_workers=source.phases.select("node", "worker").n_unique() if len(source.phases) else 0,
        origin_ns=str(origin_of_phases(source.phases)),
    )


def find_evaluated(snapshot: Snapshot, key: str) -> Evaluated | None:
    """The evaluation of a key."""
    found = (source for source in snapshot.all_of(Evaluated) if key_of(source.place, "trials") == key)
    return next(found, None)


def origin_of_phases(phases: pl.DataFrame) -> int:
    """The moment that times of its chart count from."""
    return int(phases["start_ns"][0]) if len(phases) else 0


def describe_row(snapshot: Snapshot, source: Evaluated) -> EvaluationRow:
    """An evaluation as a row."""
    progress = source.progress
    return EvaluationRow(
        key=key_of(source.place, "trials"),
        place=source.place,
        state=progress.state,
        done=progress.done,
        running=progress.running,
        waiting=progress.waiting,
        failed=progress.failed,
        time_left_s=progress.time_left_s,
        stale=any(s.state == "stale" and (s.path.rpartition("/")[0] or ".") == source.place for s in snapshot.states),
        updated_ns=str(source.updated_ns),
    )


def _list_scores(scores: pl.DataFrame) -> list[ScoreRow]:
    ordered = scores.sort("dataset", "metric", "step", "checkpoint", nulls_last=True)
    changed = ordered.with_columns(pl.col("value").diff().over("dataset", "metric").alias("change"))
    names = ("checkpoint", "step", "dataset", "metric", "value", "change", "higher_is_better")
    return [
        ScoreRow(**row, better=_is_better(row["change"], row["higher_is_better"]))
        for row in changed.select(names).iter_rows(named=True)
    ]


def _is_better(change: float | None, higher_is_better: bool | None) -> bool | None:
    if not change or higher_is_better is None:
        return None
    return (change > 0) == higher_is_better


def _share_phases(phases: pl.DataFrame) -> list[PhaseShare]:
    seconds = (pl.col("end_ns") - pl.col("start_ns")) / 1e9
    shares = phases.group_by("phase").agg(
        pl.len().alias("count"), seconds.sum().alias("total"), seconds.median().alias("median")
    )
    return [
        PhaseShare(phase=phase, count=count, total_s=total, median_s=median)
        for phase, count, total, median in shares.sort("total", descending=True).iter_rows()
    ]
