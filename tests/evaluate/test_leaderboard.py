"""Results as people read them."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from dataclasses import replace

import pytest

from prism.evaluate.evaluation import Evaluation
from prism.evaluate.leaderboard import draw_leaderboard, make_leaderboard, make_table, write_csv
from prism.evaluate.regressions import Score, find_regressions, lower_is_better, standard_error
from prism.evaluate.results import describe_evaluation
from prism.evaluate.run.outcomes import Findings
from prism.evaluate.schedule.trials import Checkpoint, Dataset


def make_scores(values: list[float], samples: int = 1000, metric: str = "acc", **fields: float) -> list[Score]:
    return [
        Score(
            checkpoint=f"step-{i}",
            step=i,
            dataset="d",
            metric=metric,
            value=value,
            samples=samples,
            higher_is_better=not lower_is_better(metric),
            **fields,  # type: ignore[arg-type]
        )
        for i, value in enumerate(values)
    ]


def test_a_fall_beyond_chance_is_a_regression_and_one_within_is_not() -> None:
    (found,) = find_regressions(make_scores([0.50, 0.52, 0.40]))
    assert (found.step, found.before_step, found.value) == (2, 1, 0.40)
    assert found.sigmas == pytest.approx(
        0.12 / math.hypot(*(math.sqrt(p * (1 - p) / 1000) for p in (0.52, 0.40))), rel=0.01
    )
    assert not find_regressions(make_scores([0.50, 0.52, 0.50]))


def test_the_same_fall_on_few_samples_is_chance() -> None:
    assert not find_regressions(make_scores([0.50, 0.52, 0.40], samples=50))


def test_a_slow_decline_is_found_though_no_single_step_shows_it() -> None:
    found = find_regressions(make_scores([0.60 - 0.015 * i for i in range(8)]))
    assert found
    assert all(r.step - r.before_step > 1 for r in found)


def test_perplexity_that_rises_is_a_regression() -> None:
    (found,) = find_regressions(make_scores([12.0, 11.0, 15.0], metric="word_perplexity", stderr=0.3))[-1:]
    assert found.value == 15.0
    assert not find_regressions(make_scores([15.0, 12.0], metric="word_perplexity", stderr=0.3))


def test_chance_alone_seldom_shows_a_regression() -> None:
    """Tables in which nothing changes: at most one in twenty may show one; 200 tables allow 20 at most (p < 0.001)."""
    rng = random.Random(5)
    false = 0
    for _ in range(200):
        scores = []
        for d in range(5):
            values = [sum(rng.random() < 0.5 for _ in range(300)) / 300 for _ in range(6)]
            scores += [
                Score(checkpoint=f"c{i}", step=i, dataset=f"d{d}", metric="acc", value=v, samples=300)
                for i, v in enumerate(values)
            ]
        false += bool(find_regressions(scores))
    assert false <= 20


def test_a_score_without_spread_or_step_is_not_judged() -> None:
    assert standard_error(Score(checkpoint="c", step=1, dataset="d", metric="bleu", value=31.0, samples=10)) is None
    assert not find_regressions(make_scores([31.0, 3.0]))
    nameless = [
        Score(checkpoint=c, step=None, dataset="d", metric="a", value=v, samples=999) for c, v in (("a", 1), ("b", 0))
    ]
    assert not find_regressions(nameless)


def test_a_perfect_score_is_not_taken_as_certain() -> None:
    assert not find_regressions(make_scores([1.0, 0.9], samples=10))


@pytest.fixture
def board() -> object:
    checkpoints = [Checkpoint(name=f"step-{s}", path="", bytes=1, parameters=1, step=s) for s in (200, 100)]
    datasets = [Dataset(name="arc", adapter="lm-eval", task="arc", samples=1000)]
    metrics = {
        ("step-100", "arc"): {"acc,none": 0.8, "acc_stderr,none": 0.012},
        ("step-200", "arc"): {"acc,none": 0.5, "acc_stderr,none": 0.015},
    }
    return make_leaderboard(checkpoints, datasets, metrics)


def test_results_are_ordered_by_step_and_errors_stay_with_their_metric(board: object) -> None:
    evaluation = Evaluation(checkpoints=(), datasets=(), found=Findings(), makespan_s=12.0, lower_bound_s=11.0)
    document = describe_evaluation(evaluation, board)  # type: ignore[arg-type]
    json.dumps(document)
    assert list(document["results"]) == ["step-100", "step-200"]
    assert document["results"]["step-200"]["arc"] == {"acc,none": 0.5, "acc_stderr,none": 0.015}
    assert [r["step"] for r in document["regressions"]] == [200]
    assert document["schema"] == "prism.evaluation/1"


def test_the_csv_has_one_row_per_score(board: object) -> None:
    rows = list(csv.DictReader(io.StringIO(write_csv(board))))  # type: ignore[arg-type]
    assert [tuple(row.values())[:7] for row in rows] == [
        ("step-100", "100", "arc", "acc,none", "0.8", "0.012", "1000"),
        ("step-200", "200", "arc", "acc,none", "0.5", "0.015", "1000"),
    ]


def test_the_direction_is_the_tasks_and_versions_stand_beside_the_score() -> None:
    """A task's `rouge_error` may be better high, and its `acc` better low: the name does not decide."""
    dataset = Dataset(
        name="d", adapter="lm-eval", task="d", samples=1000, version="2.0", identity="da7a" * 16 + "/lm_eval 0.4",
        directions={"rouge_error": True, "acc": False},
    )  # fmt: skip
    checkpoints = [Checkpoint(name=f"step-{s}", path="", bytes=1, parameters=1, step=s) for s in (1, 2)]
    metrics = {
        ("step-1", "d"): {"rouge_error,none": 0.9, "acc,none": 0.1},
        ("step-2", "d"): {"rouge_error,none": 0.1, "acc,none": 0.9},
    }
    board = make_leaderboard(checkpoints, [dataset], metrics)
    assert {(r.metric, r.step) for r in board.regressions} == {("rouge_error,none", 2), ("acc,none", 2)}
    rows = list(csv.DictReader(io.StringIO(write_csv(board, [dataset], {"step-1": "m" * 20}))))
    assert rows[0]["higher_is_better"] == "true" and rows[1]["higher_is_better"] == "false"
    assert (rows[0]["task_version"], rows[0]["data"], rows[0]["model"]) == ("2.0", "da7ada7ada7a", "m" * 12)
    named = write_csv(board, [replace(dataset, identity="opencompass/gsm8k")])
    assert next(csv.DictReader(io.StringIO(named)))["data"] == ""


def test_the_table_marks_what_fell(board: object) -> None:
    head, rows = make_table(board)  # type: ignore[arg-type]
    assert head == ["dataset", "metric", "step-100", "step-200"]
    assert rows == [["arc", "acc,none", "0.8", "0.5 ▼"]]


def test_the_plot_shades_what_fell_and_lists_it(board: object) -> None:
    page = draw_leaderboard(board)  # type: ignore[arg-type]
    assert "arc fell from 0.8 to 0.5" in page
    assert "at step 200" in page
    assert page.count("<svg") == 1


def test_checkpoints_without_steps_make_a_page_too() -> None:
    board = make_leaderboard(
        [Checkpoint(name="<final>", path="", bytes=1, parameters=1)],
        [Dataset(name="d", adapter="builtin", task="d", samples=5)],
        {("<final>", "d"): {"acc": 1.0}},
    )
    assert "nothing to draw" in draw_leaderboard(board)
