"""The built-in tasks and the model in numpy: the same numbers however they are cut."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.cli.evaluate import draw_progress
from prism.evaluate.run.adapters import BUILTIN_DATASETS, SampleError, WorkerCache, open_adapter
from prism.evaluate.run.adapters.builtin import make_sample
from prism.evaluate.run.models import Continuation, open_model
from prism.evaluate.run.models.tiny import write_tiny

QUICK = ("arithmetic", "order", "text", "copy")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny(folder, 3)
    return folder


@pytest.mark.parametrize("name", QUICK)
def test_metrics_do_not_depend_on_the_cut(name: str, model: Path) -> None:
    adapter, dataset = open_adapter("builtin"), BUILTIN_DATASETS[name]
    found = []
    for cuts in ((0, 12), (0, 1, 5, 12)):
        cache, scores = WorkerCache(), []
        for first, last in itertools.pairwise(cuts):
            outputs = adapter.infer(dataset, model, cache, first, last, 0)
            scores += adapter.score(dataset, cache, outputs, first)
        found.append(adapter.combine(dataset, scores))
    assert found[0] == found[1]


@given(st.sampled_from(QUICK), st.integers(0, 10_000))
def test_a_sample_is_the_same_every_time_and_its_answer_is_a_choice(name: str, number: int) -> None:
    dataset = BUILTIN_DATASETS[name]
    sample = make_sample(dataset, number)
    assert sample == make_sample(dataset, number)
    assert not sample.choices or sample.choices.count(sample.answer) == 1


def test_probabilities_of_all_next_bytes_sum_to_one(model: Path) -> None:
    import math

    asked = [Continuation(context="abc", continuation=chr(byte)) for byte in range(128)]
    found = open_model(model, "cpu").likelihoods(asked, 8)
    assert 0 < math.fsum(map(math.exp, found)) <= 1 + 1e-5


def test_a_model_on_the_bench_is_kept_until_another_is_asked_for(model: Path) -> None:
    cache, made = WorkerCache(), []
    for key in ("a", "a", "b", "a"):
        cache.keep("model", key, lambda key=key: made.append(key))
    assert made == ["a", "b", "a"] and cache.take_spent_s("model") > 0 and cache.take_spent_s("model") == 0


def test_outputs_that_do_not_fit_name_their_sample() -> None:
    with pytest.raises(SampleError, match="sample 41: KeyError"):
        open_adapter("builtin").score(BUILTIN_DATASETS["order"], WorkerCache(), [{"wrong": 1}], 41)


def test_the_live_table_shows_trials_gpus_and_time_left() -> None:
    from rich.console import Console

    console = Console(width=100)
    document = {
        "time_left_s": 75.0, "gpus": 8, "gpus_busy": 7, "results": 3, "results_wanted": 9, "inferred": 10, "scored": 8,
        "samples": 30, "trials": {"done": 4, "running": 7, "waiting": 6, "failed": 0},
    }  # fmt: skip
    with console.capture() as shown:
        console.print(draw_progress(document))
    for text in ("3 of 9", "4 done, 7 running", "7 of 8", "1:15"):
        assert text in shown.get()
