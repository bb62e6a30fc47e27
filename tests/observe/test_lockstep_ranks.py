"""Which ranks of a host are bound to each other, and which connections are of one kind."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest

from prism.observe.parallelism.connections import Connection, keep_step, measure_bond
from prism.observe.parallelism.gradient_groups import count_stages_by_load
from prism.observe.parallelism.lockstep_ranks import LockstepRanks, _compare_all, split_lockstep_ranks
from prism.observe.parallelism.pairs import choose_kind, label_pairs
from prism.observe.parallelism.shared_sequences import count_in_step

STEPS = 40
STEP_NS = 500_000_000
LENGTH_NS = 10_000_000


def make_connection(late_ns: np.ndarray) -> Connection:
    """A connection of one message per step, whose sender comes late by so much and which ends when its group does."""
    begin = np.arange(STEPS) * STEP_NS
    start = (begin + late_ns).astype(np.int64)
    end = begin + LENGTH_NS
    silence = np.concatenate([[0.0], (start[1:] - end[:-1]).astype(np.float64)])
    return Connection(src=0, start=start, end=end, silence=silence, shortest=LENGTH_NS * 0.9, moved=np.zeros(STEPS))


def place(seed: int, sharing: int, connections: int = 4) -> list[list[Connection]]:
    """One host with one group, in which `sharing` connections after each other come together."""
    rng = np.random.default_rng(seed)
    late = np.repeat(rng.normal(0, 1e6, (connections // sharing, STEPS)), sharing, axis=0) + rng.normal(
        0, 5e4, (connections, STEPS)
    )
    return [[make_connection(one) for one in late]]


@pytest.mark.parametrize("sharing", [1, 2, 4])
def test_ranks_that_share_a_sequence_come_closer_together_than_those_of_other_hosts(sharing: int) -> None:
    assert count_in_step([place(seed, sharing) for seed in (1, 2, 3)], STEP_NS, np.inf) == sharing


def test_replicas_of_a_host_that_is_late_as_a_whole_share_no_sequence() -> None:
    rng = np.random.default_rng(1)
    hosts = [rng.normal(0, 1e6, STEPS) for _ in range(3)]
    places = [[[make_connection(late + rng.normal(0, 4.5e5, STEPS)) for _ in range(2)]] for late in hosts]
    assert count_in_step(places, STEP_NS, np.inf) == 1


def make_pipeline(apart_ns: float, seed: int, first_late_ns: float = 0.0) -> Connection:
    """Sixteen micro-batches of 15 ms in a row and then nothing for longer, as activations go in GPipe."""
    rng = np.random.default_rng(seed)
    start = (np.arange(STEPS)[:, None] * 2 * STEP_NS + np.arange(16) * 15_000_000).ravel()
    start = start + rng.normal(0, apart_ns, len(start)).astype(np.int64)
    start[0] += int(first_late_ns)
    end = start + 2_000_000
    silence = np.concatenate([[0.0], (start[1:] - end[:-1]).astype(np.float64)])
    return Connection(src=0, start=start, end=end, silence=silence, shortest=1.9e6, moved=np.zeros(len(start)))


@pytest.mark.parametrize(("apart_ns", "bound"), [(5e2, 4), (1e5, 1)])
def test_ranks_in_lockstep_are_close_beside_a_micro_batch_and_not_beside_a_silence_alone(
    apart_ns: float, bound: int
) -> None:
    near, _ = _compare_all([make_pipeline(apart_ns, seed) for seed in range(4)], 0.0)
    assert near.sum(axis=1).tolist() == [bound] * 4


def test_transfers_that_all_begin_when_the_last_rank_has_come_may_be_of_ranks_that_are_bound() -> None:
    late = np.random.default_rng(1).normal(0, 1e6, STEPS)
    places = [[[make_connection(late) for _ in range(8)]] for _ in range(3)]
    assert count_in_step(places, STEP_NS, np.inf) == 8


def test_what_is_sent_all_the_time_does_not_tell_who_shares_a_sequence() -> None:
    assert count_in_step([place(seed, 4) for seed in (1, 2)], 10 * STEP_NS, np.inf) == 1


def test_the_ends_of_a_pipeline_hold_the_embeddings_and_send_more() -> None:
    assert count_stages_by_load([1.2, 1.0, 1.001, 1.0, 1.0, 1.0, 1.0, 1.2]) == 8
    assert count_stages_by_load([1.2, 1.2, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2]) == 4
    assert count_stages_by_load([1.0] * 8) == 1
    assert count_stages_by_load([1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 1  # one end alone
    assert count_stages_by_load([1.0, 1.1, 1.2, 1.3]) == 1


def test_a_team_that_leaves_at_two_paces_is_split_by_how_its_ranks_lie() -> None:
    beside, apart, all_alike = Counter({(2, 1): 8}), Counter({(2, 2): 8}), Counter({(4, 1): 8})
    assert split_lockstep_ranks(8, beside) == LockstepRanks(tensor=2, context=4)
    assert split_lockstep_ranks(4, apart) == LockstepRanks(tensor=2, context=2)
    assert split_lockstep_ranks(4, all_alike) == LockstepRanks(tensor=4, context=1)
    assert split_lockstep_ranks(8, Counter({(1, 0): 8})) == LockstepRanks(tensor=8, context=1)
    assert split_lockstep_ranks(8, beside, ordered=False) == LockstepRanks(tensor=4, context=2)


def test_a_start_that_waits_for_its_receiver_is_not_what_tells_when_a_rank_came() -> None:
    rng = np.random.default_rng(5)
    start = np.arange(STEPS) * STEP_NS
    long = np.arange(STEPS) % 2 == 0
    moved = np.where(long, 1e6, 1e3)
    connections = [
        Connection(
            src=0,
            start=start + rng.exponential(moved).astype(np.int64),
            end=start + np.where(long, 300_000_000, 1_000_000),
            silence=np.full(STEPS, 1.5e8),
            shortest=1e6,
            moved=moved,
        )
        for _ in range(2)
    ]
    bond = measure_bond(*connections)
    assert bond is not None
    assert bond.noise_ns == 1e3
    assert keep_step(bond)


def stream(number: int, src: int, dst: int, size: float, per_step: float, **told: float) -> dict[str, float]:
    usual = {"presence": 1.0, "together": 0.0, "answered": 0.0, "spread": 0.0, "longest_gap": 0.5, "overlap": 0.0}
    ends = {"stream": number, "pair": number, "unit": number, "src": src, "dst": dst, "src_host": src // 8}
    rates = {"dst_host": dst // 8, "bytes": size, "per_step": per_step, "num": round(per_step * 20)}
    return {**usual, **ends, **rates, **told}


def kinds(rows: list[dict[str, float]]) -> list[str]:
    frame = pl.DataFrame(rows).with_columns(pl.col("pair").cast(pl.UInt32))
    return choose_kind(label_pairs(frame)).sort("pair")["kind"].to_list()


def test_layers_speak_far_more_often_than_gradients_however_long_both_rest() -> None:
    rings = [stream(0, 0, 8, 2e8, 16), stream(1, 0, 8, 4e6, 200)]
    assert kinds(rings) == ["dp", "cp"]


def test_a_little_traffic_beside_gradients_does_not_make_these_layerwise() -> None:
    rings = [stream(0, 0, 8, 2e8, 16), stream(1, 0, 8, 1e7, 2)]
    assert kinds(rings)[0] == "dp"


def test_what_the_last_stage_hands_back_to_the_first_is_the_pipelines_though_both_send_at_once() -> None:
    turns = {"answered": 1.0, "together": 0.5}
    there, back = stream(0, 0, 8, 1.6e7, 8, **turns), stream(1, 8, 0, 1.6e7, 8, **turns)
    meets = {"answered": 1.0, "together": 1.0}
    wraps = [stream(2, 1, 9, 1.6e7, 2, **meets), stream(3, 9, 1, 1.6e7, 2, **meets)]
    tie = stream(4, 2, 10, 5e8, 1, **meets)
    assert kinds([there, back, *wraps, tie]) == ["pp", "pp", "pp", "pp", "dp"]


@pytest.mark.parametrize(("summed", "kind"), [((3.97e5, 5.37e5), "dp"), ((2.5e6, 5.37e5), "pp"), ((3.97e5,), "pp")])
def test_what_two_hosts_gather_in_the_sizes_that_replicas_sum_are_shards(summed: tuple[float, ...], kind: str) -> None:
    out_of_step = {"answered": 1.0, "together": 0.4}
    gathered = [
        stream(2 * i + j, *ends, size, rate, **out_of_step) | {"unit": i, "pair": i}
        for i, ends in enumerate([(0, 8), (8, 0), (16, 24), (24, 16)])
        for j, (size, rate) in enumerate([(3.968e5, 12.0), (5.368e5, 2.0)])
    ]
    replicas = [
        stream(8 + 2 * i + j, *ends, size, 3.0, answered=1.0, together=1.0) | {"unit": 4 + i, "pair": 4 + i}
        for i, ends in enumerate([(0, 16), (16, 0), (8, 24), (24, 8)])
        for j, size in enumerate(summed)
    ]
    assert kinds([*gathered, *replicas]) == [kind] * 4 + ["dp"] * 4


def test_a_pair_of_two_stages_is_what_carries_most_of_its_bytes() -> None:
    tie = pl.DataFrame({"pair": [0, 0], "src": [0, 0], "dst": [8, 8], "kind": ["pp", "embedding"], "num": [40, 1]})
    sizes = [pl.Series("bytes", [1e7, size]) for size in (3e8, 6e8)]
    assert [choose_kind(tie.with_columns(size))["kind"][0] for size in sizes] == ["pp", "embedding"]


def test_one_connection_that_seems_to_take_turns_does_as_the_others_do() -> None:
    meets, turns = {"answered": 1.0, "together": 1.0}, {"answered": 1.0, "together": 0.9}
    rows = [stream(i, i, i + 8, 1e8, 50, **(turns if i == 3 else meets)) for i in range(8)]
    assert kinds(rows) == ["dp"] * 8


def test_a_part_of_a_message_that_got_stuck_between_two_stages_is_the_pipelines() -> None:
    turns = {"answered": 1.0, "together": 0.2}
    there, back = stream(0, 0, 8, 3.3e7, 14, **turns), stream(1, 8, 0, 3.3e7, 14, **turns)
    stuck = stream(2, 0, 8, 8e6, 1) | {"unit": 0, "pair": 0}
    assert label_pairs(pl.DataFrame([there, back, stuck]))["kind"].to_list() == ["pp", "pp", "pp"]
