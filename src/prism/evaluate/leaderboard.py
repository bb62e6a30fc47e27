"""The results of an evaluation as people read them: a table, a CSV file, a JSON document, and a plot over steps."""

from __future__ import annotations

import csv
import io
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from prism.drawing.charts import Band, Series, draw_lines
from prism.evaluate.regressions import Regression, Score, find_regressions, lower_is_better
from prism.evaluate.schedule.trials import Checkpoint, Dataset

COLUMNS = (
    "checkpoint", "step", "dataset", "metric", "value", "stderr", "samples", "higher_is_better", "task_version", "data",
    "model",
)  # fmt: skip
_WORD_LETTERS = 12  # of a hash, in the table
_HASH_LETTERS = 64  # of SHA-256
_STDERR = "_stderr"  # lm-evaluation-harness names the error of metric,filter so: metric_stderr,filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """Every score, checkpoints by step, and what got worse."""

    scores: tuple[Score, ...]
    regressions: tuple[Regression, ...]


def make_leaderboard(
    checkpoints: Sequence[Checkpoint],
    datasets: Sequence[Dataset],
    metrics: Mapping[tuple[str, str], Mapping[str, float]],
) -> Leaderboard:
    """Order the metrics of (checkpoint, dataset); an entry named like another with `_stderr` is its standard error."""
    scores = []
    for checkpoint in sorted(checkpoints, key=lambda c: (c.step is None, c.step or 0, c.name)):
        for dataset in datasets:
            values = metrics.get((checkpoint.name, dataset.name), {})
            scores += [
                Score(
                    checkpoint=checkpoint.name,
                    step=checkpoint.step,
                    dataset=dataset.name,
                    metric=name,
                    value=value,
                    stderr=values.get(_error_name(name)),
                    samples=dataset.samples,
                    higher_is_better=_direction(dataset, name),
                )
                for name, value in values.items()
                if _STDERR not in name
            ]
    return Leaderboard(scores=tuple(scores), regressions=find_regressions(scores))


def _direction(dataset: Dataset, metric: str) -> bool:
    """As the task says; where it says nothing, by the metric's usual name."""
    said = dataset.directions.get(metric, dataset.directions.get(metric.partition(",")[0]))
    return not lower_is_better(metric) if said is None else said


def _error_name(metric: str) -> str:
    name, comma, rest = metric.partition(",")
    return f"{name}{_STDERR}{comma}{rest}"


def write_csv(board: Leaderboard, datasets: Sequence[Dataset] = (), models: Mapping[str, str] | None = None) -> str:
    """The text of `leaderboard.csv`; `datasets` give the versions of tasks and data, `models` those of checkpoints."""
    known = {dataset.name: dataset for dataset in datasets}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for score in board.scores:
        step = "" if score.step is None else score.step
        stderr = "" if score.stderr is None else repr(score.stderr)
        better = str(score.higher_is_better).lower()
        task = known.get(score.dataset)
        words = (task.version, _data_hash(task.identity)) if task else ("", "")
        model = (models or {}).get(score.checkpoint, "")[:_WORD_LETTERS]
        row = (score.checkpoint, step, score.dataset, score.metric, repr(score.value), stderr, score.samples, better)
        rows.writerow((*row, *words, model))
    return text.getvalue()


def _data_hash(identity: str) -> str:
    """The first letters of the data's hash; empty where a task says what it is by name alone."""
    word = identity.partition("/")[0]
    return word[:_WORD_LETTERS] if len(word) == _HASH_LETTERS and set(word) <= set(string.hexdigits) else ""


def group_scores(scores: Sequence[Score]) -> dict[str, dict[str, dict[str, float]]]:
    """Values and standard errors by checkpoint, dataset and metric, as `results.json` lists them."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for score in scores:
        dataset = results.setdefault(score.checkpoint, {}).setdefault(score.dataset, {})
        dataset[score.metric] = score.value
        if score.stderr is not None:
            dataset[_error_name(score.metric)] = score.stderr
    return results


def make_table(board: Leaderboard) -> tuple[list[str], list[list[str]]]:
    """Head and rows for a terminal: one row per dataset and metric, one column per checkpoint, ▼ where it fell."""
    checkpoints = list(dict.fromkeys(score.checkpoint for score in board.scores))
    fell = {(r.checkpoint, r.dataset, r.metric) for r in board.regressions}
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for score in board.scores:
        mark = " ▼" if (score.checkpoint, score.dataset, score.metric) in fell else ""
        cells.setdefault((score.dataset, score.metric), {})[score.checkpoint] = f"{score.value:.4g}{mark}"
    rows = [[*key, *(row.get(checkpoint, "-") for checkpoint in checkpoints)] for key, row in cells.items()]
    return ["dataset", "metric", *checkpoints], rows


def draw_leaderboard(board: Leaderboard) -> str:
    """An HTML page: one chart per metric over training steps, a line per dataset, regressions shaded and listed."""
    charts = [_draw_metric(board, metric) for metric in dict.fromkeys(score.metric for score in board.scores)]
    drawn = [chart for chart in charts if chart] or ["<p>No checkpoint has a step, so there is nothing to draw.</p>"]
    lines = [
        f"<li>{escape(r.dataset)} {escape(r.metric)}: {r.value:.4g} at step {r.step}, "
        f"{r.before_value:.4g} at step {r.before_step} ({r.sigmas:.1f} standard errors)</li>"
        for r in board.regressions
    ]
    listed = f"<h2>Regressions</h2><ul>{''.join(lines)}</ul>" if lines else "<p>No score fell beyond chance.</p>"
    style = "body{font:16px sans-serif;margin:2em auto;max-width:600px}svg{margin:1em 0;max-width:100%}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Leaderboard</title><style>{style}</style>'
        f"<h1>Scores over training steps</h1>{''.join(drawn)}{listed}</html>\n"
    )


def _draw_metric(board: Leaderboard, metric: str) -> str:
    """One metric's lines; empty where no score has a step."""
    lines: dict[str, list[Score]] = {}
    for score in board.scores:
        if score.metric == metric and score.step is not None:
            lines.setdefault(score.dataset, []).append(score)
    if not lines:
        return ""
    series = [
        Series(name, [float(score.step or 0) for score in line], [score.value for score in line])
        for name, line in lines.items()
    ]
    bands = [
        Band(r.before_step, r.step, f"{r.dataset} fell from {r.before_value:.4g} to {r.value:.4g}")
        for r in board.regressions
        if r.metric == metric
    ]
    return draw_lines(metric, series, x_label="training step", y_label=metric, bands=bands)
