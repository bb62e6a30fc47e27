"""Run times: estimated, recorded, learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.evaluate.schedule.priors import SCHEMA, Priors, Record, Took, read_priors, write_priors
from prism.evaluate.schedule.trials import Checkpoint, Dataset

SMALL = Checkpoint(name="small", path="", bytes=2 * 10**9, parameters=10**9)
LARGE = Checkpoint(name="large", path="", bytes=14 * 10**9, parameters=7 * 10**9)
TASK = Dataset(name="task", adapter="builtin", task="task", samples=100, tokens=1000)
OTHER = Dataset(name="other", adapter="builtin", task="other", samples=100, tokens=1000)


def test_a_first_guess_grows_with_model_and_tokens() -> None:
    priors = Priors()
    assert priors.prior(TASK, LARGE).infer_s == pytest.approx(7 * priors.prior(TASK, SMALL).infer_s)
    assert not priors.prior(TASK, LARGE).trusted
    longer = replace(TASK, tokens=3000)
    assert priors.prior(longer, LARGE).infer_s == pytest.approx(3 * priors.prior(TASK, LARGE).infer_s)
    # Two operations per parameter and token, at 1e14 a second.
    assert priors.prior(TASK, LARGE).infer_s == pytest.approx(2 * 7e9 * 1000 / 1e14)
    assert priors.prior(replace(TASK, tokens=0), LARGE).infer_s > 0


def test_a_recorded_run_is_used_and_scaled_to_another_model_size() -> None:
    priors = Priors([Record(dataset="task", parameters=10**9, infer_s=0.5, setup_s=3.0, score_s=0.2, start_s=4.0)])
    assert priors.prior(TASK, SMALL).infer_s == 0.5
    assert priors.prior(TASK, SMALL).trusted
    assert priors.prior(TASK, LARGE).infer_s == pytest.approx(3.5)
    assert not priors.prior(TASK, LARGE).trusted


def test_the_nearest_model_size_counts() -> None:
    records = [Record(dataset="task", parameters=n, infer_s=3.0) for n in (10**8, 6 * 10**9, 10**11)]
    assert Priors(records).prior(TASK, LARGE).infer_s == pytest.approx(3.5)


def test_a_model_of_unknown_size_takes_the_record_of_the_smallest() -> None:
    records = [Record(dataset="task", parameters=n, setup_s=n / 10**8) for n in (10**9, 10**8)]
    unknown = replace(SMALL, parameters=0)
    assert Priors(records).prior(TASK, unknown).setup_s == 1.0
    records.append(Record(dataset="task", parameters=0, setup_s=7.0, infer_s=0.4))
    found = Priors(records).prior(TASK, unknown)
    assert (found.setup_s, found.infer_s, found.trusted) == (7.0, 0.4, True)


def test_a_recorded_start_holds_for_its_model_size_alone() -> None:
    priors = Priors([Record(dataset="task", parameters=10**9, infer_s=0.5, start_s=40.0)])
    assert priors.prior(TASK, SMALL).start_s == 40.0
    assert priors.prior(TASK, LARGE).start_s == Priors().prior(TASK, LARGE).start_s
    # Twelve gigabytes more onto the device.
    assert Priors().prior(TASK, LARGE).start_s - Priors().prior(TASK, SMALL).start_s == pytest.approx(12 / 5)


def test_a_record_without_run_times_is_filled_with_estimates() -> None:
    plain, found = Priors().prior(TASK, SMALL), Priors([Record(dataset="task", parameters=10**9)]).prior(TASK, SMALL)
    assert found == plain and not found.trusted and found.infer_s > 0 and found.setup_s > 0


def test_a_part_too_short_for_the_clock_says_nothing_of_other_datasets() -> None:
    priors = Priors()
    before = priors.prior(OTHER, SMALL)
    priors.observe_inference(TASK, SMALL, Took(samples=1, seconds=0.0))
    assert priors.prior(OTHER, SMALL) == before
    assert priors.prior(TASK, SMALL).infer_s == 0.0


def test_set_ups_and_starts_that_were_not_needed_do_not_count() -> None:
    priors = Priors()
    for setup_s, start_s in ((4.0, 8.0), (0.0, 0.0), (2.0, 6.0)):
        priors.observe_inference(TASK, SMALL, Took(samples=1, seconds=1.0, setup_s=setup_s, start_s=start_s))
    found = priors.prior(TASK, SMALL)
    assert (found.setup_s, found.start_s) == (3.0, 7.0)
    assert priors.prior(OTHER, SMALL).start_s == 7.0  # the model is the same
    assert priors.prior(OTHER, SMALL).setup_s != 3.0


def test_measured_alone_is_nothing_where_nothing_was_measured() -> None:
    priors = Priors([Record(dataset="task", parameters=10**9, infer_s=0.5, setup_s=3.0, score_s=0.2, start_s=4.0)])
    assert not priors.has_measured
    nothing = priors.measured(TASK, SMALL)
    assert (nothing.start_s, nothing.setup_s, nothing.infer_s, nothing.score_s, nothing.measured) == (0, 0, 0, 0, False)
    priors.observe_inference(TASK, SMALL, Took(samples=2, seconds=3.0, setup_s=5.0, start_s=6.0))
    priors.observe_score(TASK, SMALL, samples=2, seconds=8.0)
    found = priors.measured(TASK, SMALL)
    assert (found.start_s, found.setup_s, found.infer_s, found.score_s, found.measured) == (6.0, 5.0, 1.5, 4.0, True)
    assert priors.has_measured


def test_what_was_measured_is_recorded_and_what_was_not_stays() -> None:
    priors = Priors([Record(dataset="task", parameters=10**9, infer_s=0.5, setup_s=3.0, score_s=0.2, start_s=4.0)])
    priors.observe_inference(TASK, SMALL, Took(samples=2, seconds=3.0))
    priors.observe_overflow(OTHER, SMALL, 0)
    other, task = priors.records()
    assert task == Record(dataset="task", parameters=10**9, infer_s=1.5, setup_s=3.0, score_s=0.2, start_s=4.0)
    assert other == Record(dataset="other", parameters=10**9, shrink=1)


def test_what_this_run_measures_replaces_the_record() -> None:
    priors = Priors([Record(dataset="task", parameters=10**9, infer_s=0.5)])
    priors.observe_inference(TASK, SMALL, Took(samples=10, seconds=20.0, setup_s=7.0, start_s=0.0))
    priors.observe_inference(TASK, SMALL, Took(samples=30, seconds=20.0, setup_s=0.0, start_s=0.0))
    priors.observe_score(TASK, SMALL, samples=10, seconds=5.0)
    prior = priors.prior(TASK, SMALL)
    assert (prior.infer_s, prior.setup_s, prior.score_s, prior.measured) == (1.0, 7.0, 0.5, True)


def test_slow_hardware_is_noticed_for_datasets_not_yet_begun() -> None:
    priors = Priors()
    before = priors.prior(OTHER, SMALL).infer_s
    priors.observe_inference(TASK, SMALL, Took(samples=1, seconds=10 * before, setup_s=0, start_s=0))
    assert before < priors.prior(OTHER, SMALL).infer_s <= 10 * before


def test_records_that_prove_wrong_in_both_directions_lose_trust() -> None:
    names = ("a", "b", "task")
    priors = Priors([Record(dataset=name, parameters=10**9, infer_s=1.0) for name in names])
    for name, seconds in (("a", 2.0), ("b", 0.5)):
        dataset = Dataset(name=name, adapter="builtin", task="", samples=1)
        priors.observe_inference(dataset, SMALL, Took(samples=1, seconds=seconds, setup_s=0, start_s=0))
    assert not priors.prior(TASK, SMALL).trusted


def test_records_that_are_all_wrong_by_the_same_factor_keep_trust() -> None:
    priors = Priors([Record(dataset=name, parameters=10**9, infer_s=1.0) for name in ("a", "b", "task")])
    for name in ("a", "b"):
        dataset = Dataset(name=name, adapter="builtin", task="", samples=1)
        priors.observe_inference(dataset, SMALL, Took(samples=1, seconds=2.0, setup_s=0, start_s=0))
    assert priors.prior(TASK, SMALL).trusted


numbers = st.none() | st.floats(0, 1e9, allow_nan=False)
records = st.builds(
    Record,
    dataset=st.text(max_size=8),
    parameters=st.integers(0, 10**12),
    infer_s=numbers,
    score_s=numbers,
    setup_s=numbers,
    start_s=numbers,
)


@given(st.lists(records, max_size=5, unique_by=lambda r: (r.dataset, r.parameters)))
def test_priors_survive_the_file(tmp_path_factory: pytest.TempPathFactory, given_records: list[Record]) -> None:
    path = tmp_path_factory.mktemp("p") / "priors.json"
    write_priors(Priors(given_records), path)
    assert set(read_priors(path).records()) == set(given_records)
    assert [p.name for p in path.parent.iterdir()] == ["priors.json"]


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        json.dumps({"schema": "other/1", "records": []}),
        json.dumps({"schema": SCHEMA, "records": [{"dataset": 3, "parameters": 1}]}),
        json.dumps({"schema": SCHEMA, "records": [{"dataset": "a", "parameters": 1, "infer_s": -1}]}),
        json.dumps({"schema": SCHEMA, "records": [{"dataset": "a", "parameters": 1, "speed": 1}]}),
        json.dumps({"schema": SCHEMA, "records": 7}),
    ],
)
def test_a_broken_file_of_priors_is_reported(tmp_path: Path, document: str) -> None:
    path = tmp_path / "priors.json"
    path.write_text(document)
    with pytest.raises(InputError, match=r"priors\.json: "):
        read_priors(path)


def test_a_missing_file_of_priors_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_priors(tmp_path / "none.json")
