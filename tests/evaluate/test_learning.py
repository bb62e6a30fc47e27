"""Run times and memory learned from trials: figures that can be worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from prism.errors import InputError
from prism.evaluate.run.adapters.adapter import WorkerCache
from prism.evaluate.schedule.cluster import WorkerState
from prism.evaluate.schedule.cutting import CuttingConfig, Outlook, cut_trial
from prism.evaluate.schedule.fair_share import Candidate, Demand, share_workers
from prism.evaluate.schedule.learning import BatchTrials, Belief, Effect, Effects, Errors, part_noise
from prism.evaluate.schedule.packing import Share, Slot, Work, pack
from prism.evaluate.schedule.pools import Pool, open_pool
from prism.evaluate.schedule.priors import SCHEMA, Learned, Prior, Priors, Record, Took, read_priors, write_priors
from prism.evaluate.schedule.trials import KEPT_DATASETS, Checkpoint, Dataset, Worker

MODEL = Checkpoint(name="m", path="", bytes=0, parameters=10**9)
LARGE = Checkpoint(name="l", path="", bytes=0, parameters=8 * 10**9)


def make_dataset(name: str, samples: int = 100) -> Dataset:
    return Dataset(name=name, adapter="builtin", task="", samples=samples)


def test_one_measurement_moves_an_effect_by_the_ratio_of_variances() -> None:
    effects = Effects()
    slow = Effect(name="slow", spread=0.3)
    effects.observe([slow], log_ratio=1.0, noise=0.4)  # 0.09 of 0.09 + 0.16
    found = effects.predict([slow])
    assert found.mean == pytest.approx(0.36)
    assert found.variance == pytest.approx(0.09 * (1 - 0.36))


def test_what_two_effects_have_in_common_is_divided_between_them() -> None:
    effects = Effects()
    both = [Effect(name="engine", spread=0.3), Effect(name="dataset", spread=0.6)]
    effects.observe(both, log_ratio=1.0, noise=1e-9)
    assert effects.predict(both[:1]).mean == pytest.approx(0.2)  # 0.09 of 0.45
    assert effects.predict(both[1:]).mean == pytest.approx(0.8)
    assert effects.predict(both).variance == pytest.approx(0.0, abs=1e-12)  # their sum is known, each alone is not
    assert effects.predict(both[:1]).variance == pytest.approx(0.09 - 0.09**2 / 0.45)


def test_an_effect_counts_by_its_amount() -> None:
    effects = Effects()
    effects.observe([Effect(name="batch", amount=2.0, spread=1.0)], log_ratio=1.0, noise=1e-9)
    assert effects.predict([Effect(name="batch", amount=3.0)]).mean == pytest.approx(1.5)


def test_an_unseen_effect_changes_nothing_but_adds_its_uncertainty() -> None:
    found = Effects().predict([Effect(name="new", amount=2.0, spread=0.5)])
    assert found == Belief(mean=0.0, variance=1.0)


def test_the_uncertainty_of_an_effect_grows_with_the_square_of_its_amount() -> None:
    effects = Effects()
    effects.observe([Effect(name="batch", spread=1.0)], log_ratio=1.0, noise=1.0)
    assert effects.predict([Effect(name="batch")]).variance == pytest.approx(0.5)
    assert effects.predict([Effect(name="batch", amount=3.0)]).variance == pytest.approx(9 * 0.5)


def test_effects_of_earlier_runs_are_where_learning_begins() -> None:
    effects = Effects({"node:a": Belief(mean=0.2, variance=0.01)})
    node = Effect(name="node:a", spread=0.1)
    assert effects.predict([node]) == Belief(mean=0.2, variance=0.01)
    effects.observe([node], log_ratio=0.4, noise=0.1)
    assert effects.beliefs("node:")["node:a"].mean == pytest.approx(0.3)


def test_more_effects_than_there_is_room_for_at_first_keep_their_values() -> None:
    effects = Effects()
    for number in range(40):
        effects.observe([Effect(name=f"e{number}", spread=1.0)], log_ratio=float(number), noise=1e-9)
    assert [round(effects.predict([Effect(name=f"e{n}")]).mean) for n in range(40)] == list(range(40))
    assert len(effects.beliefs("e")) == 40


def test_a_part_of_many_samples_says_more() -> None:
    assert part_noise(1) == pytest.approx(math.hypot(0.03, 0.3))
    assert part_noise(900) == pytest.approx(math.hypot(0.03, 0.01))


def test_guesses_that_are_off_by_the_same_factor_are_no_error() -> None:
    errors = Errors(spread=0.2)
    assert errors.variance == pytest.approx(0.04)
    for _ in range(2):
        errors.add(0.7)
    assert errors.variance == pytest.approx(0.02)  # two of 0.04, and two of none
    errors.add(-0.7)
    around_mean = 3 * 0.49 - 0.7**2 / 3
    assert errors.variance == pytest.approx((0.08 + around_mean) / 5)


def test_a_batch_that_ran_out_of_memory_is_halved_for_the_next_checkpoint_too() -> None:
    trials = BatchTrials()
    assert trials.choose("d", 7) == 0
    trials.add("d", 7, 0, fits=False)
    trials.add("d", 7, 1, fits=True)
    assert trials.choose("d", 7) == 1
    assert trials.choose("d", 70) == 1  # a larger model needs no less
    assert trials.choose("d", 1) == 0  # a smaller one may do with less
    assert trials.choose("other", 7) == 0
    assert trials.chosen() == {("d", 7): 1}


def test_a_batch_that_fits_more_often_than_not_is_used() -> None:
    trials = BatchTrials()
    trials.add("d", 7, 0, fits=False)
    trials.add("d", 70, 0, fits=True)  # on a larger model, so it would have fitted here
    assert trials.choose("d", 7) == 0


def test_a_small_batch_that_failed_rules_out_the_larger_ones() -> None:
    trials = BatchTrials()
    trials.add("d", 7, 2, fits=False)
    assert trials.choose("d", 7) == 3


def test_what_a_halved_batch_costs_is_not_expected_of_whole_batches() -> None:
    def expected_s(shrink: int) -> float:
        names = ("a", "b", "new")
        priors = Priors([Record(dataset=name, parameters=10**9, infer_s=1.0) for name in names])
        for name in names[:2]:
            priors.observe_inference(make_dataset(name), MODEL, Took(samples=1000, seconds=1500.0, shrink=shrink))
        return priors.prior(make_dataset("new"), MODEL).infer_s

    assert 1.0 < expected_s(shrink=1) < expected_s(shrink=0) < 1.5


def test_records_are_never_taken_to_be_quite_exact() -> None:
    names = [f"d{n}" for n in range(60)]
    priors = Priors([Record(dataset=name, parameters=10**9, infer_s=1.0) for name in names])
    assert priors.learned().record_spread == pytest.approx(0.2)
    for name in names:
        priors.observe_inference(make_dataset(name), MODEL, Took(samples=1000, seconds=1000.0))
    assert priors.learned().record_spread == 0.05


def test_a_dataset_measured_with_one_model_size_is_expected_for_another() -> None:
    records = [Record(dataset=name, parameters=10**9, infer_s=1.0) for name in ("a", "b")]
    priors = Priors(records)
    for _ in range(5):
        priors.observe_inference(make_dataset("a"), MODEL, Took(samples=1000, seconds=3000.0))
    slow, other = priors.prior(make_dataset("a"), LARGE), priors.prior(make_dataset("b"), LARGE)
    assert 8.0 < other.infer_s < slow.infer_s < 24.0
    assert slow.spread < other.spread


def test_a_slow_node_is_distinguished_from_a_slow_dataset() -> None:
    names = [f"d{n}" for n in range(6)]
    priors = Priors([Record(dataset=name, parameters=10**9, infer_s=1.0) for name in names])
    for name in names:
        for node, seconds in (("fast", 1000.0), ("slow", 1300.0)):
            priors.observe_inference(make_dataset(name), MODEL, Took(samples=1000, seconds=seconds, node=node))
    assert priors.pace("slow") / priors.pace("fast") == pytest.approx(1.3, rel=0.02)
    assert priors.pace("unknown") == 1.0


def test_records_that_hold_need_no_early_trial_any_more() -> None:
    names = [f"d{n}" for n in range(30)]
    priors = Priors([Record(dataset=name, parameters=10**9, infer_s=1.0) for name in names])
    before = priors.prior(make_dataset("d29"), MODEL).spread
    for name in names[:-1]:
        priors.observe_inference(make_dataset(name), MODEL, Took(samples=1000, seconds=1000.0))
    assert priors.prior(make_dataset("d29"), MODEL).spread < before / 2
    assert priors.prior(make_dataset("d0"), MODEL).spread == 0.0  # measured


def test_what_was_learned_is_kept_for_the_next_plan(tmp_path: Path) -> None:
    priors = Priors([Record(dataset="d", parameters=10**9, infer_s=1.0)])
    for _ in range(5):
        priors.observe_inference(make_dataset("d"), MODEL, Took(samples=1000, seconds=1000.0, node="a"))
        priors.observe_inference(make_dataset("d"), MODEL, Took(samples=1000, seconds=1500.0, node="b"))
    priors.observe_memory(make_dataset("d"), MODEL, 0, fits=False)
    write_priors(priors, tmp_path / "priors.json")
    again = read_priors(tmp_path / "priors.json")
    assert again.pace("b") == pytest.approx(priors.pace("b")) and again.pace("b") > 1.05
    assert again.halvings(make_dataset("d"), MODEL) == 1
    assert again.learned().record_spread == pytest.approx(priors.learned().record_spread)


@pytest.mark.parametrize(
    "learned",
    [7, {"effects": {"node:a": [0.1]}}, {"effects": {"node:a": [0.1, -1]}}, {"record_spread": "x"},
     {"effects": {"node:a": ["x", 1]}}, {"effects": 3}],
)  # fmt: skip
def test_a_broken_list_of_what_was_learned_is_reported(tmp_path: Path, learned: object) -> None:
    path = tmp_path / "priors.json"
    path.write_text(json.dumps({"schema": SCHEMA, "records": [], "learned": learned}))
    with pytest.raises(InputError, match=r"priors\.json: "):
        read_priors(path)


@pytest.mark.parametrize("shrink", [1.5, 1e9, -1, True])
def test_a_record_with_a_senseless_number_of_halvings_is_reported(tmp_path: Path, shrink: float) -> None:
    path = tmp_path / "priors.json"
    record = {"dataset": "a", "parameters": 1, "shrink": shrink}
    path.write_text(json.dumps({"schema": SCHEMA, "records": [record]}))
    with pytest.raises(InputError, match=r"priors\.json: "):
        read_priors(path)


def test_fast_nodes_are_given_first_and_near_equals_by_name() -> None:
    candidates = [Candidate(worker=f"{n}0", node=n, pace=p) for n, p in (("a", 1.3), ("b", 1.02), ("c", 1.0))]
    demands = [Demand(checkpoint="m", weight=1.0, useful=2)]
    assert set(share_workers(demands, candidates)) == {"b0", "c0"}


def test_a_trial_on_a_slow_node_is_expected_to_take_longer() -> None:
    prior = Prior(start_s=3.0, setup_s=2.0, infer_s=1.0, score_s=0.0)
    state = WorkerState(worker=Worker(id="w", node="n"))
    state.queue = [Share(key=("m", "a"), samples=1)]
    trial = cut_trial(state, {"a": make_pool("a", prior)}, "t", CuttingConfig(), Outlook(pace=1.5))
    assert trial is not None and trial.expected_s == pytest.approx(3 + 2 + 1.5)


def test_a_spread_of_none_at_all_is_not_believed() -> None:
    assert Priors(learned=Learned(record_spread=0.05)).learned().record_spread == pytest.approx(0.05)


def make_pool(name: str, prior: Prior, *, untried: bool = False) -> Pool:
    pool = open_pool(MODEL, make_dataset(name), prior, set(), set())
    pool.untried = untried
    return pool


def test_what_is_left_of_an_early_trial_waits_for_the_other_early_trials() -> None:
    prior = Prior(start_s=0.0, setup_s=1.0, infer_s=1.0, score_s=0.0, spread=0.5)
    pools = {name: make_pool(name, prior, untried=name != "c") for name in ("a", "b", "c")}
    state = WorkerState(worker=Worker(id="w", node="n"), checkpoint="m")
    state.queue = [Share(key=("m", name), samples=100) for name in ("a", "b", "c")]
    trial = cut_trial(state, pools, "t1", CuttingConfig(), Outlook(pilots=7))
    assert trial is not None and trial.parts[0].samples == 1
    assert [share.key[1] for share in state.queue] == ["b", "a", "c"]


def test_a_worker_that_keeps_one_dataset_goes_on_with_it() -> None:
    prior = Prior(start_s=0.0, setup_s=1.0, infer_s=1.0, score_s=0.0, spread=0.5)
    pools = {name: make_pool(name, prior, untried=True) for name in ("a", "b")}
    state = WorkerState(worker=Worker(id="w", node="n"), checkpoint="m")
    state.queue = [Share(key=("m", name), samples=100) for name in ("a", "b")]
    cut_trial(state, pools, "t1", CuttingConfig(), Outlook(pilots=0))
    assert [share.key[1] for share in state.queue] == ["a", "b"]


def test_a_part_leaves_time_for_a_score_that_was_never_measured() -> None:
    def first_part(score_spread: float) -> int:
        prior = Prior(start_s=0.0, setup_s=0.0, infer_s=1.0, score_s=1.0, measured=True, score_spread=score_spread)
        state = WorkerState(worker=Worker(id="w", node="n"), checkpoint="m")
        state.queue = [Share(key=("m", "a"), samples=100)]
        trial = cut_trial(state, {"a": make_pool("a", prior)}, "t1", CuttingConfig(), Outlook(left_s=60.0))
        assert trial is not None
        return trial.parts[0].samples

    assert first_part(0.0) == 30  # as long to score as to infer
    assert first_part(math.log(2) / 2) == 20  # two deviations: twice as long


def test_a_worker_comes_back_to_a_dataset_that_it_kept() -> None:
    works = [Work(key=("m", name), samples=50, setup_s=20.0, infer_s=1.0, score_s=0.0) for name in ("a", "b")]
    packing = pack([Slot(worker="w", ready_s=0.0, held=(("m", "a"), ("m", "b")))], works, 1.0)
    assert packing.end_s == pytest.approx(100, rel=0.02)


def test_the_worker_that_runs_a_dataset_goes_on_before_those_that_ran_it_once() -> None:
    work = Work(key=("m", "a"), samples=50, setup_s=20.0, infer_s=1.0, score_s=0.0)
    slots = [
        Slot(worker="v", ready_s=0.0, held=(("m", "a"), ("m", "b"))),
        Slot(worker="w", ready_s=1.0, held=(("m", "b"), ("m", "a"))),
    ]
    other = Work(key=("m", "b"), samples=50, setup_s=20.0, infer_s=1.0, score_s=0.0)
    packing = pack(slots, [work, other], 1.0)
    assert packing.queues["w"][0].key == ("m", "a")
    assert packing.queues["v"][0].key == ("m", "b")


def test_a_worker_keeps_the_datasets_it_used_last_and_one_model() -> None:
    cache, made = WorkerCache(), []

    def make(name: str) -> str:
        made.append(name)
        return name

    for number in [*range(KEPT_DATASETS), 0, KEPT_DATASETS]:
        cache.keep("dataset", number, lambda number=number: make(f"d{number}"))
    assert made == [f"d{n}" for n in range(KEPT_DATASETS + 1)]
    cache.keep("dataset", 0, lambda: make("again 0"))
    cache.keep("dataset", 1, lambda: make("again 1"))  # the one not used for longest
    assert made[-1] == "again 1" and "again 0" not in made
    for name in ("x", "y", "x"):
        cache.keep("model", name, lambda name=name: make(name))
    assert made[-3:] == ["x", "y", "x"]
    cache.drop("model")
    assert cache.keep("dataset", 0, lambda: make("lost")) == "d0"


def test_datasets_of_very_many_requests_are_not_kept_together() -> None:
    cache = WorkerCache()
    cache.keep("dataset", "a", lambda: range(200_000))
    cache.keep("dataset", "b", lambda: range(10))
    made = cache.keep("dataset", "a", lambda: "again")
    assert made == "again"
