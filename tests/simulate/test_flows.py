"""What crosses hosts: bytes on every hop, who talks to whom, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadConfigError
from prism.records import FLOWS
from prism.simulate import GraphBuilder, SolveConfig, solve
from prism.simulate.cluster_file import load_cluster
from prism.simulate.costs import ClusterCosts
from prism.simulate.edges import collective_edges, find_lanes, tree_parent
from prism.simulate.endpoints import address_of
from prism.simulate.flows import make_flows
from prism.simulate.messages import find_messages

CLUSTER = load_cluster("dgx-h100", num_hosts=64)
sizes = st.integers(2, 40)


def lanes_of(num_hosts: int, per_host: int = 1):
    host = np.repeat(np.arange(num_hosts), per_host)
    return find_lanes(host, host * 8 + np.tile(np.arange(per_host), num_hosts))


def one_collective(kind: str, size: int, num_hosts: int, per_host: int, **more):
    builder = GraphBuilder("one")
    program = builder.program()
    program.step = 0
    program.compute("work", 1000)
    program.collective(kind, "dp", size, **more)
    ranks = np.arange(num_hosts * per_host)
    builder.ranks(ranks, ranks * 0, ranks // per_host, ranks % per_host)
    builder.groups("dp", ranks[None, :])
    return builder.build()


@given(
    num_hosts=sizes, per_host=st.integers(1, 8), kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"])
)
def test_every_ring_hop_between_hosts_carries_what_the_algorithm_says(num_hosts, per_host, kind):
    edges = collective_edges(kind, "ring", lanes_of(num_hosts, per_host))
    n = num_hosts * per_host
    expected = (2 if kind == "all_reduce" else 1) * (n - 1) / n
    for host in range(num_hosts):
        out = edges.src // 8 == host
        assert edges.share[out].sum() == pytest.approx(expected)
        assert set(edges.dst[out] // 8) == {(host + 1) % num_hosts}
    assert (edges.src % 8 == edges.dst % 8).all()  # a lane stays on its rail


@given(num_hosts=sizes)
def test_both_trees_span_all_hosts_and_move_the_buffer_up_and_down_once(num_hosts):
    edges = collective_edges("all_reduce", "tree", lanes_of(num_hosts))
    assert edges.share.sum() == pytest.approx(2 * (num_hosts - 1))
    forward = set(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
    assert forward == {(b, a) for a, b in forward}
    for node in range(1, num_hosts):
        seen = [node]
        while seen[-1]:
            seen.append(tree_parent(seen[-1], num_hosts))
            assert len(seen) <= num_hosts


@given(num_hosts=sizes, kind=st.sampled_from(["all_gather", "reduce_scatter"]))
def test_a_pat_host_sends_every_other_shard_once(num_hosts, kind):
    edges = collective_edges(kind, "pat", lanes_of(num_hosts))
    sent = np.bincount(edges.src // 8, weights=edges.share, minlength=num_hosts)
    assert sent == pytest.approx((num_hosts - 1) / num_hosts)


@given(num_hosts=sizes, root=st.integers(0, 39))
def test_a_broadcast_fills_every_hop_but_the_one_into_its_root(num_hosts, root):
    root %= num_hosts
    edges = collective_edges("broadcast", "ring", lanes_of(num_hosts), root)
    assert len(edges.src) == num_hosts - 1
    assert root * 8 not in edges.dst


def test_hops_inside_a_host_are_invisible():
    graph = one_collective("all_reduce", 1 << 30, 1, 8)
    assert find_messages(graph, CLUSTER).is_empty()


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_bytes_of_a_large_collective_add_up_over_lanes(kind):
    size, hosts, per_host = 1 << 32, 4, 8
    messages = find_messages(one_collective(kind, size, hosts, per_host), CLUSTER)
    n = hosts * per_host
    out = messages.group_by(pl.col("src") // 8).agg(pl.col("bytes").sum())["bytes"]
    ring = (2 if kind == "all_reduce" else 1) * (n - 1) / n * size
    tree = size  # a host of a double tree sends at least its half twice
    assert messages["src"].n_unique() == n  # every rail carries its part
    assert all(abs(o - ring) < 100 or o >= tree * 0.99 for o in out)


def test_an_exchange_sends_each_pair_its_own_size():
    sizes_to = [10, 20, 30, 40]
    messages = find_messages(one_collective("all_to_all", 100, 2, 2, sizes=sizes_to), CLUSTER)
    got = {(r["src"], r["dst"]): r["bytes"] for r in messages.iter_rows(named=True) if r["rank"] == 0}
    # With PXN a message leaves by the NIC on its receiver's rail.
    assert got == {(0, 8): 30, (1, 9): 40}
    even = find_messages(one_collective("all_to_all", 100, 2, 2), CLUSTER)
    assert even["bytes"].to_list() == [25] * 8


def message_graph(src_local: int, dst_local: int):
    builder = GraphBuilder("p2p")
    sender, receiver = builder.program(), builder.program()
    sender.send("pp", 1 << 20, peer=1)
    receiver.recv("pp", 1 << 20, peer=0)
    builder.rank(0, sender, host=0, local=src_local)
    builder.rank(1, receiver, host=1, local=dst_local)
    builder.group("pp", [0, 1])
    return builder.build()


def test_a_message_leaves_by_the_receivers_rail_with_nvlink_and_by_its_own_without():
    graph = message_graph(2, 5)
    with_pxn = find_messages(graph, CLUSTER).row(0, named=True)
    without = find_messages(graph, replace(CLUSTER, nvlink=None)).row(0, named=True)
    assert (with_pxn["src"], with_pxn["dst"]) == (5, 13)
    assert (without["src"], without["dst"]) == (2, 13)


def test_a_ring_of_shifted_messages_reaches_the_next_rank():
    builder = GraphBuilder("ring")
    program = builder.program()
    with program.batch():
        program.send("cp", 100, shift=1)
        program.recv("cp", 100, shift=3)
    builder.ranks(range(4), [0] * 4, range(4), [0] * 4)
    builder.groups("cp", [[0, 1, 2, 3]])
    found = find_messages(builder.build(), CLUSTER)
    assert {(s // 8, d // 8) for s, d in found.select("src", "dst").iter_rows()} == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_flows_begin_when_both_sides_are_ready_and_end_with_the_op():
    graph = one_collective("all_reduce", 1 << 30, 4, 2)
    solution = solve(graph, ClusterCosts(CLUSTER), SolveConfig(note_ops=True))
    flows = make_flows(solution, CLUSTER, epoch_ns=10**18)
    op = solution.op_times(0).filter(pl.col("seq") == 1).row(0, named=True)
    assert set(flows["start_ns"]) == {10**18 + op["ready_ns"]}
    assert set(flows["end_ns"]) == {10**18 + op["end_ns"]}
    assert FLOWS.conform(flows).equals(flows)
    assert set(flows["src"]) <= {address_of(h, r) for h in range(4) for r in range(2)}


def test_a_hop_begins_when_its_sender_has_come_though_the_group_still_waits():
    builder = GraphBuilder("late")
    for duration, before in ((1_000, 0), (9_000, 2)):  # the late class has other ops before the collective
        program = builder.program()
        program.step = 0
        for _ in range(before):
            program.compute("more", 10)
        program.compute("work", duration)
        program.collective("all_gather", "dp", 1 << 30)
    ranks = np.arange(4)
    builder.ranks(ranks, ranks == 2, ranks, ranks * 0)
    builder.groups("dp", ranks[None, :])
    flows = make_flows(solve(builder.build(), ClusterCosts(CLUSTER), SolveConfig(note_ops=True)), CLUSTER)
    begun = {(s, d): t for s, d, t in flows.select("src", "dst", "start_ns").iter_rows()}
    hosts = [address_of(host, 0) for host in range(4)]
    late = {pair for pair in begun if hosts[2] == pair[0]}
    assert late and {begun[pair] for pair in late} == {9_020}
    assert {begun[pair] for pair in set(begun) - late} == {1_000}
    assert flows["end_ns"].n_unique() == 1


def test_folded_and_unfolded_solutions_give_the_same_flows():
    graph = one_collective("reduce_scatter", 1 << 28, 8, 4)
    folded, unfolded = (
        make_flows(solve(graph, ClusterCosts(CLUSTER), SolveConfig(note_ops=True, fold=fold)), CLUSTER)
        for fold in (True, False)
    )
    assert folded.equals(unfolded)


def test_paths_pass_a_spine_only_between_leaves():
    graph = one_collective("all_reduce", 1 << 30, 40, 1)  # 32 hosts hang from one leaf
    flows = make_flows(solve(graph, ClusterCosts(CLUSTER), SolveConfig(note_ops=True)), CLUSTER)
    paths = flows["path"].str.split(">")
    assert set(paths.list.len()) == {1, 3}
    assert flows.filter(paths.list.len() == 1)["path"].unique().sort().to_list() == ["leaf-0", "leaf-8"]


def test_flows_need_the_times_of_single_ops():
    solution = solve(one_collective("all_reduce", 1 << 20, 2, 1), ClusterCosts(CLUSTER))
    with pytest.raises(BadConfigError, match="note_ops"):
        make_flows(solution, CLUSTER)
