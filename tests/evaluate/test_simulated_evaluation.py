"""The scheduler driven by a simulated cluster: how long whole evaluations take."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.evaluate.schedule import events
from prism.evaluate.schedule.bound import Supply, lower_bound_s
from prism.evaluate.schedule.packing import Work
from prism.evaluate.schedule.priors import Prior, Priors, Record
from prism.evaluate.schedule.scheduler import Scheduler, SchedulerConfig
from prism.evaluate.schedule.transfers import TransferPolicy
from prism.evaluate.schedule.trials import Checkpoint, Dataset, Node, Worker
from proving.benchmarks.evaluate_cluster import Links, SharedLinks, SimulatedRun, simulate_evaluation

MODEL = Checkpoint(name="m", path="", bytes=4_000, parameters=10)
LINKS = Links(node=1_000.0)  # a load takes 4 s


def make_truth(seed: int, num_datasets: int) -> tuple[list[Dataset], dict[tuple[str, str], Prior]]:
    rng = random.Random(seed)
    datasets = [
        Dataset(name=f"d{i}", adapter="builtin", task="", samples=rng.randint(50, 2000)) for i in range(num_datasets)
    ]
    truth = {}
    for dataset in datasets:
        total_s = 60 * rng.lognormvariate(0, 1)
        infer_s = total_s / dataset.samples
        truth[MODEL.name, dataset.name] = Prior(start_s=5, setup_s=5, infer_s=infer_s, score_s=infer_s / 3)
    return datasets, truth


def simulate(
    seed: int, nodes: int, *, wrong: float = 1.0, num_datasets: int = 20, interruptions: tuple[events.Event, ...] = ()
) -> tuple[SimulatedRun, float]:
    """A run and its lower bound by the true run times."""
    datasets, truth = make_truth(seed, num_datasets)
    rng = random.Random(seed)
    records = [
        Record(
            dataset=name,
            parameters=10,
            infer_s=true.infer_s * wrong ** rng.choice((-1, 1)),
            score_s=true.score_s,
            setup_s=5.0,
            start_s=5.0,
        )
        for (_, name), true in truth.items()
    ]
    run = simulate_evaluation(
        Scheduler([MODEL], datasets, Priors(records), SchedulerConfig(storage_bytes_per_s=LINKS.node)),
        checkpoints=[MODEL],
        truth=truth,
        nodes=[Node(id=f"n{n}", cpus=16) for n in range(nodes)],
        workers=[Worker(id=f"n{n}g{g}", node=f"n{n}", gpus=(g,)) for n in range(nodes) for g in range(4)],
        links=LINKS,
        interruptions=interruptions,
    )
    works = [
        Work(
            key=(MODEL.name, d.name),
            samples=d.samples,
            setup_s=5.0,
            infer_s=truth[MODEL.name, d.name].infer_s,
            score_s=truth[MODEL.name, d.name].score_s,
        )
        for d in datasets
    ]
    return run, lower_bound_s(works, Supply(ready_s=(4.0,) * (nodes * 4), start_s=5.0, cpus=nodes * 16))


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_no_run_beats_the_bound_and_known_run_times_come_close(seed: int, nodes: int) -> None:
    run, bound_s = simulate(seed, nodes)
    assert bound_s * (1 - 1e-9) <= run.makespan_s <= 1.08 * bound_s


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_run_times_wrong_by_two_cost_little(seed: int, nodes: int) -> None:
    run, bound_s = simulate(seed, nodes, wrong=2.0)
    assert bound_s * (1 - 1e-9) <= run.makespan_s <= 1.25 * bound_s


def test_each_node_loads_the_model_once() -> None:
    run, _ = simulate(1, nodes=3)
    assert run.num_loads == 3


def test_workers_that_die_and_come_back_cost_their_time_only() -> None:
    calm, _ = simulate(3, nodes=2)
    gone = tuple(events.WorkerLost(now_s=30.0, worker=f"n0g{g}") for g in range(4))
    back = tuple(events.WorkerJoined(now_s=60.0, worker=Worker(id=f"n0g{g}", node="n0", gpus=(g,))) for g in range(4))
    hit, _ = simulate(3, nodes=2, interruptions=gone + back)
    assert hit.failed_samples == 0
    assert calm.makespan_s < hit.makespan_s < calm.makespan_s + 45


def test_hardware_that_joins_shortens_the_run() -> None:
    alone, _ = simulate(4, nodes=1)
    more: list[events.Event] = [events.NodeJoined(now_s=20.0, node=Node(id="x", cpus=16))]
    more += [events.WorkerJoined(now_s=20.0, worker=Worker(id=f"x{g}", node="x", gpus=(g,))) for g in range(4)]
    helped, _ = simulate(4, nodes=1, interruptions=tuple(more))
    assert helped.makespan_s < 0.7 * alone.makespan_s


def test_readers_of_a_link_share_it() -> None:
    links = SharedLinks(Links(node=100.0))
    links.add(("n", "a"), "n", 100, 0.0)
    links.add(("n", "b"), "n", 200, 0.0)
    assert links.next_end_s() == pytest.approx(2.0)
    assert links.advance(2.0) == [("n", "a")]
    assert links.next_end_s() == pytest.approx(3.0)


def test_passing_a_model_on_beats_reading_a_narrow_storage_together() -> None:
    datasets, truth = make_truth(0, 20)
    narrow = Links(node=1_000.0, storage=1_000.0, peer=10_000.0)
    makespans = []
    for policy in (TransferPolicy(), TransferPolicy(storage_readers=1, pass_on=True)):
        scheduler = Scheduler([MODEL], datasets, Priors(), SchedulerConfig(transfers=policy, storage_bytes_per_s=1_000))
        run = simulate_evaluation(
            scheduler,
            checkpoints=[MODEL],
            truth=truth,
            nodes=[Node(id=f"n{n}") for n in range(8)],
            workers=[Worker(id=f"w{n}", node=f"n{n}", gpus=(0,)) for n in range(8)],
            links=narrow,
        )
        makespans.append(run.makespan_s)
    assert makespans[1] < makespans[0] - 10
