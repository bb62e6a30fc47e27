"""How much each connection carries in all tells how a job is laid out, where volumes leave no other reading."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.rank_counts import Ranks
from prism.observe.parallelism.volumes import VolumeLayout, lay_out_volumes
from prism.observe.traffic.preparation import prepare_traffic

PP, DP, TIE = 80_000, 30_000, 9_000
MINUTE = 60_000_000_000
Sent = dict[tuple[int, int], list[int]]


def read(sent: Sent, *, ports: bool = False, noise: float = 0.02, hosts_of: int = 1) -> VolumeLayout | None:
    """The layout of endpoints that send so much by each connection, in three records of a minute each."""
    rng = np.random.default_rng(3)
    rows = [
        (
            f"10.0.{a // 256}.{a % 256}",
            f"10.0.{b // 256}.{b % 256}",
            int(size * rng.normal(1, noise)),
            port,
            minute * MINUTE,
        )
        for (a, b), sizes in sent.items()
        for port, size in enumerate(sizes)
        for minute in range(3)
    ]
    flows = pl.DataFrame(rows, schema=["src", "dst", "bytes", "src_port", "start_ns"], orient="row")
    flows = flows.with_columns(end_ns=pl.col("start_ns") + MINUTE)
    if not ports:
        flows = flows.group_by("src", "dst", "start_ns", "end_ns", maintain_order=True).agg(pl.col("bytes").sum())
    ends = sorted({e for pair in sent for e in pair})
    topology = pl.DataFrame(
        {
            "address": [f"10.0.{e // 256}.{e % 256}" for e in ends],
            "host": [f"host-{e // hosts_of}" for e in ends],
            "rail": [e % hosts_of for e in ends],
            "switch": ["leaf"] * len(ends),
        }
    )
    traffic = prepare_traffic(flows, topology)
    every = np.arange(traffic.endpoints.height)
    job = ObservedJob(
        id="job", endpoints=every, pairs=np.arange(traffic.pairs.height), storage_pairs=np.zeros(0, np.int64),
        period_ns=None, first_ns=0, last_ns=3 * MINUTE,
    )  # fmt: skip
    return lay_out_volumes(traffic, job)


def send_stages(pp: int, dp: int, tp: int, *, tied: bool = True) -> Sent:
    """Rank (stage, replica, inner) sends along stages, replicas and ties."""
    rank = {(s, r, i): (s * dp + r) * tp + i for s in range(pp) for r in range(dp) for i in range(tp)}
    sent: dict[tuple[int, int], int] = {}

    def add(a: int, b: int, size: int) -> None:
        sent[a, b] = sent.get((a, b), 0) + size

    for (s, r, i), own in rank.items():
        for near in ({s - 1, s + 1} & set(range(pp))) if pp > 1 else ():
            add(own, rank[near, r, i], PP)
        if dp > 1:
            add(own, rank[s, (r + 1) % dp, i], DP)
        if tied and pp > 2 and s in (0, pp - 1):
            add(own, rank[pp - 1 - s, r, i], TIE)
    return {pair: [size] for pair, size in sent.items()}


@pytest.mark.parametrize("pp, dp, tp", [(4, 2, 8), (4, 4, 2), (8, 2, 1), (3, 1, 4), (2, 4, 8)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_pipeline_is_read_from_volumes_alone(pp: int, dp: int, tp: int, tied: bool) -> None:
    found = read(send_stages(pp, dp, tp, tied=tied))
    assert found is not None
    assert (found.pp, found.dp) == (pp, dp)
    layout = found.lay_out(Ranks(total=pp * dp * tp, per_host=tp, shared=False))
    assert (layout.pp.value, layout.dp.value, layout.tp.value) == (pp, dp, tp)
    assert ("embedding" in found.kinds.values()) == (tied and pp > 2)


def test_two_stages_of_two_replicas_may_be_either_so_nothing_is_reported() -> None:
    assert read(send_stages(2, 2, 8)) is None


def test_volumes_that_differ_by_chance_as_much_as_by_kind_say_nothing() -> None:
    assert read(send_stages(4, 2, 8), noise=0.6) is None


def test_a_ring_of_which_one_pair_was_missed_is_no_pipeline() -> None:
    assert read({(a, a + 1): [DP] for a in range(5)}) is None


@pytest.mark.parametrize("piped, summed, tie", [(900, 1000, 0), (900, 1000, 902), (3000, 1000, 500)])
def test_two_stages_of_two_replicas_are_told_by_their_connections(piped: int, summed: int, tie: int) -> None:
    """Eight ranks of a host send by one connection each, and sum gradients or tie embeddings by two channels."""
    stages = [piped * 1000] * 8 + [tie * 1000] * (16 if tie else 0)
    sent = dict.fromkeys([(0, 2), (2, 0), (1, 3), (3, 1)], stages)
    sent |= {(a, b): [summed * 1000] * 16 for a, b in [(0, 1), (1, 0), (2, 3), (3, 2)]}
    found = read(sent, ports=True, noise=0.001)
    assert found is not None
    assert (found.pp, found.dp, found.senders) == (2, 2, 8)
    assert {edge for edge, kind in found.kinds.items() if kind == "pp"} == {(0, 2), (1, 3)}
    assert found.sure == pytest.approx(16 / 17 if tie else 4 / 5)  # that there are half as many alone says less


def test_a_ring_through_all_hosts_sums_gradients_whatever_its_length() -> None:
    rails = {(8 * h + r, 8 * ((h + 1) % 4) + r): [DP] for h in range(4) for r in range(8)}
    found = read(rails, hosts_of=8)
    assert found is not None
    assert (found.pp, found.cp, found.ep) == (1, 1, 1)
    assert found.lay_out(Ranks(total=32, per_host=8, shared=False)).dp.value == 32


def test_both_directions_of_a_pair_under_one_of_them_are_a_ring_of_two_hosts() -> None:
    """Some exporters give both directions of a flow as one, now under one address and now under the other."""
    rng = np.random.default_rng(5)
    sent: Sent = {}
    for rail in range(8):
        share = float(rng.uniform(0.15, 0.85))
        sent[rail, 8 + rail] = [int(share * DP * 1000)]
        sent[8 + rail, rail] = [int((1 - share) * DP * 1000)]
    found = read(sent, hosts_of=8, noise=0.0)
    assert found is not None
    assert set(found.kinds.values()) == {"dp"}


def test_neighbours_in_the_ring_of_gradients_that_exchange_more_split_a_sequence() -> None:
    ring = {(a, (a + 1) % 4): [DP, DP] for a in range(4)}
    sent = {pair: list(sizes) for pair, sizes in ring.items()}
    for a, b in [(0, 1), (1, 0), (2, 3), (3, 2)]:
        sent[a, b] = [*sent.get((a, b), []), PP]
    found = read(sent, ports=True, noise=0.001)
    assert found is not None
    assert (found.cp, found.ep, found.pp) == (2, 1, 1)
    layout = found.lay_out(Ranks(total=32, per_host=8, shared=True))
    assert (layout.dp.value, layout.tp.value, layout.cp.value) == (2, 8, 2)


def test_hosts_that_lie_apart_and_sum_besides_hold_copies_of_experts() -> None:
    sent: Sent = {(a, (a + 1) % 4): [DP] * 8 for a in range(4)}
    for a, b in [(0, 2), (2, 0), (1, 3), (3, 1)]:
        sent[a, b] = [PP] * 16
    for a, b in [(0, 1), (1, 0), (2, 3), (3, 2)]:
        sent[a, b] = [*sent.get((a, b), []), *[2 * DP] * 16]
    found = read(sent, ports=True, noise=0.001)
    assert found is not None
    assert (found.ep, found.cp, found.pp) == (2, 1, 1)
    layout = found.lay_out(Ranks(total=32, per_host=8, shared=True, guessed=True))
    assert (layout.dp.value, layout.ep.value) == (32, 16)
    assert found.kinds[0, 2] == "dp"
    assert found.kinds[0, 1] == "ep"


def test_stages_that_send_little_beside_their_gradients_are_stages() -> None:
    rank = {(s, r): 2 * s + r for s in range(3) for r in range(2)}
    sent = {(rank[s, r], rank[near, r]): [20_000] for s, r in rank for near in {s - 1, s + 1} & {0, 1, 2}}
    sent |= {(rank[s, r], rank[s, 1 - r]): [1_000_000] for s, r in rank}
    found = read(sent)
    assert found is not None
    assert (found.pp, found.dp) == (3, 2)
