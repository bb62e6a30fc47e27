"""The files that an evaluation ends with: results.json, leaderboard.csv, leaderboard.html."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prism.evaluate.evaluation import Evaluation
from prism.evaluate.groups import average_groups, describe_group
from prism.evaluate.leaderboard import Leaderboard, draw_leaderboard, group_scores, make_leaderboard, write_csv
from prism.evaluate.schedule.trials import Dataset
from prism.machine.files import write_durably
from prism.version import __version__

SCHEMA = "prism.evaluation/1"


def make_board(evaluation: Evaluation) -> Leaderboard:
    """Every score of an evaluation, groups behind their datasets."""
    names = [checkpoint.name for checkpoint in evaluation.checkpoints]
    found = evaluation.found.metrics
    averaged = average_groups(evaluation.groups, evaluation.datasets, names, found)
    return make_leaderboard(evaluation.checkpoints, _all_datasets(evaluation), {**found, **averaged})


def _all_datasets(evaluation: Evaluation) -> list[Dataset]:
    groups = [describe_group(group, evaluation.datasets) for group in evaluation.groups if group.metrics]
    return [*evaluation.datasets, *groups]


def describe_evaluation(evaluation: Evaluation, board: Leaderboard) -> dict[str, Any]:
    """The document of `--json` and `results.json`; what was given up is named."""
    found = evaluation.found
    failures = [
        {"part": p.place, "phase": p.phase, "text": p.text, **({"samples": list(p.samples)} if p.samples else {})}
        for p in found.problems
    ]
    return {
        "schema": SCHEMA,
        "makespan_s": evaluation.makespan_s,
        "lower_bound_s": evaluation.lower_bound_s,
        "trials": found.num_trials,
        "results": group_scores(board.scores),
        "regressions": [asdict(regression) for regression in board.regressions],
        "failures": failures,
        "prism": __version__,
        "datasets": {d.name: _describe_dataset(d) for d in _all_datasets(evaluation)},
        "checkpoints": {
            c.name: {"step": c.step, "path": c.path, "bytes": c.bytes, "hash": evaluation.models.get(c.name, "")}
            for c in evaluation.checkpoints
        },
        "groups": {group.name: list(group.datasets) for group in evaluation.groups},
        **({"usage": found.usage} if found.usage else {}),
        **(
            {"watched": {name: asdict(seen) for name, seen in evaluation.watched.items()}} if evaluation.watched else {}
        ),
    }


def _describe_dataset(dataset: Dataset) -> dict[str, Any]:
    return {
        "task": dataset.task,
        "adapter": dataset.adapter,
        "samples": dataset.samples,
        "version": dataset.version,
        "data": dataset.identity,
        "higher_is_better": dict(dataset.directions),
    }


def write_results(evaluation: Evaluation, folder: Path) -> Leaderboard:
    """Put the files in place, each whole; the scores in them."""
    board = make_board(evaluation)
    text = write_csv(board, _all_datasets(evaluation), evaluation.models)
    write_durably(folder / "results.json", json.dumps(describe_evaluation(evaluation, board), allow_nan=False) + "\n")
    write_durably(folder / "leaderboard.csv", text)
    write_durably(folder / "leaderboard.html", draw_leaderboard(board))
    return board
