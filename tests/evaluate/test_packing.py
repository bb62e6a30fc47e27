"""Packing of datasets onto workers, and the bound it is measured against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.evaluate.schedule.bound import Supply, lower_bound_s
from prism.evaluate.schedule.fair_share import Candidate, Demand, apportion, share_workers
from prism.evaluate.schedule.packing import Slot, Work, pack
from prism.evaluate.schedule.transfers import Memory, TransferPolicy, choose_transfers
from prism.evaluate.schedule.trials import Node

seconds = st.floats(0, 1000, allow_nan=False)


def make_work(name: str, samples: int, infer_s: float = 1.0, **fields: float) -> Work:
    settings = {"setup_s": 5.0, "score_s": 0.0, **fields}
    return Work(key=("c", name), samples=samples, infer_s=infer_s, **settings)  # type: ignore[arg-type]


works = st.lists(
    st.builds(
        lambda i, n, infer, setup, score, split, trusted: Work(
            key=("c", f"d{i}"),
            samples=n,
            infer_s=infer,
            setup_s=setup,
            score_s=score,
            splittable=split,
            trusted=trusted,
        ),
        st.integers(0, 10**6),
        st.integers(1, 500),
        st.floats(0, 10),
        st.floats(0, 50),
        st.floats(0, 2),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda work: work.key,
)


@given(works, st.lists(seconds, min_size=1, max_size=9))
def test_every_sample_is_packed_once_and_the_bound_holds(works: list[Work], ready: list[float]) -> None:
    slots = [Slot(worker=f"w{i}", ready_s=ready_s) for i, ready_s in enumerate(ready)]
    packing = pack(slots, works, min_part_s=1.0)
    packed: dict[tuple[str, str], int] = {}
    for shares in packing.queues.values():
        for share in shares:
            assert share.samples > 0
            packed[share.key] = packed.get(share.key, 0) + share.samples
    assert packed == {work.key: work.samples for work in works}
    by_key = {work.key: work for work in works}
    for slot in slots:
        end_s = slot.ready_s
        for share in packing.queues.get(slot.worker, ()):
            work = by_key[share.key]
            end_s += work.setup_s + share.samples * work.infer_s
        assert end_s <= max(packing.end_s, slot.ready_s) * (1 + 1e-9) + 1e-6
    bound_s = lower_bound_s(works, Supply(ready_s=tuple(ready), start_s=0.0, cpus=10**6))
    assert bound_s <= packing.end_s * (1 + 1e-6) + 1e-6


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 10), st.floats(0, 10), st.booleans()), min_size=1, max_size=3),
    st.lists(st.floats(0, 20), min_size=1, max_size=3),
)
def test_the_best_of_all_schedules_does_not_beat_the_bound(
    given_works: list[tuple[int, float, float, bool]], ready: list[float]
) -> None:
    """Small enough to try every way to cut the datasets over the workers."""
    works = [
        Work(key=("c", f"d{i}"), samples=n, infer_s=infer_s, setup_s=setup_s, score_s=0.0, splittable=split)
        for i, (n, infer_s, setup_s, split) in enumerate(given_works)
    ]
    best_s = min(
        max(
            at_s + sum(work.setup_s + cut[i] * work.infer_s for work, cut in zip(works, cuts, strict=True) if cut[i])
            for i, at_s in enumerate(ready)
            if any(cut[i] for cut in cuts)
        )
        for cuts in itertools.product(*(list(all_cuts(work, len(ready))) for work in works))
    )
    bound_s = lower_bound_s(works, Supply(ready_s=tuple(ready), start_s=0.0, cpus=10**6))
    assert bound_s <= best_s * (1 + 1e-6) + 1e-6


def all_cuts(work: Work, workers: int) -> Iterator[tuple[int, ...]]:
    """Every way to give a dataset's samples to workers."""
    for cut in itertools.product(range(work.samples + 1), repeat=workers):
        if sum(cut) == work.samples and (work.splittable or max(cut) == work.samples):
            yield cut


@given(works, st.integers(1, 20), st.integers(1, 20))
def test_more_workers_never_raise_the_bound(works: list[Work], few: int, more: int) -> None:
    bounds = [lower_bound_s(works, Supply(ready_s=(3.0,) * n, start_s=1.0, cpus=4)) for n in (few, few + more)]
    assert bounds[1] <= bounds[0] * (1 + 1e-9)


def test_the_bound_counts_load_start_setup_and_work() -> None:
    bound_s = lower_bound_s([make_work("d", 100)], Supply(ready_s=(4.0,), start_s=2.0, cpus=1))
    assert bound_s == pytest.approx(4 + 2 + 5 + 100)


def test_the_bound_counts_a_setup_for_each_share() -> None:
    # Two workers share 100 s: each makes the dataset ready, so 55 s and not 52.5 s.
    bound_s = lower_bound_s([make_work("d", 100)], Supply(ready_s=(0.0, 0.0), start_s=0.0, cpus=1))
    assert bound_s == pytest.approx(55)


def test_the_bound_counts_what_a_share_leaves_of_no_use() -> None:
    """Three times 16 s on two workers are 24 s each; but of 24 s, 16 leave less than another set-up of 10 s."""
    works = [make_work(name, 6, setup_s=10.0) for name in "abc"]
    assert lower_bound_s(works, Supply(ready_s=(0.0, 0.0), start_s=0.0, cpus=9)) == pytest.approx(26.0)


def test_the_bound_of_a_dataset_that_cannot_be_split_has_its_score_at_the_end() -> None:
    work = make_work("d", 100, score_s=0.5, splittable=False)
    assert lower_bound_s([work], Supply(ready_s=(0.0,) * 8, start_s=0.0, cpus=8)) == pytest.approx(155)


def test_the_bound_counts_cpus() -> None:
    work = make_work("d", 100, score_s=10.0)
    assert lower_bound_s([work], Supply(ready_s=(0.0,) * 8, start_s=0.0, cpus=2)) == pytest.approx(6 + 500)


def test_the_bound_counts_further_starts_of_more_checkpoints() -> None:
    two = [Work(key=(c, "d"), samples=100, infer_s=1.0, setup_s=0.0, score_s=0.0) for c in ("a", "b")]
    assert lower_bound_s(two, Supply(ready_s=(0.0,), start_s=10.0, cpus=1)) == pytest.approx(10 + 200 + 10)


def test_a_large_dataset_is_cut_over_idle_workers_and_a_small_one_is_not() -> None:
    slots = [Slot(worker=f"w{i}", ready_s=0.0) for i in range(4)]
    packing = pack(slots, [make_work("large", 300), make_work("small", 50)], min_part_s=1.0)
    takers = [share.key[1] for shares in packing.queues.values() for share in shares]
    assert takers.count("small") == 1
    assert takers.count("large") >= 3
    assert packing.end_s < 100


def test_a_worker_goes_on_with_the_dataset_it_holds() -> None:
    works = [make_work("a", 100, setup_s=20.0), make_work("b", 100, setup_s=20.0)]
    slots = [Slot(worker="w0", ready_s=0.0, held=(("c", "b"),)), Slot(worker="w1", ready_s=0.0, held=(("c", "a"),))]
    packing = pack(slots, works, min_part_s=1.0)
    assert packing.queues["w0"][0].key == ("c", "b")
    assert packing.end_s == pytest.approx(100, rel=0.02)


def test_nothing_to_do_is_packed_as_nothing() -> None:
    assert pack([], [make_work("d", 1)], 1.0).queues == {}
    assert pack([Slot(worker="w", ready_s=3.0)], [], 1.0).end_s == 3.0


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 30)), min_size=1, max_size=8), st.integers(1, 40))
def test_workers_are_apportioned_without_waste(given_claims: list[tuple[float, int]], workers: int) -> None:
    demands = [Demand(checkpoint=f"c{i}", weight=w, useful=u) for i, (w, u) in enumerate(given_claims)]
    numbers = apportion(demands, workers)
    assert sum(numbers.values()) == min(workers, sum(demand.useful for demand in demands))
    assert all(numbers[demand.checkpoint] <= demand.useful for demand in demands)
    if workers >= len(demands):
        assert min(numbers.values()) >= 1


def test_workers_keep_the_checkpoint_they_hold() -> None:
    demands = [Demand(checkpoint=name, weight=1, useful=99) for name in ("a", "b")]
    candidates = [Candidate(worker=f"w{i}", node="n", holds="b" if i < 2 else "a") for i in range(4)]
    assert share_workers(demands, candidates) == {"w0": "b", "w1": "b", "w2": "a", "w3": "a"}


def test_checkpoints_go_to_whole_nodes() -> None:
    demands = [Demand(checkpoint=name, weight=1, useful=99) for name in ("a", "b")]
    candidates = [Candidate(worker=f"n{i % 2}w{i}", node=f"n{i % 2}") for i in range(8)]
    given = share_workers(demands, candidates)
    assert len({given[candidate.worker] for candidate in candidates if candidate.node == "n0"}) == 1


def test_a_node_without_room_waits_with_its_load() -> None:
    memory = Memory(node=Node(id="n", memory_bytes=100), loaded={"a": 80})
    assert not choose_transfers([("n", "b")], {"n": memory}, {"a": 80, "b": 80}, TransferPolicy())
    memory.loaded.clear()
    assert len(choose_transfers([("n", "b")], {"n": memory}, {"a": 80, "b": 80}, TransferPolicy())) == 1
