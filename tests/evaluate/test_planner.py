"""Who works on what next, and how far a run is: on two datasets and a few workers, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest

from prism.evaluate.schedule.cluster import Cluster
from prism.evaluate.schedule.cutting import CuttingConfig, Outlook, cut_trial
from prism.evaluate.schedule.ledger import Ledger
from prism.evaluate.schedule.packing import Share, Slot, Work, pack
from prism.evaluate.schedule.planner import Planner
from prism.evaluate.schedule.pools import Pool
from prism.evaluate.schedule.priors import Prior, Priors
from prism.evaluate.schedule.score_queue import ScoreQueue
from prism.evaluate.schedule.standing import find_bound_s, measure_progress
from prism.evaluate.schedule.transfers import TransferPolicy
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Node, Trial, Worker

PRIOR = Prior(start_s=4.0, setup_s=2.0, infer_s=1.0, score_s=0.5, measured=True, trusted=True)
UNSCORED = replace(PRIOR, score_s=0.0)


@dataclass
class Table(Priors):
    """Run times from a table instead of from measurements."""

    of: dict[str, Prior] = field(default_factory=dict)

    def __init__(self, **of: Prior) -> None:
        super().__init__()
        self.of = of

    def prior(self, dataset: Dataset, checkpoint: Checkpoint) -> Prior:
        return self.of.get(dataset.name, PRIOR)

    def measured(self, dataset: Dataset, checkpoint: Checkpoint) -> Prior:
        return self.of.get(dataset.name, PRIOR)


def make_planner(
    *names: str, priors: Priors | None = None, workers: int = 2, samples: int = 100, kept: int = 8, gpus: int = 1
) -> Planner:
    """A planner of one checkpoint `m` per default, with workers w0, w1, ... on nodes of their own."""
    datasets = [Dataset(name=name, adapter="builtin", task="", samples=samples) for name in "ab"]
    ledger = Ledger(datasets=datasets, priors=priors or Table())
    for name in names or ("m",):
        ledger.add(Checkpoint(name=name, path="", bytes=10, parameters=1, gpus=gpus))
    cluster = Cluster()
    for i in range(workers):
        cluster.add_node(Node(id=f"n{i}", cpus=2))
        cluster.add_worker(Worker(id=f"w{i}", node=f"n{i}", gpus=(0,)))
    return Planner(
        cluster=cluster,
        ledger=ledger,
        priors=ledger.priors,
        min_part_s=2.0,
        load_s=lambda checkpoint: 3.0,
        max_load_attempts=2,
        kept_datasets=kept,
    )


def pools(planner: Planner, checkpoint: str = "m") -> dict[str, Pool]:
    return planner.ledger.pools[checkpoint]


def test_the_end_is_that_of_the_checkpoint_that_ends_last() -> None:
    planner = make_planner()
    assert planner.end_s == 0.0
    planner.ends_s = {"x": 3.0, "y": 8.0, "z": 5.0}
    assert planner.end_s == 8.0


def test_both_workers_get_half_of_the_work_after_load_start_and_set_up() -> None:
    planner = make_planner()
    state = planner.cluster.states["w0"]
    planner.fill_queue(state, 10.0)
    counts = [sum(share.samples for share in d.queue) for d in planner.cluster.states.values()]
    assert sum(counts) == 200 and abs(counts[0] - counts[1]) <= 4
    assert planner.end_s == pytest.approx(10 + 3 + 4 + 2 + 100, rel=0.03)
    assert planner.group_sizes == {"m": 2}


def test_a_worker_with_a_plan_keeps_it_until_the_plan_is_stale() -> None:
    planner = make_planner()
    state = planner.cluster.states["w0"]
    planner.fill_queue(state, 0.0)
    before, planned = list(state.queue), planner.packed["m"]
    planner.version += 1
    planner.fill_queue(state, 50.0)
    assert state.queue == before and planner.packed["m"] == planned
    pools(planner)["a"].take(60)
    planner.change(["m"])
    planner.fill_queue(state, 50.0)
    left = sum(s.samples for d in planner.cluster.states.values() for s in d.queue)
    assert left == 140 and planner.packed["m"] == planner.version and not planner.stale


def test_a_worker_that_is_done_with_its_share_takes_over_from_the_others() -> None:
    planner = make_planner()
    first, second = planner.cluster.states.values()
    planner.fill_queue(first, 0.0)
    first.queue, others = [], sum(share.samples for share in second.queue)
    for pool in pools(planner).values():
        pool.take(pool.num_waiting - others // 2)
    planner.fill_queue(first, 50.0)
    assert first.queue == [] and first.rested == planner.version  # nobody has called
    planner.ask_again("m")
    planner.fill_queue(first, 50.0)
    assert first.queue and sum(share.samples for share in second.queue) < others


def test_a_worker_for_which_nothing_waits_rests_until_the_next_plan() -> None:
    planner = make_planner()
    state = planner.cluster.states["w0"]
    planner.fill_queue(state, 0.0)
    for pool in pools(planner).values():
        while pool.take(1000):
            pass
    state.queue = []
    planner.fill_queue(state, 1.0)
    assert state.queue == [] and state.rested == planner.version
    pools(planner)["a"].give_back(next(iter(pools(planner)["a"].running)))
    planner.fill_queue(state, 1.0)
    assert state.queue == []  # nothing was said to have changed
    planner.change(["m"])
    planner.fill_queue(state, 1.0)
    assert state.queue


def test_workers_crowd_where_there_are_more_of_them_than_datasets_that_wait() -> None:
    planner = make_planner()
    planner.group_sizes["m"], planner.ends_s["m"] = 2, 30.0
    assert not planner.look_ahead("m", 10.0).crowded
    pools(planner)["a"].take(1000)
    seen = planner.look_ahead("m", 10.0)
    assert seen.crowded and seen.left_s == 20.0
    assert planner.look_ahead("m", 40.0).left_s == 0.0
    planner.ends_s.clear()
    assert planner.look_ahead("m", 40.0).left_s == math.inf


def test_a_run_time_that_proves_wrong_asks_for_another_plan() -> None:
    priors = Table()
    planner = make_planner(priors=priors)
    version = planner.version
    for infer_s, asks in ((1.1, False), (1 / 1.1, False), (1.2, True), (1 / 1.2, True)):
        planner.stale.clear()
        priors.of["a"] = replace(PRIOR, infer_s=infer_s)
        planner.check_prior(pools(planner)["a"])
        assert (planner.stale == {"m"}) is asks
    assert planner.version == version + 2
    pools(planner)["a"].take(1000)
    planner.stale.clear()
    planner.check_prior(pools(planner)["a"])
    assert not planner.stale  # nothing of it is left to plan


def test_a_done_share_calls_the_others_and_a_done_checkpoint_frees_its_workers() -> None:
    planner = make_planner("m", "x")
    planner.regroup_due = False
    planner.ask_again("m")
    assert planner.version == 1 and not planner.regroup_due
    for pool in pools(planner).values():
        pool.take(1000)
    planner.ask_again("m")
    assert planner.regroup_due and planner.version == 2
    for pool in pools(planner, "x").values():
        pool.take(1000)
    planner.regroup_due = False
    planner.ask_again("m")
    assert not planner.regroup_due and planner.version == 2


def test_served_seconds_add_up() -> None:
    planner = make_planner()
    planner.serve("m", 2.0)
    planner.serve("m", 3.0)
    assert planner.served_s == {"m": 5.0}


def test_a_worker_needs_the_gpus_and_a_node_that_can_load() -> None:
    planner = make_planner()
    state, checkpoint = planner.cluster.states["w0"], planner.ledger.checkpoints["m"]
    assert planner.can_run(state, checkpoint) and not planner.can_run(state, replace(checkpoint, gpus=2))
    planner.cluster.memories["n0"].failures["m"] = 1
    assert planner.can_run(state, checkpoint)
    planner.cluster.memories["n0"].failures["m"] = 2
    assert not planner.can_run(state, checkpoint)


@pytest.mark.parametrize(
    ("place", "before_s"),
    [("storage", 3 + 4), ("on its way", 1 + 4), ("node", 4), ("worker", 0)],
)
def test_a_worker_begins_when_the_model_is_loaded_and_started(place: str, before_s: float) -> None:
    planner = make_planner(priors=Table(a=UNSCORED, b=UNSCORED), workers=1)
    state, memory = planner.cluster.states["w0"], planner.cluster.memories["n0"]
    if place == "on its way":
        memory.loading["m"], memory.began_s["m"] = None, 98.0  # two of three seconds are over
    elif place != "storage":
        memory.loaded["m"] = 10
    state.checkpoint = "m" if place == "worker" else None
    planner.fill_queue(state, 100.0)
    assert planner.end_s == pytest.approx(100 + before_s + 2 * (2 + 100), abs=0.9)


def test_what_a_worker_runs_now_is_over_before_it_begins_another_share() -> None:
    planner = make_planner(priors=Table(a=UNSCORED, b=UNSCORED), workers=1)
    state = planner.cluster.states["w0"]
    part = pools(planner)["a"].take(50)
    assert part is not None
    planner.cluster.memories["n0"].loaded["m"] = 10
    planner.cluster.begin(state, Trial(id="t", checkpoint="m", parts=(part,), expected_s=60.0), 0.0)
    planner.change(["m"])
    planner.fill_queue(state, 20.0)
    # 40 s of the trial are left, then the rest of its dataset, which is ready, and the other with its set-up.
    assert planner.end_s == pytest.approx(20 + 40 + 50 + 2 + 100, abs=0.9)
    assert [share.key[1] for share in state.queue] == ["a", "b"]


def test_a_worker_that_keeps_one_dataset_makes_the_others_ready_again() -> None:
    ends_s = []
    for kept in (1, 2):
        planner = make_planner(priors=Table(a=UNSCORED, b=UNSCORED), workers=1, kept=kept)
        state = planner.cluster.states["w0"]
        planner.cluster.memories["n0"].loaded["m"] = 10
        state.checkpoint, state.held = "m", ["a", "b"]
        planner.fill_queue(state, 0.0)
        ends_s.append(planner.end_s)
    assert ends_s == pytest.approx([202.0, 200.0], abs=0.9)


def test_workers_go_to_the_higher_priority_first_and_the_rest_to_the_next() -> None:
    planner = make_planner("m", "x", workers=3, samples=4)
    planner.ledger.checkpoints["x"] = replace(planner.ledger.checkpoints["x"], priority=1)
    planner.fill_queue(planner.cluster.states["w0"], 0.0)
    groups = [state.group for state in planner.cluster.states.values()]
    # 12 s of work are worth two workers, where a start, a set-up and the shortest part take 8 s.
    assert groups.count("x") == 2 and groups.count("m") == 1


def test_a_checkpoint_of_many_gpus_takes_the_wide_workers_before_others_can() -> None:
    planner = make_planner("m", "x", workers=2)
    planner.ledger.checkpoints["x"] = replace(planner.ledger.checkpoints["x"], gpus=2)
    planner.cluster.add_worker(Worker(id="wide", node="n0", gpus=(1, 2)))
    planner.fill_queue(planner.cluster.states["w0"], 0.0)
    assert {name: state.group for name, state in planner.cluster.states.items()} == {"w0": "m", "w1": "m", "wide": "x"}


def test_a_worker_that_helps_nobody_goes_back_to_its_own_checkpoint() -> None:
    planner = make_planner("m", "x", workers=2, samples=1)
    states = planner.cluster.states
    planner.fill_queue(states["w0"], 0.0)
    free = next(state for state in states.values() if state.group == "m")
    for pool in pools(planner).values():
        pool.take(1)
    planner.cluster.memories["n0" if free.worker.id == "w1" else "n1"].loaded["x"] = 10
    planner.load_s = lambda checkpoint: 1000.0  # by then the other worker is done
    free.queue = []
    planner.change()
    planner.fill_queue(free, 1.0)
    assert free.group == "m" and free.queue == [] and free.rested == planner.version


@pytest.mark.parametrize(("share", "whole"), [(3, True), (4, False)])
def test_a_share_is_cut_where_both_pieces_are_long_enough(share: int, whole: bool) -> None:
    planner = make_planner()
    state = planner.cluster.states["w0"]
    state.queue = [Share(key=("m", "a"), samples=share)]
    trial = cut_trial(state, pools(planner), "t", CuttingConfig(min_part_s=2.0), Outlook())
    assert trial is not None and (trial.parts[0].samples == share) is whole


def test_the_first_set_up_of_each_dataset_is_certain_and_no_other() -> None:
    planner = make_planner("m", "x")
    works = {work.key: work.setup_s for work in planner.all_works(measured=False)}
    assert works == {("m", "a"): 2.0, ("m", "b"): 2.0, ("x", "a"): 0.0, ("x", "b"): 0.0}


def test_a_free_worker_helps_the_checkpoint_that_would_end_last() -> None:
    planner = make_planner("m", "x", "y", workers=3)
    states = planner.cluster.states
    planner.fill_queue(states["w0"], 0.0)
    assert {state.group for state in states.values()} == {"m", "x", "y"}
    free = next(state for state in states.values() if state.group == "m")
    for pool in pools(planner).values():
        pool.take(1000)
    pools(planner, "x")["a"].take(90)
    planner.change(["x", "y"])
    planner.ends_s.update(x=50.0, y=120.0)
    free.queue = []
    planner.fill_queue(free, 10.0)
    assert free.group == "y" and free.queue


# -- how far a run is


def test_time_left_is_that_of_inference_or_of_scores_whichever_is_longer() -> None:
    planner = make_planner()
    scores = ScoreQueue(cpus={"n0": 2, "n1": 2})

    def left(seconds: float) -> float:
        return measure_progress(planner.ledger, planner.cluster, scores, trials_done=0, left_s=seconds).time_left_s

    assert left(10.0) == pytest.approx(200 * 0.5 / 4)  # four CPUs score 200 samples
    assert left(40.0) == 40.0
    planner.ledger.num_open = 0
    assert left(40.0) == 0.0


def test_every_sample_and_gpu_is_counted_once() -> None:
    planner = make_planner(workers=3)
    pool = pools(planner)["a"]
    for place in (pool.scored, pool.outputs, pool.failed):
        part = pool.take(10)
        assert part is not None
        pool.running.discard(part)
        place.add(part)
    part = pool.take(5)
    assert part is not None
    planner.cluster.begin(planner.cluster.states["w0"], Trial(id="t", checkpoint="m", parts=(part,)), 0.0)
    seen = measure_progress(planner.ledger, planner.cluster, ScoreQueue(), trials_done=3, left_s=1.0)
    assert (seen.samples, seen.inferred, seen.scored, seen.failed) == (200, 20, 10, 10)
    assert (seen.trials_done, seen.trials_running, seen.workers, seen.gpus, seen.gpus_busy) == (3, 1, 3, 3, 1)


@pytest.mark.parametrize(
    ("policy", "turns"),
    [
        (TransferPolicy(), (1, 1, 1)),
        (TransferPolicy(storage_readers=1), (1, 2, 3)),
        (TransferPolicy(storage_readers=2), (1, 1, 2)),
        (TransferPolicy(storage_readers=1, pass_on=True), (1, 1, 1)),
    ],
    ids=["all at once", "one by one", "two by two", "passed on"],
)
def test_nodes_that_take_turns_at_storage_start_later_in_the_bound(
    policy: TransferPolicy, turns: tuple[int, ...]
) -> None:
    planner = make_planner(workers=3, samples=300)
    rooms = sum(3.0 * turn for turn in turns)
    # Three workers share 600 s of work; each makes ready one dataset at least, one of them both.
    assert find_bound_s(planner, policy, []) == pytest.approx((rooms + 3 * 4 + 600 + 4 * 2) / 3, abs=1.5)


def test_the_bound_counts_no_load_that_was_not_measured() -> None:
    planner = make_planner(workers=1)
    expected_s = 4 + 2 * (2 + 100)
    assert find_bound_s(planner, TransferPolicy(), []) == pytest.approx(3 + expected_s)
    planner.priors.observe_score(pools(planner)["a"].dataset, planner.ledger.checkpoints["m"], samples=1, seconds=1.0)
    assert find_bound_s(planner, TransferPolicy(), []) == pytest.approx(expected_s)
    assert find_bound_s(planner, TransferPolicy(), [7.0, 5.0]) == pytest.approx(5 + expected_s)


# -- packing


def test_few_long_samples_are_cut_over_as_many_workers() -> None:
    slots = [Slot(worker=name, ready_s=0.0) for name in "vw"]
    packing = pack(slots, [Work(key=("m", "a"), samples=2, setup_s=0.0, infer_s=10.0, score_s=0.0)], 5.0)
    assert packing.end_s == pytest.approx(10.0, rel=0.005)
    assert [share.samples for shares in packing.queues.values() for share in shares] == [1, 1]


def test_no_worker_takes_a_part_that_is_shorter_than_the_shortest_allowed() -> None:
    work = Work(key=("m", "a"), samples=100, setup_s=0.0, infer_s=0.1, score_s=0.0)
    packing = pack([Slot(worker=f"w{i}", ready_s=0.0) for i in range(50)], [work], 2.5)
    assert len(packing.queues) == 4 and packing.end_s == pytest.approx(2.5, rel=0.01)


@pytest.mark.parametrize(("samples", "score_s", "tail_s"), [(1, 30.0, 30.0), (2, 0.5, 1.0)])
def test_the_end_is_when_the_last_part_is_scored(samples: int, score_s: float, tail_s: float) -> None:
    work = Work(key=("m", "a"), samples=samples, setup_s=0.0, infer_s=1.0, score_s=score_s)
    packing = pack([Slot(worker="w", ready_s=0.0)], [work], 2.0)
    assert packing.end_s == pytest.approx(samples + tail_s, rel=0.005)


def test_a_dataset_that_cannot_be_split_and_takes_long_to_score_is_placed_first() -> None:
    slots = [Slot(worker="v", ready_s=0.0), Slot(worker="w", ready_s=0.0)]
    long = Work(key=("m", "a"), samples=10, setup_s=0.0, infer_s=1.0, score_s=5.0, splittable=False)
    others = [
        Work(key=("m", name), samples=20, setup_s=0.0, infer_s=1.0, score_s=0.0, splittable=False) for name in "bc"
    ]
    packing = pack(slots, [*others, long], 1.0)
    first = {worker: shares[0].key[1] for worker, shares in packing.queues.items()}
    assert "a" in first.values() and packing.end_s == pytest.approx(60.0, rel=0.01)


def test_with_nothing_to_do_the_end_is_when_the_last_worker_is_ready() -> None:
    slots = [Slot(worker="v", ready_s=2.0), Slot(worker="w", ready_s=7.0)]
    assert pack(slots, [], 1.0).end_s == 7.0 and pack([], [], 1.0).end_s == 0.0
