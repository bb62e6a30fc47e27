"""The files that an evaluation ends with: results.json, leaderboard.csv, leaderboard.html."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from prism.evaluate.evaluation import Evaluation
from prism.evaluate.files import replace_file
from prism.evaluate.leaderboard import Leaderboard, draw_leaderboard, make_document, make_leaderboard, write_csv


def make_board(evaluation: Evaluation) -> Leaderboard:
    """Every finite score of an evaluation."""
    metrics = {
        key: {name: value for name, value in values.items() if math.isfinite(value)}
        for key, values in evaluation.found.metrics.items()
    }
    return make_leaderboard(evaluation.checkpoints, evaluation.datasets, metrics)


def describe_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """The document of `--json` and `results.json`; what was given up is named."""
    document = make_document(
        make_board(evaluation),
        makespan_s=evaluation.makespan_s,
        lower_bound_s=evaluation.lower_bound_s,
        num_trials=evaluation.found.num_trials,
    )
    found = evaluation.found
    failed = [{"part": str(f.part), "phase": f.phase, "text": f.text} for f in found.failures]
    return {**document, "failures": failed + [{"part": "", "phase": "combine", "text": t} for t in found.problems]}


def write_results(evaluation: Evaluation, folder: Path) -> None:
    """Put the files in place, each whole."""
    board = make_board(evaluation)
    replace_file(folder / "results.json", json.dumps(describe_evaluation(evaluation), allow_nan=False) + "\n")
    replace_file(folder / "leaderboard.csv", write_csv(board))
    replace_file(folder / "leaderboard.html", draw_leaderboard(board))
