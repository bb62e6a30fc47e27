"""The scheduler's parts one by one, on inputs small enough to be worked out by hand."""

from __future__ import annotations

import pytest

from prism.evaluate.schedule.actions import LoadCheckpoint
from prism.evaluate.schedule.bound import Supply, lower_bound_s
from prism.evaluate.schedule.cluster import Cluster, RunningTrial, WorkerState
from prism.evaluate.schedule.cutting import CuttingConfig, Outlook, cut_trial
from prism.evaluate.schedule.fair_share import Candidate, Demand, apportion, share_workers
from prism.evaluate.schedule.ledger import Ledger, Retry
from prism.evaluate.schedule.packing import Share, Slot, Work, pack
from prism.evaluate.schedule.pools import Pool, open_pool
from prism.evaluate.schedule.priors import Prior, Priors
from prism.evaluate.schedule.score_queue import ScoreQueue
from prism.evaluate.schedule.transfers import Memory, TransferPolicy, choose_transfers
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Kept, Node, Part, Trial, Worker

MODEL = Checkpoint(name="m", path="", bytes=10, parameters=1)
PRIOR = Prior(start_s=4.0, setup_s=2.0, infer_s=1.0, score_s=0.5, measured=True)


def part(first: int, last: int, dataset: str = "d") -> Part:
    return Part(checkpoint="m", dataset=dataset, first=first, last=last)


def make_pool(samples: int = 100, prior: Prior = PRIOR, *, name: str = "d", splittable: bool = True) -> Pool:
    dataset = Dataset(name=name, adapter="builtin", task="", samples=samples, splittable=splittable)
    return open_pool(MODEL, dataset, prior, set(), set())


def make_work(name: str, samples: int, **fields: float | bool) -> Work:
    settings = {"setup_s": 0.0, "infer_s": 1.0, "score_s": 0.0, **fields}
    return Work(key=("m", name), samples=samples, **settings)  # type: ignore[arg-type]


def make_desk(*shares: tuple[str, int], checkpoint: str | None = "m", held: tuple[str, ...] = ()) -> WorkerState:
    state = WorkerState(worker=Worker(id="w", node="n"), checkpoint=checkpoint, held=list(held))
    state.queue = [Share(key=("m", name), samples=samples) for name, samples in shares]
    return state


# -- the bound


def test_the_bound_of_one_worker_is_load_start_setup_and_work() -> None:
    supply = Supply(ready_s=(3.0,), start_s=4.0, cpus=10**6)
    assert lower_bound_s([make_work("a", 10, setup_s=2.0)], supply) == pytest.approx(3 + 4 + 2 + 10)


def test_the_bound_of_two_workers_counts_two_setups_where_a_dataset_is_cut() -> None:
    supply = Supply(ready_s=(0.0, 0.0), start_s=0.0, cpus=10**6)
    assert lower_bound_s([make_work("a", 20, setup_s=2.0)], supply) == pytest.approx(12.0, rel=1e-6)
    assert lower_bound_s([make_work("a", 20, setup_s=2.0, splittable=False)], supply) == pytest.approx(22.0)


def test_the_bound_waits_for_the_cpus() -> None:
    supply = Supply(ready_s=(0.0,), start_s=0.0, cpus=2)
    assert lower_bound_s([make_work("a", 10, score_s=6.0)], supply) == pytest.approx(1 + 10 * 6 / 2)


def test_a_second_checkpoint_on_the_same_worker_needs_a_second_start() -> None:
    supply = Supply(ready_s=(0.0,), start_s=5.0, cpus=10**6)
    works = [make_work("a", 10), Work(key=("x", "a"), samples=10, setup_s=0.0, infer_s=1.0, score_s=0.0)]
    assert lower_bound_s(works, supply) == pytest.approx(5 + 10 + 5 + 10)


def test_nothing_to_do_or_nobody_to_do_it_has_no_bound() -> None:
    supply = Supply(ready_s=(0.0,), start_s=5.0, cpus=1)
    assert lower_bound_s([], supply) == 0.0
    assert lower_bound_s([make_work("a", 0)], supply) == 0.0
    assert lower_bound_s([make_work("a", 1)], Supply(ready_s=(), start_s=0.0, cpus=1)) == 0.0


# -- cutting


@pytest.mark.parametrize(("crowded", "expected"), [(False, 50), (True, 12)])
def test_half_of_a_share_is_cut_or_an_eighth_where_workers_crowd(crowded: bool, expected: int) -> None:
    trial = cut_trial(make_desk(("d", 100)), {"d": make_pool()}, "t", CuttingConfig(), Outlook(crowded=crowded))
    assert trial is not None and trial.parts == (part(0, expected),)


def test_a_part_is_never_longer_than_the_longest_allowed() -> None:
    config = CuttingConfig(max_part_s=7.0)
    trial = cut_trial(make_desk(("d", 100)), {"d": make_pool()}, "t", config, Outlook())
    assert trial is not None and trial.parts[0].samples == 7


def test_a_share_too_short_to_cut_is_taken_whole() -> None:
    pools = {"d": make_pool(prior=Prior(start_s=0, setup_s=0, infer_s=0.019, score_s=0.0, measured=True))}
    trial = cut_trial(make_desk(("d", 100)), pools, "t", CuttingConfig(), Outlook())
    assert trial is not None and trial.parts == (part(0, 100),)


def test_a_dataset_that_cannot_be_split_is_taken_whole() -> None:
    state = make_desk(("d", 100))
    trial = cut_trial(state, {"d": make_pool(splittable=False)}, "t", CuttingConfig(), Outlook())
    assert trial is not None and trial.parts == (part(0, 100),) and state.queue == []


def test_small_datasets_share_a_trial_up_to_the_limit() -> None:
    short = Prior(start_s=4.0, setup_s=2.0, infer_s=0.1, score_s=0.0, measured=True)
    pools = {name: make_pool(10, short, name=name) for name in "abcde"}
    state = make_desk(*((name, 10) for name in "abcde"))
    trial = cut_trial(state, pools, "t", CuttingConfig(merge_s=9.5), Outlook())
    assert trial is not None
    assert [p.dataset for p in trial.parts] == ["a", "b", "c"]  # 3 s each; one more second would pass 9.5 s
    assert trial.expected_s == pytest.approx(3 * (2.0 + 1.0))
    assert [share.key[1] for share in state.queue] == ["d", "e"]


@pytest.mark.parametrize(
    ("checkpoint", "held", "before_s"), [(None, (), 6.0), ("m", (), 2.0), ("m", ("d",), 0.0), ("x", ("d",), 4.0)]
)
def test_start_and_setup_are_expected_where_they_are_needed(
    checkpoint: str | None, held: tuple[str, ...], before_s: float
) -> None:
    state = make_desk(("d", 100), checkpoint=checkpoint, held=held)
    trial = cut_trial(state, {"d": make_pool()}, "t", CuttingConfig(), Outlook())
    assert trial is not None and trial.expected_s == pytest.approx(before_s + 50)


def test_a_share_that_others_have_taken_is_passed_over() -> None:
    pools = {"a": make_pool(name="a"), "b": make_pool(4, name="b")}
    while pools["a"].take(1000):
        pass
    state = make_desk(("a", 10), ("b", 4))
    trial = cut_trial(state, pools, "t", CuttingConfig(), Outlook())
    assert trial is not None and {p.dataset for p in trial.parts} == {"b"}
    assert cut_trial(make_desk(("a", 10)), pools, "t", CuttingConfig(), Outlook()) is None


def test_a_trial_shrinks_as_its_most_shrunken_dataset() -> None:
    short = Prior(start_s=0.0, setup_s=0.0, infer_s=0.01, score_s=0.0, measured=True)
    pools = {name: make_pool(10, short, name=name) for name in "ab"}
    pools["b"].shrink = 2
    trial = cut_trial(make_desk(("a", 10), ("b", 10)), pools, "t", CuttingConfig(), Outlook())
    assert trial is not None and trial.shrink == 2 and len(trial.parts) == 2


# -- pools and the ledger


def test_parts_given_back_join_their_neighbours_only() -> None:
    pool = make_pool(30)
    first, second, third = (pool.take(10) for _ in range(3))
    assert first and second and third and not pool.waiting
    pool.give_back(first)
    pool.give_back(third)
    assert pool.waiting == [first, third]
    pool.give_back(second)
    assert pool.waiting == [part(0, 30)] and pool.num_waiting == 30 and not pool.running


def test_a_pool_opens_without_what_was_kept_and_drops_what_overlaps() -> None:
    dataset = Dataset(name="d", adapter="builtin", task="", samples=30)
    pool = open_pool(MODEL, dataset, PRIOR, {part(5, 12), part(20, 25), part(28, 40)}, {part(0, 10)})
    assert pool.scored == {part(0, 10)} and pool.outputs == {part(20, 25)}
    assert pool.waiting == [part(10, 20), part(25, 30)] and pool.fresh == 15


def test_half_of_a_dataset_that_cannot_be_split_is_not_kept() -> None:
    dataset = Dataset(name="d", adapter="builtin", task="", samples=30, splittable=False)
    assert open_pool(MODEL, dataset, PRIOR, {part(0, 10)}, set()).fresh == 30
    assert open_pool(MODEL, dataset, PRIOR, {part(0, 30)}, set()).fresh == 0


def test_nothing_is_taken_where_nothing_is_asked_for() -> None:
    assert make_pool().take(0) is None


def test_the_ledger_tells_the_end_of_a_dataset_once() -> None:
    dataset = Dataset(name="d", adapter="builtin", task="", samples=10)
    ledger = Ledger(datasets=[dataset], priors=Priors())
    assert list(ledger.add(MODEL, Kept(scored=(part(0, 10),)))) and ledger.num_open == 1
    (told,) = ledger.take_reports()
    assert told.parts == (part(0, 10),) and ledger.num_open == 0  # type: ignore[attr-defined]
    assert ledger.take_reports() == [] and ledger.add(MODEL) == ()


def test_giving_up_takes_the_retry_along_and_is_reported() -> None:
    dataset = Dataset(name="d", adapter="builtin", task="", samples=10)
    ledger = Ledger(datasets=[dataset], priors=Priors())
    (pool,) = ledger.add(MODEL)
    taken = pool.take(10)
    assert taken is not None
    pool.running.discard(taken)
    pool.retrying.add(taken)
    ledger.retries = [Retry(part=taken, attempt=2, avoid="w"), Retry(part=part(0, 1, "x"), attempt=2, avoid="w")]
    ledger.give_up_waiting(pool, "infer", "broken")
    assert [retry.part.dataset for retry in ledger.retries] == ["x"]
    (report,) = ledger.take_reports()
    assert report.text == "broken" and pool.failed == {taken} and ledger.num_open == 0  # type: ignore[attr-defined]


# -- scores


def test_the_longest_score_goes_first_to_the_node_that_wrote_the_outputs() -> None:
    queue = ScoreQueue(cpus={"a": 1, "b": 1})
    for first, seconds in ((0, 1.0), (1, 3.0), (2, 2.0)):
        queue.add(part(first, first + 1), seconds, "b")
    started = queue.start()
    assert [(p.first, scoring.node) for p, scoring in started] == [(1, "b"), (2, "a")]
    assert queue.start() == [] and queue.expected_s == pytest.approx(0.5)
    assert queue.end(part(1, 2)) is not None and queue.end(part(1, 2)) is None
    assert [(p.first, scoring.node) for p, scoring in queue.start()] == [(0, "b")]


def test_scores_of_a_lost_node_start_again_and_are_not_counted_as_tried() -> None:
    queue = ScoreQueue(cpus={"a": 1})
    queue.add(part(0, 1), 1.0, None)
    ((_, first),) = queue.start()
    queue.lose_node("a")
    assert queue.start() == [] and queue.waiting == {part(0, 1): 0.0}
    queue.cpus["b"] = 1
    ((_, second),) = queue.start()
    assert (first.attempt, second.attempt, second.node) == (1, 1, "b")
    queue.end(part(0, 1))
    queue.add(part(0, 1), 1.0, None)
    assert queue.start()[0][1].attempt == 2


# -- workers and nodes


def test_a_late_trial_is_taken_to_need_a_tenth_of_its_time_again() -> None:
    running = RunningTrial(trial=Trial(id="t", checkpoint="m", parts=(), expected_s=10.0), left=[], began_s=5.0)
    assert running.ready_s(7.0) == pytest.approx(8.0)
    assert running.ready_s(35.0) == pytest.approx(3.0)


def test_a_worker_joins_once_and_not_on_a_gpu_that_another_has() -> None:
    cluster = Cluster()
    assert not cluster.add_worker(Worker(id="w", node="n", gpus=(0,)))
    cluster.add_node(Node(id="n"))
    assert cluster.add_worker(Worker(id="w", node="n", gpus=(0,)))
    assert not cluster.add_worker(Worker(id="v", node="n", gpus=(0, 1)))
    assert cluster.add_worker(Worker(id="u", node="n", gpus=(1,)))
    assert set(cluster.idle) == {"w", "u"} and len(cluster.on_node("n")) == 2


def test_a_worker_is_idle_again_after_its_trial_unless_it_is_suspended() -> None:
    cluster = Cluster()
    cluster.add_node(Node(id="n"))
    cluster.add_worker(Worker(id="w", node="n"))
    state = cluster.states["w"]
    cluster.begin(state, Trial(id="t", checkpoint="m", parts=(part(0, 1),)), 1.0)
    assert not cluster.idle and cluster.trials == {"t": state}
    assert cluster.end(state) is not None and set(cluster.idle) == {"w"} and not cluster.trials
    cluster.suspend(state, "full disk")
    assert not cluster.idle and not cluster.usable
    cluster.resume()
    assert set(cluster.idle) == {"w"} and cluster.usable == [state]
    assert cluster.remove("w") is None and not cluster.states and not cluster.idle


# -- transfers and shares


def memories(**loaded: dict[str, int]) -> dict[str, Memory]:
    return {name: Memory(node=Node(id=name), loaded=dict(one)) for name, one in loaded.items()}


def test_a_model_that_does_not_fit_beside_another_waits_unless_the_node_is_empty() -> None:
    memory = Memory(node=Node(id="a", memory_bytes=15), loaded={"x": 10})
    assert memory.has_room(5, {}) and not memory.has_room(6, {})
    assert Memory(node=Node(id="a", memory_bytes=15)).has_room(99, {})
    assert Memory(node=Node(id="a"), loaded={"x": 10}).has_room(99, {})
    loading = Memory(node=Node(id="a", memory_bytes=15), loading={"x": None})
    assert not loading.has_room(6, {"x": 10}) and loading.has_room(5, {"x": 10})


def test_one_reader_of_storage_at_a_time_and_peers_serve_the_others() -> None:
    policy = TransferPolicy(storage_readers=1, pass_on=True)
    wants = [("a", "m"), ("b", "m"), ("c", "m")]
    sizes = {"m": 10}
    assert choose_transfers(wants, memories(a={}, b={}, c={}), sizes, policy) == [
        LoadCheckpoint(node="a", checkpoint="m", source=None)
    ]
    assert choose_transfers(wants, memories(a={"m": 10}, b={}, c={}), sizes, policy) == [
        LoadCheckpoint(node="b", checkpoint="m", source="a"),
        LoadCheckpoint(node="c", checkpoint="m", source=None),
    ]


def test_a_node_that_waits_for_storage_does_not_hold_up_one_that_has_a_peer() -> None:
    nodes = memories(a={}, b={}, c={}, d={"x": 10})
    nodes["a"].loading["m"] = None
    policy = TransferPolicy(storage_readers=1, pass_on=True)
    found = choose_transfers([("b", "m"), ("c", "x")], nodes, {"m": 10, "x": 10}, policy)
    assert found == [LoadCheckpoint(node="c", checkpoint="x", source="d")]


def test_a_model_is_fetched_from_the_node_that_serves_fewest() -> None:
    nodes = memories(a={"m": 10}, b={"m": 10}, c={}, d={})
    nodes["c"].loading["m"] = "a"
    policy = TransferPolicy(pass_on=True, peer_readers=2)
    assert choose_transfers([("d", "m")], nodes, {"m": 10}, policy)[0].source == "b"


def test_after_a_failed_load_a_node_goes_back_to_storage() -> None:
    nodes = memories(a={"m": 10}, b={})
    nodes["b"].failures["m"] = 1
    policy = TransferPolicy(pass_on=True)
    assert choose_transfers([("b", "m")], nodes, {"m": 10}, policy)[0].source is None


def test_a_node_loads_one_model_at_a_time_and_none_that_it_has() -> None:
    nodes = memories(a={"m": 10}, b={})
    found = choose_transfers([("a", "m"), ("b", "m"), ("b", "x")], nodes, {"m": 10, "x": 1}, TransferPolicy())
    assert found == [LoadCheckpoint(node="b", checkpoint="m", source=None)]


def test_workers_are_divided_by_weight_and_what_is_of_no_use_goes_to_others() -> None:
    demands = [Demand(checkpoint="a", weight=3.0, useful=99), Demand(checkpoint="b", weight=1.0, useful=99)]
    assert apportion(demands, 8) == {"a": 6, "b": 2}
    assert apportion(demands, 1) == {"a": 1, "b": 0}
    assert apportion([Demand(checkpoint="a", weight=3.0, useful=2), demands[1]], 8) == {"a": 2, "b": 6}


def test_a_checkpoint_goes_where_it_lies() -> None:
    candidates = [
        Candidate(worker="w0", node="n0", nearby=frozenset({"b"})),
        Candidate(worker="w1", node="n1", holds="a", nearby=frozenset({"b"})),
    ]
    demands = [Demand(checkpoint=name, weight=1.0, useful=9) for name in ("a", "b")]
    assert share_workers(demands, candidates) == {"w0": "b", "w1": "a"}


def test_with_fewer_workers_than_checkpoints_those_begun_come_first_then_those_served_least() -> None:
    candidates = [Candidate(worker="w", node="n", holds="c")]
    demands = [
        Demand(checkpoint="a", weight=1.0, useful=9, served_s=5.0),
        Demand(checkpoint="b", weight=2.0, useful=9, served_s=8.0),
        Demand(checkpoint="c", weight=1.0, useful=9, served_s=100.0),
    ]
    assert share_workers(demands, candidates) == {"w": "c"}
    assert share_workers(demands[:2], candidates) == {"w": "b"}


# -- packing


def test_a_dataset_too_large_for_one_worker_is_cut_over_two() -> None:
    slots = [Slot(worker="v", ready_s=0.0), Slot(worker="w", ready_s=0.0)]
    packing = pack(slots, [make_work("a", 100, setup_s=5.0)], 1.0)
    assert packing.end_s == pytest.approx(55, rel=0.01)
    assert sum(share.samples for shares in packing.queues.values() for share in shares) == 100


def test_what_takes_longest_to_score_comes_first_in_a_queue() -> None:
    works = [make_work(name, 10, score_s=s, splittable=False) for name, s in (("a", 0.1), ("b", 0.2))]
    (queue,) = pack([Slot(worker="w", ready_s=0.0)], works, 1.0).queues.values()
    assert [share.key[1] for share in queue] == ["b", "a"]


def test_a_busy_worker_gets_less() -> None:
    slots = [Slot(worker="v", ready_s=40.0), Slot(worker="w", ready_s=0.0)]
    packing = pack(slots, [make_work("a", 100)], 1.0)
    counts = {worker: sum(share.samples for share in shares) for worker, shares in packing.queues.items()}
    assert counts["w"] - counts["v"] == pytest.approx(40, abs=2)
